"""The reading half of a connection: requests come whole and within limits, or are refused.

uvicorn waits for ever for half a header or body, and takes bodies and headers of any size. So the
parser's callbacks are ours: a request is handed on only when all of it is there. No callback
raises; what is refused is noted, and answered once the parser has returned.

The parser stops behind the head of a request that asks for an upgrade. Only WebSockets are upgraded
to; any other upgrade is ignored, and a new parser reads the body and what follows it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from penstock.broker.held import SMALL_BYTES
from penstock.errors import Overloaded, PenstockError
from penstock.server.deadlines import NEVER, Deadlines
from penstock.server.dialects.own_errors import as_said_at
from penstock.server.exchange import Exchange, Head, judge_head, too_large
from penstock.server.http_metrics import REFUSED_ROUTE
from penstock.server.known_heads import KnownHeads
from penstock.server.problems import problem_of
from penstock.server.refusals import (
    HeadersTooLarge,
    Refused,
    RequestTooSlow,
    UrlTooLong,
)
from penstock.server.replies import CONTINUE, Replies
from penstock.server.service import Service

log = logging.getLogger("penstock.server")

IDLE, _HEAD, _BODY, _LINGER = range(4)
MOST_WAITING = 32  # requests of one connection; then it is not read from
_LINGER_S = 2.0  # what a refused client still sends is thrown away for so long
_BODY_BYTES_PER_S = 64 * 1024  # of a body that takes longer than its time limit


class ReadingProtocol(HttpToolsProtocol):
    """What arrives on one connection. `go_on` is told when a request is there."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        service: Service,
        deadlines: Deadlines,
        replies: Replies,
        heads: KnownHeads,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.service = service
        self.replies = replies
        self.url = b""  # of the latest request that was begun
        self.deadline = NEVER
        self._deadlines = deadlines
        self._heads = heads
        self._phase = IDLE
        self._messages = 0  # that were begun
        self._header_bytes = 0  # of headers and trailers that were read
        self._head_bytes = 0  # that came after the first of a head which has not ended
        self._body_until = 0.0
        self._refusal: PenstockError | None = None
        self._at_body = False  # the parser stopped, or is set, behind a head that was read
        self._reading: Exchange | None = None  # whose body is being read
        self._latest: Exchange | None = None  # that was read
        self._waiting: deque[Exchange] = deque()  # for their answers; the first is being answered
        self._draining = False  # nothing new is begun
        self._buffered = 0  # our part of service.held, of bodies
        self._unsent = 0  # the same, of an answer that the client has not taken yet
        self._writing = 0  # bytes of what is being written

    def go_on(self) -> None:
        """Answer what waits."""
        raise NotImplementedError

    @property
    def is_idle(self) -> bool:
        """Is there nothing to answer, and nothing being read?"""
        return self._phase == IDLE and not self._waiting

    # -- the connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()
        self._deadlines.watch(self)
        if len(self.connections) > self.service.settings.max_connections:
            self._refuse(Overloaded("there are as many connections as there may be: try later"))
            transport.close()  # nothing was sent yet, so nothing is left unread

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)
        self._waiting.clear()
        self._reading = None

    def _leave(self) -> None:
        """Not ours any more: it is closed, or a WebSocket by now."""
        self.service.held.bytes -= self._buffered + self._unsent
        self._buffered = self._unsent = 0
        self.deadline = NEVER
        self._deadlines.forget(self)

    def data_received(self, data: bytes) -> None:
        phase = self._phase
        if phase == _LINGER:
            return
        is_alone = phase == IDLE and not self._waiting and self._refusal is None
        if is_alone:
            known = self._heads.find(data)
            if known is not None:
                self._take(known)
                return
        before = self._messages
        in_head = phase == _HEAD
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            log.error("a defect in reading", exc_info=error.__context__ or error)
            self._refusal = PenstockError("something went wrong inside the server")
        except httptools.HttpParserError as error:
            if self._refusal is None:
                self._refusal = Refused(f"this is not HTTP as it should be: {error}")
        if is_alone and self._latest is not None and self._messages == before + 1:
            self._heads.learn(data, self._latest.head)
        self._latest = None
        is_same = in_head and self._phase == _HEAD and self._messages == before
        if is_same:
            # A header that does not end was not seen by `on_header` yet, but takes memory.
            self._head_bytes += len(data)
        if self._phase != IDLE:
            self._check_header_bytes()
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif self._phase == _HEAD and not is_same:
            self.deadline = self.loop.time() + self.service.settings.header_timeout_s
        elif self._phase == _BODY and self._reading is not None:
            if self._messages != before or in_head:
                self._body_until = self.loop.time() + self.service.settings.body_timeout_s
            self.deadline = self._body_until + self._reading.size / _BODY_BYTES_PER_S

    def _feed(self, data: bytes) -> None:
        """Have the parser read it all, unless it is a WebSocket's from here on."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                if self._refusal is not None:
                    return
                if not self._at_body:
                    self._upgrade()
                    return
                data = data[stopped.args[0] :]
                self._read_body_anew()
            else:
                return

    def _read_body_anew(self) -> None:
        """Go on behind the head of a request whose upgrade is ignored, with a new parser."""
        assert self._reading is not None
        known = self._reading.head.known
        framing = b"transfer-encoding" if b"transfer-encoding" in known else b"content-length"
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(
            b"POST / HTTP/1.1\r\n%s: %s\r\n\r\n" % (framing, known.get(framing, b"0"))
        )

    def deadline_passed(self) -> None:
        """Called by `Deadlines`."""
        if self._phase == _LINGER or self.flow.write_paused:
            self.transport.abort()  # the client does not take its answer
        elif self.flow.read_paused:
            self._set_deadline()  # it was us who did not read
        elif self._phase in (_HEAD, _BODY):
            what = "headers" if self._phase == _HEAD else "body"
            self._refuse(RequestTooSlow(f"the {what} took too long to arrive"))
        else:
            self.transport.close()

    def write(self, data: bytes) -> None:
        """Write it. All of it counts: a transport keeps it whole until the last byte is sent."""
        self._writing = len(data)
        self.transport.write(data)
        self._writing = 0

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = max(self.transport.get_write_buffer_size(), self._writing)
        self.service.held.bytes += self._unsent
        self.deadline = self.loop.time() + self.service.settings.idle_timeout_s

    def resume_writing(self) -> None:
        super().resume_writing()
        self.service.held.bytes -= self._unsent
        self._unsent = 0
        self._set_deadline()
        self.go_on()

    def _set_deadline(self) -> None:
        """Begin the time that there is for what the connection is at."""
        settings, now = self.service.settings, self.loop.time()
        if self._phase == _HEAD:
            self.deadline = now + settings.header_timeout_s
        elif self._phase == _BODY:
            self.deadline = now + settings.body_timeout_s
        elif self._waiting:
            self.deadline = NEVER
        else:
            self.deadline = now + settings.idle_timeout_s

    def _refuse(self, error: PenstockError) -> None:
        """Answer with an error and close, after what was asked before is answered.

        What the client still sends is thrown away for a moment: a connection that is closed with
        bytes unread is reset, and the client would never see why.
        """
        self._refusal = error
        self._reading = None
        if self._waiting:
            self.flow.pause_reading()
            self.deadline = NEVER
            return
        problem = as_said_at(self.url, problem_of(error))
        request_id = self.service.request_ids.next()
        self.service.http_metrics.answered(REFUSED_ROUTE, "", problem.status, 0)
        log.info("refused", extra={"fields": {"code": problem.code, "request_id": request_id}})
        self.transport.write(self.replies.problem(problem, request_id, close=True))
        self._phase = _LINGER
        self.flow.resume_reading()
        self.deadline = self.loop.time() + _LINGER_S
        if self.transport.can_write_eof():
            self.transport.write_eof()

    # -- the parser --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._at_body:
            return
        self._messages += 1
        self._phase = _HEAD
        self._header_bytes = self._head_bytes = 0
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_url(self, url: bytes) -> None:
        if self._at_body:
            return
        self.url += url
        limit = self.service.settings.max_url_bytes
        if len(self.url) > limit and self._refusal is None:
            self._refusal = UrlTooLong(f"a URL has at most {limit} bytes here (max_url_bytes)")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._at_body:
            return
        self._header_bytes += len(name) + len(value) + 4
        if self._phase == _HEAD:  # else a trailer, which nobody reads
            self.headers.append((name.lower(), value))

    def _check_header_bytes(self) -> None:
        settings = self.service.settings
        most_bytes = settings.max_header_bytes
        if self._refusal is None and (
            self._header_bytes > most_bytes
            or self._head_bytes > most_bytes
            or len(self.headers) > settings.max_headers
        ):
            self._refusal = HeadersTooLarge(
                f"a request has at most {settings.max_headers} headers, together at most "
                f"{settings.max_header_bytes} bytes, here (max_headers, max_header_bytes)"
            )

    def on_headers_complete(self) -> None:
        if self._at_body:
            self._at_body = False  # it was set behind this head
            return
        self._check_header_bytes()
        if self._refusal is not None:
            return
        http_version = self.parser.get_http_version()
        known, self._refusal = judge_head(
            self.headers, http_version, self.service.settings.max_body_bytes
        )
        if self._refusal is None:
            self._judge_body(known)
        if self._refusal is not None:
            return
        self._phase = _BODY
        keep_alive = http_version == "1.1" and self.parser.should_keep_alive()
        if self.parser.should_upgrade() and not self._should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                keep_alive = False  # what follows is not HTTP
            else:
                self._at_body = True
        self._reading = Exchange(
            Head(self.parser.get_method(), self.url, self.headers, known, http_version, keep_alive)
        )
        expected = known.get(b"expect")
        if expected is not None and expected.lower() == b"100-continue" and not self._waiting:
            self.transport.write(CONTINUE)

    def _judge_body(self, known: Mapping[bytes, bytes]) -> None:
        """Refuse a body that there is no room for, or that does not belong there."""
        length = int(known.get(b"content-length", b"0"))
        if length > SMALL_BYTES and not self.service.held.has_room_for_body(length):
            self._refusal = _no_room()
        has_body = length > 0 or b"transfer-encoding" in known
        if has_body and self.parser.should_upgrade() and self._should_upgrade():
            self._refusal = Refused("a WebSocket handshake has no body")

    def on_body(self, body: bytes) -> None:
        exchange = self._reading
        if exchange is None or self._refusal is not None:
            return
        exchange.chunks.append(body)
        exchange.size += len(body)
        self._buffered += len(body)
        held = self.service.held
        held.bytes += len(body)
        max_body_bytes = self.service.settings.max_body_bytes
        if exchange.size > max_body_bytes:
            self._refusal = too_large(max_body_bytes)
        elif not held.has_room_for_body(exchange.size):
            self._refusal = _no_room()

    def on_message_complete(self) -> None:
        if self._at_body:
            return  # only the head was read: `_read_body_anew` comes next
        exchange, self._reading = self._reading, None
        self._check_header_bytes()
        if exchange is None or self._refusal is not None or self.transport.is_closing():
            return
        self._phase = IDLE
        self.deadline = NEVER
        if self.parser.should_upgrade() and self._should_upgrade():
            return  # `_upgrade` comes next
        self._latest = exchange
        self._waiting.append(exchange)
        if len(self._waiting) >= MOST_WAITING:
            self.flow.pause_reading()
        self.go_on()

    def _take(self, exchange: Exchange) -> None:
        """A request that arrived whole, with a head that is known."""
        self._buffered += exchange.size
        self.service.held.bytes += exchange.size
        self.deadline = NEVER
        self._waiting.append(exchange)
        self.go_on()

    def _upgrade(self) -> None:
        if not self._should_upgrade():
            return  # CONNECT, which was taken for a plain request
        if self._waiting or self._draining:
            self._refusal = Refused("a WebSocket needs a connection without pending requests")
            return
        method = self.parser.get_method().decode()
        self.scope = {"method": method, "headers": self.headers}  # type: ignore[typeddict-item]
        self._leave()
        self.handle_websocket_upgrade()


def _no_room() -> Overloaded:
    return Overloaded(
        "requests and answers hold as much memory as they may (max_buffered_bytes): try again in a "
        "moment"
    )
