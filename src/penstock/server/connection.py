# cython: annotation_typing=False
"""HTTP/1.1 on one connection: read requests, answer them in order, and keep to the time limits.

One connection may use only a part of a turn of the event loop. Received bytes are parsed in small
pieces. After a number of pieces or requests, reading is paused, and the next turn continues.
"""

import asyncio
import logging
from typing import Any, cast

from penstock.errors import Overloaded, PenstockError, Unavailable
from penstock.model import LeasedMessage
from penstock.server.call import Call
from penstock.server.http_metrics import REFUSED_ROUTE
from penstock.server.listening import delivery_of, has_ended, peer_address
from penstock.server.problems import NoSuchRoute, RequestTooSlow, in_format_of, problem_of
from penstock.server.replies import CONTINUE
from penstock.server.request_reader import BODY, HEAD, IDLE, LINGER, RequestReader
from penstock.server.routes import RouteTable
from penstock.server.service import Service
from penstock.server.ticks import NEVER
from penstock.server.ws.protocol import WebSocketProtocol

log = logging.getLogger("penstock.server")

_MOST_WAITING = 32  # pipelined requests of one connection; then reading is paused
_PIECE_BYTES = 4096  # parsed at a time: about 120 of the smallest requests, or 700 chunks
_PIECES_PER_TURN = 8  # of one connection
_REQUESTS_PER_TURN = 32  # started, of one connection
_LINGER_S = 2.0  # after a refusal, received bytes are discarded for this long
_BODY_BYTES_PER_S = 64 * 1024  # minimum rate of a body that takes longer than its time limit
_MOST_CORKED_BYTES = 64 * 1024
_STALLED = 0.05  # share of `shutdown_s`: while the server stops, a request must not pause longer
_NOTHING = memoryview(b"")


class Connection:
    """One HTTP connection: a protocol of asyncio."""

    __slots__ = (
        "_answering",
        "_body_until",
        "_corked",
        "_corked_bytes",
        "_is_answering",
        "_is_confirming",
        "_is_ending",
        "_is_half_closed",
        "_is_reading",
        "_is_yielding",
        "_lease",
        "_pieces",
        "_reader",
        "_started",
        "_unconfirmed",
        "_unconfirmed_at",
        "_unread",
        "_unsent",
        "_upgrade_rest",
        "_writing",
        "deadline",
        "is_draining",
        "is_read_paused",
        "is_tls",
        "is_write_paused",
        "loop",
        "peer",
        "routes",
        "service",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(
        self, service: Service, loop: asyncio.AbstractEventLoop, routes: RouteTable | None = None
    ) -> None:
        """`routes`: instead of those of the service."""
        self.service = service
        self.routes = routes or service.routes
        self.loop = loop
        self.peer: str | None = None  # the client's address, if it has one
        self.is_tls = False
        self.deadline = NEVER
        self.is_draining = False  # no new requests are accepted
        self.is_read_paused = self.is_write_paused = False
        self._reader = RequestReader(self, service)
        self._unread = _NOTHING  # received, not parsed yet; reading is paused
        self._pieces = self._started = 0  # pieces parsed and requests started in this turn
        self._is_reading = False  # `_read_on` runs
        self._is_yielding = False  # `_next_turn` is scheduled
        self._body_until = 0.0
        self._answering: Call | None = None
        self._is_answering = False  # `_answer_waiting` runs
        self._is_half_closed = False  # the client has closed its sending side
        self._lease: asyncio.Future[Any] | None = None  # of the request being answered
        self._unconfirmed: list[LeasedMessage] = []  # sent after the client's last bytes
        self._unconfirmed_at = 0.0  # when the last of them was sent
        self._is_confirming = False  # `_check_delivery` decides when to close
        self._upgrade_rest: bytes | None = None  # follows a handshake that waits for its turn
        self._unsent = 0  # bytes of a reply that the client has not read yet, in service.held
        self._writing = 0  # bytes that are being written
        self._corked: list[bytes] = []  # replies to send at the end of the loop's turn
        self._corked_bytes = 0
        self._is_ending = False  # the connection is closed after the last reply

    @property
    def is_closed(self) -> bool:
        """Return whether the connection is closed or closing: no reply can be sent."""
        return self.transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Return whether no request is being read or answered."""
        reader = self._reader
        is_between = reader.phase == IDLE or self._is_half_closed  # the rest will not come
        return is_between and not reader.waiting and not self._unread

    @property
    def is_last(self) -> bool:
        """Return whether the connection is closed after the current reply."""
        waiting = self._reader.waiting
        return not waiting[0].keep_alive or (
            self.is_draining and len(waiting) == 1 and not self._unread
        )

    # -- the connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
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
        elif service.is_stopping:  # it was accepted just before that
            self.is_draining = True
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if (
            exc is not None
            and self._is_half_closed  # else it may have been reset after the reply was read
            and self.loop.time() < self._unconfirmed_at + _LINGER_S
        ):
            self._release_unconfirmed()  # reset, or the reply could not be written
        self._reader.waiting.clear()
        self._reader.call = None
        self._corked.clear()
        self._unread = _NOTHING
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    def _leave(self) -> None:
        """Unregister this object: the connection is closed or became a WebSocket."""
        service = self.service
        service.connections.discard(self)
        service.held.bytes -= self._reader.buffered + self._unsent
        self._reader.buffered = self._unsent = 0
        self.deadline = NEVER
        service.ticks.forget(self)

    def eof_received(self) -> bool:
        """Answer the requests received so far, then close. Its lease stops waiting."""
        self.flush()
        if self.is_tls:
            return False  # close; a TLS connection cannot be half closed
        if not self._unread and not self._reader.waiting:
            self._is_half_closed = bool(self._unconfirmed)
            if self._is_half_closed:
                self._close()
            return self._is_half_closed
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
        elif self._reader.phase in (HEAD, BODY) and not self._reader.waiting:
            self.deadline = min(self.deadline, self._stalled_at())

    def _stalled_at(self) -> float:
        """Return until when the next bytes of a request must arrive while the server stops."""
        return self.loop.time() + self.service.settings.shutdown_s * _STALLED

    def _close(self) -> None:
        self.flush()
        if (
            self._is_half_closed
            and self._unconfirmed
            and not self._is_confirming
            and not delivery_of(self.transport)
        ):
            self._is_confirming = self._is_ending = True
            self._unconfirmed_at = self.deadline = self.loop.time()  # checked at each tick
            self.transport.write_eof()
        else:
            self.transport.close()

    def confirm_delivery(self, leased: list[LeasedMessage]) -> None:
        """Release these messages if the client turns out to be gone when it is sent the reply.

        A client that closed its connection is at first like one that closed only its sending side.
        The reply shows the difference: the system of a client that is gone resets the connection.
        """
        self._unconfirmed += leased
        self._unconfirmed_at = self.loop.time()

    def _check_delivery(self) -> None:
        was_taken = delivery_of(self.transport)
        if was_taken is None and self.loop.time() < self._unconfirmed_at + _LINGER_S:
            return
        if was_taken is False:
            self._release_unconfirmed()
        self._unconfirmed_at = 0.0
        self.transport.abort()

    def _release_unconfirmed(self) -> None:
        leased, self._unconfirmed = self._unconfirmed, []
        self.service.broker.give_back(leased)

    def wait_for(self, lease: "asyncio.Future[Any]") -> None:
        """Cancel the lease if the connection is lost; end its wait if it is half closed."""
        self._lease = lease
        if self._is_half_closed:
            self.service.broker.waiting.end_wait(lease)

    def deadline_passed(self) -> None:
        """Refuse or close a slow connection. Called by `Ticks`."""
        phase = self._reader.phase
        if self._is_confirming:
            self._check_delivery()
        elif phase == LINGER or self.is_write_paused:
            self.transport.abort()  # the client does not read its reply
        elif self.is_read_paused:
            self._set_deadline()  # the server did not read, so the client is not slow
        elif phase in (HEAD, BODY) and self.service.is_stopping:
            self._refuse(Unavailable("the server is stopping: retry in a moment"))
            if not self._reader.waiting:
                self.transport.close()  # at once, as above: nothing was received for a while
        elif phase in (HEAD, BODY):
            what = "headers" if phase == HEAD else "body"
            self._refuse(RequestTooSlow(f"the {what} took too long to arrive"))
        else:
            self._close()

    def _set_deadline(self) -> None:
        """Set the deadline of the current phase, starting now."""
        settings, now, phase = self.service.settings, self.loop.time(), self._reader.phase
        if phase == HEAD:
            self.deadline = now + settings.header_timeout_s
        elif phase == BODY:
            self.deadline = now + settings.body_timeout_s
        elif self._reader.waiting:
            self.deadline = NEVER
        else:
            self.deadline = now + settings.idle_timeout_s
        if self.service.is_stopping and phase in (HEAD, BODY):
            self.deadline = min(self.deadline, self._stalled_at())

    # -- reading -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._unconfirmed:
            self._unconfirmed = []  # the client lives
        if self._ignores_data():
            return
        if self._unread or self._is_yielding or self._is_reading or self._upgrade_rest is not None:
            self._unread = memoryview(bytes(self._unread) + data)
        elif len(data) <= _PIECE_BYTES and self._pieces < _PIECES_PER_TURN:
            self._pieces += 1
            self._parse(data)
        else:
            self._unread = memoryview(data)
            self._read_on()

    def _ignores_data(self) -> bool:
        reader = self._reader
        return reader.phase == LINGER or reader.got_last_request or reader.refusal is not None

    def _read_on(self) -> None:
        """Parse the unread bytes in pieces, as many as this turn of the loop allows."""
        self._is_reading = True
        try:
            while (
                self._unread
                and not (self._is_yielding or self.is_closed)
                and self._upgrade_rest is None
                and len(self._reader.waiting) < _MOST_WAITING
            ):
                if self._pieces >= _PIECES_PER_TURN:
                    self._yield_turn()
                    break
                self._pieces += 1
                size = self._reader.piece_bytes(_PIECE_BYTES)
                piece, self._unread = self._unread[:size], self._unread[size:]
                self._parse(piece)
                if self._ignores_data():
                    self._unread = _NOTHING
        finally:
            self._is_reading = False
        if self.is_draining and self.is_idle:
            self._close()
        self._resume_reading()

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
        if self._reader.waiting:
            self._answer_waiting()
        self._read_on()

    def _parse(self, data: bytes | memoryview) -> None:
        reader = self._reader
        was_in_head, before = reader.phase == HEAD, reader.messages
        rest = reader.feed(data)
        if rest is not None:
            self._upgrade(rest)
        if reader.waiting:
            if reader.phase == IDLE:
                self.deadline = NEVER  # until they are answered
            if len(reader.waiting) >= _MOST_WAITING:
                self._pause_reading()
            self._answer_waiting()
        if reader.phase != IDLE or reader.refusal is not None:
            self._check_unfinished(len(data), was_in_head, before)

    def _check_unfinished(self, size: int, was_in_head: bool, before: int) -> None:
        """Check the limits of a request of which `size` bytes arrived, but not the last ones.

        `was_in_head` and `before` (the number of requests) are from before these bytes.
        """
        reader = self._reader
        phase = reader.phase
        if phase == LINGER:
            return
        is_same = reader.messages == before
        if is_same and was_in_head and phase == HEAD:
            # The parser holds an incomplete header in memory; it has not been counted yet.
            reader.head_bytes += size
        elif is_same and phase == BODY:
            reader.body_bytes += size
            reader.check_overhead()
        reader.check_header_bytes()
        if reader.refusal is not None:
            self._refuse(reader.refusal)
        elif phase == HEAD:
            if not (is_same and was_in_head):
                self.deadline = self.loop.time() + self.service.settings.header_timeout_s
        elif phase == BODY and reader.call is not None:
            if not is_same or was_in_head:
                self._body_until = self.loop.time() + self.service.settings.body_timeout_s
            self.deadline = self._body_until + reader.call.size / _BODY_BYTES_PER_S
            self._send_continue()
        if self.service.is_stopping and phase in (HEAD, BODY):
            self.deadline = self._stalled_at()

    def _send_continue(self) -> None:
        """Send 100 Continue if the client waits for it and earlier requests are answered."""
        if (
            self._reader.expects_continue
            and not (self._reader.waiting or self._unread)  # unread bytes belong to the body
            and not self.is_closed
        ):
            self._reader.expects_continue = False
            self.flush()
            self.transport.write(CONTINUE)

    def _refuse(self, error: PenstockError) -> None:
        """Reply with an error and close, after the earlier requests are answered.

        Received bytes are discarded for a moment. If a socket is closed with unread bytes, the
        connection is reset, and the client does not see the reply.
        """
        reader = self._reader
        reader.refusal = error
        reader.call = None
        self._unread = _NOTHING
        if reader.waiting:
            self._pause_reading()
            self.deadline = NEVER
            return
        if self.is_closed or self._is_ending:
            return
        self.flush()
        service = self.service
        problem = in_format_of(reader.url, problem_of(error))
        request_id = service.request_id()
        service.http_metrics.answered(REFUSED_ROUTE, "", problem.status, 0)
        fields = {"code": problem.code, "request_id": request_id.decode()}
        log.info("refused", extra={"fields": fields})
        is_head = reader.method == "HEAD"
        self.transport.write(service.replies.refusal(problem, request_id, is_head=is_head))
        reader.phase = LINGER
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
            or len(self._reader.waiting) >= _MOST_WAITING
            or self._upgrade_rest is not None
            or (self._reader.refusal is not None and self._reader.phase != LINGER)
        ):
            return
        if self._unread:
            self._yield_turn()
        else:
            self.is_read_paused = False
            self.transport.resume_reading()

    def _upgrade(self, rest: bytes) -> None:
        """Become a WebSocket after the earlier requests are answered. `rest` follows the handshake.

        Reading is paused until then.
        """
        self._upgrade_rest = rest
        self._pause_reading()
        if self._reader.waiting:
            self._answer_waiting()  # the last reply calls `_become_websocket`
        else:
            self._become_websocket(rest)

    def _become_websocket(self, rest: bytes) -> None:
        reader = self._reader
        self._upgrade_rest = None
        if self.is_draining:
            self._refuse(Unavailable("the server is stopping: retry in a moment"))
            return
        if self.routes is not self.service.routes:
            self._refuse(NoSuchRoute("this address has no WebSockets"))
            return
        self.flush()
        self._leave()
        rest += self._unread
        self._unread = _NOTHING
        if self.is_read_paused:
            self.is_read_paused = False
            self.transport.resume_reading()
        protocol = WebSocketProtocol(self.service, self.loop)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.handshake(reader.method, reader.url, reader.header_list)
        if rest and not self.is_closed:
            protocol.data_received(rest)

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Let another protocol answer the current request, and close. Drop later requests."""
        self.flush()
        self._drop_waiting()
        self._leave()
        self._unread = _NOTHING
        if self.is_read_paused:
            self.is_read_paused = False
            self.transport.resume_reading()
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)

    # -- replying ----------------------------------------------------------------------------------

    def _answer_waiting(self) -> None:
        """Answer waiting requests in order, until one cannot be answered at once."""
        waiting = self._reader.waiting
        self._is_answering = True
        try:
            while (
                waiting
                and self._answering is None
                and not (self.is_write_paused or self._is_ending or self.transport.is_closing())
            ):
                if self._started >= _REQUESTS_PER_TURN:
                    self._yield_turn()
                    return
                self._started += 1
                call = waiting[0]
                self._answering = call
                call.start()
        finally:
            self._is_answering = False

    def reply(self, data: bytes) -> None:
        """Send the reply to the first waiting request, at the end of the loop's turn."""
        if not self._corked:
            self.service.cork(self)
        self._corked.append(data)
        self._corked_bytes += len(data)
        if self._corked_bytes > _MOST_CORKED_BYTES:
            self.flush()
        self._answered()

    def reply_at_once(self, head: bytes, body: bytes, *, is_last: bool) -> None:
        """Send a large reply without a copy, or the last one of a connection."""
        self._corked.append(head)
        self.flush()
        if body:
            self._write(body)
        if is_last:
            self._is_ending = True
            self._close()
        self._answered()

    def end_turn(self) -> None:
        """Send the corked replies at the end of a turn of the loop."""
        self._pieces = self._started = 0
        self.flush()

    def flush(self) -> None:
        """Send the corked replies."""
        corked = self._corked
        if corked:
            if self._unconfirmed and not self._is_half_closed:
                self._is_half_closed = has_ended(self.transport)
            self._corked = []
            self._corked_bytes = 0
            self._write(corked[0] if len(corked) == 1 else b"".join(corked))

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
        reader = self._reader
        waiting = reader.waiting
        if not waiting:
            return  # the connection was lost
        call = waiting.popleft()
        if call.size:
            reader.buffered -= call.size
            self.service.held.bytes -= call.size
        if self._is_ending or (waiting and self.is_closed):
            self._drop_waiting()
            return
        if self.is_read_paused:
            self._resume_reading()
        if waiting:
            if not self._is_answering:
                self._answer_waiting()
        elif reader.refusal is not None:
            self._refuse(reader.refusal)
        elif self._upgrade_rest is not None:
            self._become_websocket(self._upgrade_rest)
        elif self.is_draining and self.is_idle:
            self._close()
        elif reader.phase == IDLE:
            if not self.is_write_paused:
                self.deadline = self.loop.time() + self.service.settings.idle_timeout_s
        elif reader.expects_continue:
            self._send_continue()

    def _drop_waiting(self) -> None:
        """Drop requests that arrived after the last one that is answered."""
        reader = self._reader
        size = sum([call.size for call in reader.waiting])
        reader.buffered -= size
        self.service.held.bytes -= size
        reader.waiting.clear()

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
        if self._reader.waiting:
            self._answer_waiting()


def new_connection(
    service: Service, loop: asyncio.AbstractEventLoop, routes: RouteTable | None = None
) -> asyncio.Protocol:
    """Return a new connection. Event loops need its methods only, not the base class."""
    return cast(asyncio.Protocol, Connection(service, loop, routes))
