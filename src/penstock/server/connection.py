"""HTTP/1.1 on one connection: read whole requests within limits, send replies in order.

Parser callbacks do not raise: they record a refusal, which is sent after the parser has returned.
Pipelined requests are answered one after the other.

One connection may use only a part of a turn of the event loop. Received bytes are parsed in small
pieces. After a number of pieces or requests, reading is paused, and the next turn continues.

The parser stops after the head of a request with an `Upgrade` header. Only upgrades to WebSocket
are accepted. Any other upgrade is ignored, and a new parser reads the body and further requests.
"""

import asyncio
import logging
from collections import deque
from typing import Any

import httptools

from penstock.broker.limits import SMALL_BYTES
from penstock.errors import Overloaded, PenstockError
from penstock.server.call import Call
from penstock.server.http_metrics import REFUSED_ROUTE
from penstock.server.listening import peer_address
from penstock.server.problems import (
    BodyCompressed,
    BodyTooLarge,
    HeadersTooLarge,
    Refused,
    RequestTooSlow,
    UrlTooLong,
    in_format_of,
    problem_of,
)
from penstock.server.replies import CONTINUE
from penstock.server.service import Service
from penstock.server.ticks import NEVER
from penstock.server.ws.protocol import WebSocketProtocol

log = logging.getLogger("penstock.server")

_IDLE, _HEAD, _BODY, _LINGER = range(4)
_MOST_WAITING = 32  # pipelined requests of one connection; then reading is paused
_PIECE_BYTES = 4096  # parsed at a time: about 120 of the smallest requests, or 700 chunks
_PIECES_PER_TURN = 8  # of one connection
_REQUESTS_PER_TURN = 32  # started, of one connection
_LINGER_S = 2.0  # after a refusal, received bytes are discarded for this long
_BODY_BYTES_PER_S = 64 * 1024  # minimum rate of a body that takes longer than its time limit
_MOST_CORKED_BYTES = 64 * 1024
_METHODS = {
    name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
}
# If such a header is repeated, a proxy and this server may use different ones.
_ONLY_ONCE = frozenset(
    {
        b"host",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
        b"authorization",
        b"x-api-key",
        b"expect",
        b"origin",
    }
)


class Connection(asyncio.Protocol):
    """One HTTP connection."""

    __slots__ = (
        "_answering",
        "_at_body",
        "_body_until",
        "_buffered",
        "_corked",
        "_corked_bytes",
        "_expects_continue",
        "_got_last_request",
        "_head_bytes",
        "_header_bytes",
        "_headers",
        "_is_answering",
        "_is_ending",
        "_is_half_closed",
        "_is_reading",
        "_is_yielding",
        "_lease",
        "_messages",
        "_parser",
        "_phase",
        "_pieces",
        "_reading",
        "_refusal",
        "_started",
        "_unread",
        "_unsent",
        "_url",
        "_waiting",
        "_writing",
        "deadline",
        "is_draining",
        "is_read_paused",
        "is_tls",
        "is_write_paused",
        "loop",
        "peer",
        "service",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self.service = service
        self.loop = loop
        self.peer: str | None = None  # the client's address, if it has one
        self.is_tls = False
        self.deadline = NEVER
        self.is_draining = False  # no new requests are accepted
        self.is_read_paused = self.is_write_paused = False
        self._parser = self._new_parser()
        self._phase = _IDLE
        self._unread = memoryview(b"")  # received, not parsed yet; reading is paused
        self._pieces = self._started = 0  # pieces parsed and requests started in this turn
        self._is_reading = False  # `_read_on` runs
        self._is_yielding = False  # `_next_turn` is scheduled
        self._messages = 0  # number of requests whose first byte arrived
        self._url = b""  # of the latest request
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0  # of the headers and trailers read so far
        self._head_bytes = 0  # received since the first part of an incomplete head
        self._body_until = 0.0
        self._refusal: PenstockError | None = None
        self._at_body = False  # the body follows, after an ignored upgrade
        self._expects_continue = False
        self._got_last_request = False
        self._reading: Call | None = None  # the request whose body is being read
        self._waiting: deque[Call] = deque()  # without a reply yet; the first is being answered
        self._answering: Call | None = None
        self._is_answering = False  # `_answer_waiting` runs
        self._is_half_closed = False  # the client has closed its sending side
        self._lease: asyncio.Future[Any] | None = None  # of the request being answered
        self._buffered = 0  # bytes of bodies that this connection added to service.held
        self._unsent = 0  # the same, of a reply that the client has not read yet
        self._writing = 0  # bytes that are being written
        self._corked: list[bytes] = []  # replies to send at the end of the loop's turn
        self._corked_bytes = 0
        self._is_ending = False  # the connection is closed after the last reply

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # Data after the last request is ignored in `_ignores_data`, not an error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    @property
    def is_closed(self) -> bool:
        """Return whether the connection is closed or closing: no reply can be sent."""
        return self.transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Return whether no request is being read or answered."""
        return self._phase == _IDLE and not self._waiting and not self._unread

    @property
    def is_last(self) -> bool:
        """Return whether the connection is closed after the current reply."""
        waiting = self._waiting
        return not waiting[0].keep_alive or (
            self.is_draining and len(waiting) == 1 and not self._unread
        )

    # -- the connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.peer = peer_address(transport)
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        service = self.service
        service.connections.add(self)
        self._set_deadline()
        service.ticks.watch(self)
        if service.connection_count > service.settings.max_connections:
            most = service.settings.max_connections
            self._refuse(Overloaded(f"{most} connections are open (max_connections): retry later"))
            transport.close()  # at once: no received bytes could reset the connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._waiting.clear()
        self._corked.clear()
        self._unread = memoryview(b"")
        self._reading = None
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    def _leave(self) -> None:
        """Unregister this object: the connection is closed or became a WebSocket."""
        service = self.service
        service.connections.discard(self)
        service.held.bytes -= self._buffered + self._unsent
        self._buffered = self._unsent = 0
        self.deadline = NEVER
        service.ticks.forget(self)

    def eof_received(self) -> bool:
        """Answer the requests received so far, then close. Its lease stops waiting."""
        self.flush()
        if self.is_tls:
            return False  # close; a TLS connection cannot be half closed
        if not self._unread and (not self._waiting or self._phase != _IDLE):
            return False
        self._is_half_closed = True
        if self._lease is not None:
            self.service.broker.waiting.end_wait(self._lease)
        self.shutdown()
        return True

    def shutdown(self) -> None:
        """Answer the requests received so far, then close. Accept no new ones."""
        self.is_draining = True
        if self.is_idle:
            self._close()

    def _close(self) -> None:
        self.flush()
        self.transport.close()

    def wait_for(self, lease: "asyncio.Future[Any]") -> None:
        """Cancel the lease if the connection is lost; end its wait if it is half closed."""
        self._lease = lease
        if self._is_half_closed:
            self.service.broker.waiting.end_wait(lease)

    def deadline_passed(self) -> None:
        """Refuse or close a slow connection. Called by `Ticks`."""
        if self._phase == _LINGER or self.is_write_paused:
            self.transport.abort()  # the client does not read its reply
        elif self.is_read_paused:
            self._set_deadline()  # the server did not read, so the client is not slow
        elif self._phase in (_HEAD, _BODY):
            what = "headers" if self._phase == _HEAD else "body"
            self._refuse(RequestTooSlow(f"the {what} took too long to arrive"))
        else:
            self._close()

    def _set_deadline(self) -> None:
        """Set the deadline of the current phase, starting now."""
        settings, now = self.service.settings, self.loop.time()
        if self._phase == _HEAD:
            self.deadline = now + settings.header_timeout_s
        elif self._phase == _BODY:
            self.deadline = now + settings.body_timeout_s
        elif self._waiting:
            self.deadline = NEVER
        else:
            self.deadline = now + settings.idle_timeout_s

    # -- reading -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._ignores_data():
            return
        if self._unread or self._is_yielding or self._is_reading:
            self._unread = memoryview(bytes(self._unread) + data)
        elif len(data) <= _PIECE_BYTES and self._pieces < _PIECES_PER_TURN:
            self._pieces += 1
            self._parse(data)
        else:
            self._unread = memoryview(data)
            self._read_on()

    def _ignores_data(self) -> bool:
        return self._phase == _LINGER or self._got_last_request or self._refusal is not None

    def _read_on(self) -> None:
        """Parse the unread bytes in pieces, as many as this turn of the loop allows."""
        self._is_reading = True
        try:
            while (
                self._unread
                and not (self._is_yielding or self.is_closed)
                and len(self._waiting) < _MOST_WAITING
            ):
                if self._pieces >= _PIECES_PER_TURN:
                    self._yield_turn()
                    break
                self._pieces += 1
                size = self._piece_bytes()
                piece, self._unread = self._unread[:size], self._unread[size:]
                self._parse(piece)
                if self._ignores_data():
                    self._unread = memoryview(b"")
        finally:
            self._is_reading = False
        if self.is_draining and self.is_idle:
            self._close()
        self._resume_reading()

    def _piece_bytes(self) -> int:
        """Return the size of the next piece. The rest of a body with a known length is one."""
        call = self._reading
        if call is None or self._at_body:
            return _PIECE_BYTES
        length = int(call.headers.get(b"content-length", b"0"))
        return max(_PIECE_BYTES, length - call.size)

    def _yield_turn(self) -> None:
        """Continue in the next turn of the loop, after the other connections had theirs."""
        if not self._is_yielding:
            self._is_yielding = True
            self._pause_reading()
            self.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_yielding = False
        self._pieces = self._started = 0
        if self.is_closed:
            return
        if self._waiting:
            self._answer_waiting()
        self._read_on()

    def _parse(self, data: bytes | memoryview) -> None:
        phase = self._phase
        before = self._messages
        in_head = phase == _HEAD
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            log.error("a parser callback failed", exc_info=error.__context__ or error)
            self._refusal = PenstockError("something went wrong inside the server")
        except httptools.HttpParserError as error:
            if self._refusal is None and not self._got_last_request:
                self._refusal = Refused(f"the request is not valid HTTP: {error}")
        if self._waiting:
            self._answer_waiting()
        phase = self._phase
        if phase == _IDLE and self._refusal is None:
            return
        is_same = in_head and phase == _HEAD and self._messages == before
        if is_same:
            # The parser holds an incomplete header in memory; `on_header` has not counted it.
            self._head_bytes += len(data)
        if phase != _LINGER:
            self._check_header_bytes()
        if self._refusal is not None:
            if phase != _LINGER:
                self._refuse(self._refusal)
        elif phase == _HEAD and not is_same:
            self.deadline = self.loop.time() + self.service.settings.header_timeout_s
        elif phase == _BODY and self._reading is not None:
            if self._messages != before or in_head:
                self._body_until = self.loop.time() + self.service.settings.body_timeout_s
            self.deadline = self._body_until + self._reading.size / _BODY_BYTES_PER_S
            self._send_continue()

    def _feed(self, data: bytes | memoryview) -> None:
        """Pass data to the parser, up to an upgrade to WebSocket."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                if self._refusal is not None:
                    return
                if not self._at_body:
                    self._upgrade(bytes(data[stopped.args[0] :]))
                    return
                data = data[stopped.args[0] :]
                self._read_body_anew()
            else:
                return

    def _read_body_anew(self) -> None:
        """Read the body of a request whose upgrade is ignored, with a new parser."""
        assert self._reading is not None
        headers = self._reading.headers
        framing = b"transfer-encoding" if b"transfer-encoding" in headers else b"content-length"
        self._parser = self._new_parser()
        self._parser.feed_data(
            b"POST / HTTP/1.1\r\n%s: %s\r\n\r\n" % (framing, headers.get(framing, b"0"))
        )

    def _send_continue(self) -> None:
        """Send 100 Continue if the client waits for it and earlier requests are answered."""
        if (
            self._expects_continue
            and not (self._waiting or self._unread)  # unread bytes belong to the body
            and not self.is_closed
        ):
            self._expects_continue = False
            self.flush()
            self.transport.write(CONTINUE)

    def _refuse(self, error: PenstockError) -> None:
        """Reply with an error and close, after the earlier requests are answered.

        Received bytes are discarded for a moment. If a socket is closed with unread bytes, the
        connection is reset, and the client does not see the reply.
        """
        self._refusal = error
        self._reading = None
        self._unread = memoryview(b"")
        if self._waiting:
            self._pause_reading()
            self.deadline = NEVER
            return
        if self.is_closed or self._is_ending:
            return
        self.flush()
        service = self.service
        problem = in_format_of(self._url, problem_of(error))
        request_id = service.request_id()
        service.http_metrics.answered(REFUSED_ROUTE, "", problem.status, 0)
        fields = {"code": problem.code, "request_id": request_id.decode()}
        log.info("refused", extra={"fields": fields})
        # Before the URL was read, the parser has no method, or that of an earlier request.
        is_head = self._url != b"" and self._parser.get_method() == b"HEAD"
        self.transport.write(service.replies.refusal(problem, request_id, is_head=is_head))
        self._phase = _LINGER
        self._resume_reading()
        self.deadline = self.loop.time() + _LINGER_S
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _pause_reading(self) -> None:
        if not self.is_read_paused:
            self.is_read_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        """Read again, unless requests or bytes that were received have to be handled first."""
        if (
            not self.is_read_paused
            or self._is_reading
            or self._is_yielding
            or self.is_closed
            or len(self._waiting) >= _MOST_WAITING
            or (self._refusal is not None and self._phase != _LINGER)
        ):
            return
        if self._unread:
            self._yield_turn()
        else:
            self.is_read_paused = False
            self.transport.resume_reading()

    # -- called by the parser ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._at_body or self._got_last_request:
            return
        self._messages += 1
        self._phase = _HEAD
        self._header_bytes = self._head_bytes = 0
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        if self._at_body or self._got_last_request:
            return
        self._url = url = self._url + url if self._url else url
        limit = self.service.settings.max_url_bytes
        if len(url) > limit and self._refusal is None:
            self._refusal = UrlTooLong(f"a URL has at most {limit} bytes (max_url_bytes)")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._at_body:
            return
        self._header_bytes += len(name) + len(value) + 4
        if self._phase == _HEAD:  # trailers are ignored
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._at_body:
            self._at_body = False  # this was the head made by `_read_body_anew`
            return
        if self._got_last_request:
            return
        self._check_header_bytes()
        if self._refusal is not None:
            return
        parser, header_list = self._parser, self._headers
        version = parser.get_http_version()
        headers = dict(header_list)
        self._refusal = judge_head(headers, header_list, version, self.service)
        if self._refusal is not None:
            return
        method = parser.get_method()
        method = _METHODS.get(method) or method.decode("ascii")
        keep_alive = version == "1.1" and parser.should_keep_alive()
        if parser.should_upgrade():
            if _is_websocket(header_list):
                if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
                    self._refusal = Refused("a WebSocket handshake has no body")
                    return
            elif method == "CONNECT":
                keep_alive = False  # the following bytes are not HTTP
            else:
                self._at_body = True
        self._phase = _BODY
        self._reading = Call(self, method, self._url, header_list, headers, keep_alive)
        expected = headers.get(b"expect")
        if expected is not None:
            self._expects_continue = expected.lower() == b"100-continue"

    def _check_header_bytes(self) -> None:
        settings = self.service.settings
        most_bytes = settings.max_header_bytes
        if self._refusal is None and (
            self._header_bytes > most_bytes
            or self._head_bytes > most_bytes
            or len(self._headers) > settings.max_headers
        ):
            self._refusal = HeadersTooLarge(
                f"a request has at most {settings.max_headers} headers (max_headers) with together "
                f"at most {settings.max_header_bytes} bytes (max_header_bytes)"
            )

    def on_body(self, body: bytes) -> None:
        call = self._reading
        if call is None or self._refusal is not None:
            return
        call.add(body)
        self._buffered += len(body)
        held = self.service.held
        held.bytes += len(body)
        max_body_bytes = self.service.settings.max_body_bytes
        if call.size > max_body_bytes:
            self._refusal = _too_large(max_body_bytes)
        elif not held.has_room_for_body(call.size):
            self._refusal = _no_room()

    def on_message_complete(self) -> None:
        if self._at_body:
            return  # only the head was read: `_read_body_anew` comes next
        call, self._reading = self._reading, None
        if self._header_bytes > self.service.settings.max_header_bytes:
            self._check_header_bytes()  # of trailers
        if call is None or self._refusal is not None:
            return
        self._phase = _IDLE
        self.deadline = NEVER
        self._expects_continue = False
        if self._parser.should_upgrade() and _is_websocket(call.header_list):
            return  # `_upgrade` comes next
        self._got_last_request = not call.keep_alive
        self._waiting.append(call)
        if len(self._waiting) >= _MOST_WAITING:
            self._pause_reading()

    def _upgrade(self, rest: bytes) -> None:
        """Become a WebSocket. `rest` follows the handshake."""
        if not _is_websocket(self._headers):
            return  # CONNECT, handled as an ordinary request
        self._answer_waiting()
        if self._waiting or self.is_draining:
            self._refusal = Refused("a WebSocket needs a connection without pending requests")
            return
        self.flush()
        self._leave()
        rest += self._unread
        self._unread = memoryview(b"")
        if self.is_read_paused:
            self.is_read_paused = False
            self.transport.resume_reading()
        method = self._parser.get_method().decode("ascii")
        protocol = WebSocketProtocol(self.service, self.loop)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.handshake(method, self._url, self._headers)
        if rest and not self.is_closed:
            protocol.data_received(rest)

    # -- replying ----------------------------------------------------------------------------------

    def _answer_waiting(self) -> None:
        """Answer waiting requests in order, until one cannot be answered at once."""
        waiting = self._waiting
        self._is_answering = True
        try:
            while (
                waiting
                and self._answering is None
                and not (self.is_write_paused or self._is_ending or self.is_closed)
            ):
                if self._started >= _REQUESTS_PER_TURN:
                    self._yield_turn()
                    return
                self._started += 1
                call = self._answering = waiting[0]
                call.start()
        finally:
            self._is_answering = False

    def reply(self, data: bytes, body: bytes = b"", *, is_last: bool = False) -> None:
        """Send the reply to the first waiting request. A large `body` is sent without a copy."""
        if not self._corked and not body:
            self.service.cork(self)
        self._corked.append(data)
        self._corked_bytes += len(data)
        if body or self._corked_bytes > _MOST_CORKED_BYTES:
            self.flush()
            if body:
                self._write(body)
        if is_last:
            self._is_ending = True
            if body or not self._corked:
                self._close()
        self._answered()

    def end_turn(self) -> None:
        """Send the corked replies at the end of a turn of the loop."""
        self._pieces = self._started = 0
        self.flush()

    def flush(self) -> None:
        """Send the corked replies."""
        corked = self._corked
        if corked and not self.is_closed:
            data = corked[0] if len(corked) == 1 else b"".join(corked)
            self._corked = []
            self._corked_bytes = 0
            self._write(data)
            if self._is_ending and not self.is_closed:
                self._close()

    def _write(self, data: bytes) -> None:
        """Write. The whole size counts: a transport keeps all data until the last byte is sent."""
        if not self.transport.is_closing():
            self._writing = len(data)
            self.transport.write(data)
            self._writing = 0

    def _answered(self) -> None:
        """Remove the first waiting request, which has its reply, and continue with the next."""
        self._answering = None
        self._lease = None
        waiting = self._waiting
        if not waiting:
            return  # the connection was lost
        call = waiting.popleft()
        if call.size:
            self._buffered -= call.size
            self.service.held.bytes -= call.size
        if self.is_closed or self._is_ending:
            self._drop_waiting()
            return
        if waiting:
            self._resume_reading()
            if not self._is_answering:
                self._answer_waiting()
            return
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif self.is_draining and self.is_idle:
            self._close()
        else:
            self._resume_reading()
            if self._phase == _IDLE:
                if not self.is_write_paused:
                    self.deadline = self.loop.time() + self.service.settings.idle_timeout_s
            elif self._expects_continue:
                self._send_continue()

    def _drop_waiting(self) -> None:
        """Drop requests that arrived after the last one that is answered."""
        size = sum(call.size for call in self._waiting)
        self._buffered -= size
        self.service.held.bytes -= size
        self._waiting.clear()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._unsent = max(self.transport.get_write_buffer_size(), self._writing)
        self.service.held.bytes += self._unsent
        self.deadline = self.loop.time() + self.service.settings.idle_timeout_s

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self.service.held.bytes -= self._unsent
        self._unsent = 0
        self._set_deadline()
        if self._waiting:
            self._answer_waiting()


def judge_head(
    headers: dict[bytes, bytes],
    header_list: list[tuple[bytes, bytes]],
    version: str,
    service: Service,
) -> PenstockError | None:
    """Return the reason to refuse a request before its body is read; None to accept it."""
    if len(headers) < len(header_list):
        seen = set()
        for name, _ in header_list:
            if name in seen and name in _ONLY_ONCE:
                return Refused(f"the header {name.decode()} is given twice")
            seen.add(name)
    if version == "1.1":
        if b"host" not in headers:
            return Refused("the Host header is missing")
    elif version != "1.0":
        return Refused(f"HTTP/{version} is not supported; use HTTP/1.1")
    encoding = headers.get(b"content-encoding")
    transfer = headers.get(b"transfer-encoding")
    if (encoding is not None and encoding.lower() != b"identity") or (
        transfer is not None and transfer.strip().lower() != b"chunked"
    ):
        return BodyCompressed("compressed bodies are not supported: send the body uncompressed")
    length = headers.get(b"content-length")
    if length is None:
        return None
    if not length.isdigit():
        return Refused("the Content-Length is not a number")
    max_body_bytes = service.settings.max_body_bytes
    if len(length) > 18 or int(length) > max_body_bytes:
        return _too_large(max_body_bytes)
    if int(length) > SMALL_BYTES and not service.held.has_room_for_body(int(length)):
        return _no_room()
    return None


def _is_websocket(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a request asks for an upgrade to WebSocket only."""
    upgrade, connection = b"", []
    for name, value in headers:
        if name == b"connection":
            connection = [token.strip().lower() for token in value.split(b",")]
        elif name == b"upgrade":
            upgrade = value.lower()
    return upgrade == b"websocket" and b"upgrade" in connection


def _too_large(max_body_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"a body has at most {max_body_bytes} bytes (max_body_bytes): send less at a time"
    )


def _no_room() -> Overloaded:
    return Overloaded(
        "requests and answers use all of their memory (max_buffered_bytes): retry in a moment"
    )
