"""HTTP/1.1 on a connection: uvicorn's protocol, with limits on everything a client can send.

uvicorn waits for ever for half a header or body, and takes bodies and headers of any size. So the
parser's callbacks are ours: a request is handed on only when all of it is there and within limits.
The hot routes are answered by `hot_routes` at once; everything else goes on to the ASGI app by
uvicorn's own request cycle. Requests that were sent without waiting for answers (pipelining) are
answered one after the other.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.errors import PenstockError
from penstock.server.deadlines import NEVER, Deadlines
from penstock.server.exchange import Exchange, judge_head, too_large
from penstock.server.http_metrics import REFUSED_ROUTE
from penstock.server.problems import problem_of
from penstock.server.refusals import (
    HeadersTooLarge,
    Overloaded,
    Refused,
    RequestTooSlow,
    UrlTooLong,
)
from penstock.server.replies import CONTINUE, Replies
from penstock.server.service import Service

if TYPE_CHECKING:
    from penstock.server.hot_routes import HotRoutes

log = logging.getLogger("penstock.server")

_IDLE, _HEAD, _BODY, _LINGER = range(4)
_MOST_WAITING = 32  # requests of one connection; then it is not read from
_LINGER_S = 2.0  # what a refused client still sends is thrown away for so long
_BODY_BYTES_PER_S = 64 * 1024  # of a body that takes longer than its time limit


class PenstockProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        service: Service,
        hot: "HotRoutes",
        deadlines: Deadlines,
        replies: Replies,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.service = service
        self.replies = replies
        self.deadline = NEVER
        self._hot = hot
        self._deadlines = deadlines
        self._phase = _IDLE
        self._messages = 0  # that were begun
        self._header_bytes = 0  # of headers and trailers that were read
        self._head_bytes = 0  # that came after the first of a head which has not ended
        self._body_until = 0.0
        self._refusal: PenstockError | None = None
        self._reading: Exchange | None = None  # whose body is being read
        self._waiting: deque[Exchange] = deque()  # the first is being answered
        self._answering = False
        self._hot_answer: asyncio.Future[Any] | None = None
        self._draining = False  # no further request is taken
        self._buffered = 0  # our part of service.buffered_bytes

    # -- the connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        settings = self.service.settings
        self.deadline = self.loop.time() + settings.idle_timeout_s
        self._deadlines.watch(self)
        if len(self.connections) > settings.max_connections:
            self._refuse(Overloaded("there are as many connections as there may be: try later"))
            transport.close()  # nothing was sent yet, so nothing is left unread

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)
        if self._hot_answer is not None:
            self._hot_answer.cancel()
            self._hot_answer = None
        self._waiting.clear()
        self._reading = None

    def _leave(self) -> None:
        """Not ours any more: it is closed, or a WebSocket by now."""
        self.service.buffered_bytes -= self._buffered
        self._buffered = 0
        self.deadline = NEVER
        self._deadlines.forget(self)

    def shutdown(self) -> None:
        """The server stops: finish what was begun, take nothing new."""
        self._draining = True
        if self._phase == _IDLE and not self._waiting:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._phase == _LINGER:
            return
        before = self._messages
        in_head = self._phase == _HEAD
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._refusal is None:
                self._upgrade()
        except httptools.HttpParserError as error:
            if self._refusal is None:
                self._refusal = Refused(f"this is not HTTP as it should be: {error}")
        is_same = in_head and self._phase == _HEAD and self._messages == before
        if is_same:
            # A header that does not end was not seen by `on_header` yet, but takes memory.
            self._head_bytes += len(data)
        if self._phase != _IDLE:
            self._check_header_bytes()
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif self._phase == _HEAD and not is_same:
            self.deadline = self.loop.time() + self.service.settings.header_timeout_s
        elif self._phase == _BODY and self._reading is not None:
            if self._messages != before or in_head:
                self._body_until = self.loop.time() + self.service.settings.body_timeout_s
            self.deadline = self._body_until + self._reading.size / _BODY_BYTES_PER_S

    def deadline_passed(self) -> None:
        """Called by `Deadlines`."""
        if self._phase == _LINGER or self.flow.write_paused:
            self.transport.abort()  # the client does not take its answer
        elif self.flow.read_paused:
            self.deadline = NEVER  # it was us who did not read
        elif self._phase in (_HEAD, _BODY):
            what = "headers" if self._phase == _HEAD else "body"
            self._refuse(RequestTooSlow(f"the {what} took too long to arrive"))
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.deadline = self.loop.time() + self.service.settings.idle_timeout_s

    def resume_writing(self) -> None:
        super().resume_writing()
        settings, now = self.service.settings, self.loop.time()
        if self._phase == _HEAD:
            self.deadline = now + settings.header_timeout_s
        elif self._phase == _BODY:
            self.deadline = now + settings.body_timeout_s
        elif self._waiting:
            self.deadline = NEVER
        else:
            self.deadline = now + settings.idle_timeout_s
        self._go_on()

    # -- the parser --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._messages += 1
        self._phase = _HEAD
        self._header_bytes = self._head_bytes = 0
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_url(self, url: bytes) -> None:
        self.url += url
        limit = self.service.settings.max_url_bytes
        if len(self.url) > limit and self._refusal is None:
            self._refusal = UrlTooLong(f"a URL has at most {limit} bytes here (max_url_bytes)")

    def on_header(self, name: bytes, value: bytes) -> None:
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
        self._check_header_bytes()
        if self._refusal is not None:
            return
        http_version = self.parser.get_http_version()
        known, self._refusal = judge_head(
            self.headers, http_version, self.service.settings.max_body_bytes
        )
        if self._refusal is not None:
            return
        self._phase = _BODY
        keep_alive = http_version == "1.1" and self.parser.should_keep_alive()
        self._reading = Exchange(
            self.parser.get_method(), self.url, self.headers, known, http_version, keep_alive
        )
        if self.parser.should_upgrade():
            # Only WebSockets are upgraded to; the parser reads nothing behind such a request.
            self._reading.keep_alive = False
        expected = known.get(b"expect")
        if expected is not None and expected.lower() == b"100-continue" and not self._waiting:
            self.transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        exchange = self._reading
        if exchange is None or self._refusal is not None:
            return
        exchange.chunks.append(body)
        exchange.size += len(body)
        self._buffered += len(body)
        self.service.buffered_bytes += len(body)
        settings = self.service.settings
        if exchange.size > settings.max_body_bytes:
            self._refusal = too_large(settings.max_body_bytes)
        elif self.service.buffered_bytes > settings.max_buffered_bytes:
            self._refusal = Overloaded(
                "too many bodies are being received at once: try again in a moment"
            )

    def on_message_complete(self) -> None:
        exchange, self._reading = self._reading, None
        self._check_header_bytes()
        if exchange is None or self._refusal is not None or self.transport.is_closing():
            return
        self._phase = _IDLE
        self.deadline = NEVER
        if self.parser.should_upgrade() and self._should_upgrade():
            return  # `_upgrade` comes next
        self._waiting.append(exchange)
        if len(self._waiting) >= _MOST_WAITING:
            self.flow.pause_reading()
        self._go_on()

    def _upgrade(self) -> None:
        if not self._should_upgrade():
            return  # an upgrade may be ignored; it was taken for a plain request
        if self._waiting:
            self._refusal = Refused("a WebSocket needs a connection without pending requests")
            return
        self.scope = {"method": "GET", "headers": self.headers}  # type: ignore[typeddict-item]
        self._leave()
        self.handle_websocket_upgrade()

    # -- answering ---------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Answer the first that waits, unless one is being answered."""
        while self._waiting and not (
            self._answering or self.flow.write_paused or self.transport.is_closing()
        ):
            exchange = self._waiting[0]
            self._answering = True
            exchange.began_ns = self.service.broker.clock.monotonic_ns()
            exchange.request_id = self.service.request_ids.next(exchange.known.get(b"x-request-id"))
            if not self._hot.answer(self, exchange):
                self._start_cycle(exchange)

    @property
    def is_last(self) -> bool:
        """Is the connection closed after the answer that is being given?"""
        return not self._waiting[0].keep_alive or (self._draining and len(self._waiting) == 1)

    def wait_for(self, answer: "asyncio.Future[Any] | None") -> None:
        """Cancelled if the client goes away before it is done."""
        self._hot_answer = answer

    def reply(self, data: bytes) -> None:
        """The whole answer of the first that waits."""
        self._hot_answer = None
        is_last = self.is_last
        self.transport.write(data)
        if is_last:
            self.transport.close()
        self._answered()

    def _start_cycle(self, exchange: Exchange) -> None:
        """Have it answered by the app."""
        try:
            scope = self._scope(
                exchange.method, exchange.url, exchange.http_version, exchange.headers
            )
        except httptools.HttpParserInvalidURLError:
            problem = problem_of(Refused("the URL cannot be read"))
            self.reply(self.replies.problem(problem, exchange.request_id, close=self.is_last))
            return
        scope["state"]["request_id"] = exchange.request_id
        event = asyncio.Event()
        event.set()
        self.cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=_WritingOnly(self.flow),
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,  # the app has its own
            default_headers=self.server_state.default_headers,
            message_event=event,
            expect_100_continue=False,
            keep_alive=not self.is_last,
            on_response=self._answered,
        )
        self.cycle.body += exchange.body
        self.cycle.more_body = False
        self._start_asgi_task(self.cycle, self.app)

    def _answered(self) -> None:
        """The first that waited has its answer."""
        self.server_state.total_requests += 1
        self._answering = False
        if not self._waiting:
            return  # the connection was lost
        exchange = self._waiting.popleft()
        self._buffered -= exchange.size
        self.service.buffered_bytes -= exchange.size
        if self.transport.is_closing():
            self._waiting.clear()
            return
        if self._refusal is not None and not self._waiting:
            self._refuse(self._refusal)
            return
        if self._draining and not self._waiting and self._phase == _IDLE:
            self.transport.close()
            return
        if len(self._waiting) < _MOST_WAITING:
            self.flow.resume_reading()
        if self._waiting:
            # Later, so that the answers of many requests at once do not nest in one another.
            self.loop.call_soon(self._go_on)
        elif self._phase == _IDLE and not self.flow.write_paused:
            self.deadline = self.loop.time() + self.service.settings.idle_timeout_s

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
        problem = problem_of(error)
        request_id = self.service.request_ids.next()
        self.service.http_metrics.answered(REFUSED_ROUTE, "", problem.status, 0)
        log.info("refused", extra={"fields": {"code": problem.code, "request_id": request_id}})
        self.transport.write(self.replies.problem(problem, request_id, close=True))
        self._phase = _LINGER
        self.flow.resume_reading()
        self.deadline = self.loop.time() + _LINGER_S
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _scope(
        self, method: bytes, url: bytes, http_version: str, headers: list[tuple[bytes, bytes]]
    ) -> Any:
        parsed = httptools.parse_url(url)
        raw_path = parsed.path or b"/"
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": http_version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": method.decode("ascii"),
            "root_path": self.root_path,
            "path": decoded_path(raw_path),
            "raw_path": raw_path,
            "query_string": parsed.query or b"",
            "headers": headers,
            "state": self.app_state.copy(),
        }


class _WritingOnly(FlowControl):
    """The flow of a connection for one request of it, whose body is there already: when to read
    on is not its concern."""

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow

    @property
    def write_paused(self) -> bool:  # type: ignore[override]
        return self._flow.write_paused

    async def drain(self) -> None:
        await self._flow.drain()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def decoded_path(raw: bytes) -> str:
    """A path without its percent signs, but for that of a slash: `a%2Fb` is one part of a path,
    and must not become two."""
    text = raw.decode("latin-1")
    if "%" not in text:
        return text
    return unquote(text.replace("%2F", "%252F").replace("%2f", "%252f"))
