"""Connections between brokers: calls with answers, many at a time, over one TCP connection each.

Both sides prove that they know the key of the cluster, which is in the database, before anything
else is read. Then frames follow: a length of four bytes and a list of values (see `wire`), those of
one turn of the event loop.

    client                                server
                                    ←     nonce
    nonce, HMAC(key, server nonce)  →
                                    ←     HMAC(key, client nonce)
    [number, method, arguments]     →
                                    ←     [number, answer]  or  [number, None, error]
    [number]                        →                               cancels the call, which is
                                                                    answered all the same
    [number, "together", calls]     →                               of one turn, to one queue: see
                                    ←     [number, results]         `together`
                                    ←     [0, notice]               unasked
"""

import asyncio
import hmac
import logging
import secrets
from asyncio import Future
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol, cast

from penstock.broker.postgres import wire
from penstock.broker.postgres.together import Gathered, Kind, OnRefused, Together
from penstock.broker.store import Pending
from penstock.errors import BrokerError, PenstockError, Unavailable
from penstock.names import QueueName

log = logging.getLogger("penstock.broker")

MAX_FRAME_BYTES = 1 << 30
OnError = Callable[[Future[Any], Exception], None] | None
_NONCE_BYTES = _PROOF_BYTES = 32
_CONNECT_S = 5.0


class ChannelLost(Unavailable):
    """The connection to another broker broke, or was not made. A sent call may have been done."""


class NotSent(ChannelLost):
    """There is no connection to another broker: the call was not carried out."""


# -- frames ----------------------------------------------------------------------------------------


class Receiver(Protocol):
    """What gets the values that arrive on a connection."""

    def opened(self) -> None:
        """Both sides have shown that they know the key."""

    def received(self, value: Any) -> None: ...

    def lost(self) -> None:
        """The connection is closed. Nothing more is received."""


class Frames(asyncio.Protocol):
    """A connection that carries frames once both sides have shown that they know the key."""

    def __init__(self, key: bytes, receiver: Receiver, *, is_client: bool) -> None:
        self._key = key
        self._receiver = receiver
        self._is_client = is_client
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._outgoing: list[Any] = []
        self._is_reading = False
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._step = self._greet if is_client else self._check_client
        self._transport: asyncio.Transport | None = None

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base
        if not self._is_client:
            self._transport.write(self._nonce)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._is_reading = True  # answers that are known at once go out together
        try:
            while self._step():
                pass
        except Exception as error:
            log.warning("connection of a broker closed: %s", error)
            self.abort()
        self._is_reading = False
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._receiver.lost()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def send(self, value: Any) -> None:
        """Send a value with the others of this turn. Raise TypeError if it cannot travel."""
        self.send_packed(wire.packed(value))

    def send_packed(self, packed: list[Any]) -> None:
        """Send a value that `wire` has packed."""
        if not self._outgoing and not self._is_reading:
            self._loop.call_soon(self.flush)
        self._outgoing.append(packed)

    def flush(self) -> None:
        """Send the values of this turn now."""
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, []
            if self._transport is not None and not self._transport.is_closing():
                self._write(self._transport, outgoing)

    def _write(self, transport: asyncio.Transport, values: list[Any]) -> None:
        """Write values as one frame, or as several if that were too large."""
        body = wire.encode(values)
        if len(body) > MAX_FRAME_BYTES and len(values) > 1:
            half = len(values) // 2
            self._write(transport, values[:half])
            self._write(transport, values[half:])
        else:
            transport.write(len(body).to_bytes(4, "big") + body)

    def _read_frame(self) -> bool:
        if len(self._buffer) < 4:
            return False
        size = int.from_bytes(self._buffer[:4], "big")
        if size > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes was announced")
        if len(self._buffer) < 4 + size:
            return False
        with memoryview(self._buffer) as view, view[4 : 4 + size] as body:
            values = wire.decode(body)
        del self._buffer[: 4 + size]
        for value in values:
            self._receiver.received(value)
        return True

    # -- the proofs --------------------------------------------------------------------------------

    def _greet(self) -> bool:
        nonce = self._take(_NONCE_BYTES)
        if nonce is None:
            return False
        assert self._transport is not None
        self._transport.write(self._nonce + self._proof(nonce, b"client"))
        self._step = self._check_server
        return True

    def _check_client(self) -> bool:
        taken = self._take(_NONCE_BYTES + _PROOF_BYTES)
        if taken is None:
            return False
        self._check(taken[_NONCE_BYTES:], b"client")
        assert self._transport is not None
        self._transport.write(self._proof(taken[:_NONCE_BYTES], b"server"))
        return self._open()

    def _check_server(self) -> bool:
        proof = self._take(_PROOF_BYTES)
        if proof is None:
            return False
        self._check(proof, b"server")
        return self._open()

    def _open(self) -> bool:
        self._step = self._read_frame
        self._receiver.opened()
        return True

    def _take(self, size: int) -> bytes | None:
        if len(self._buffer) < size:
            return None
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _proof(self, nonce: bytes, side: bytes) -> bytes:
        return hmac.digest(self._key, side + nonce, "sha256")

    def _check(self, proof: bytes, side: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(self._nonce, side)):
            raise PermissionError("it does not know the key of this cluster")


# -- the calling side ------------------------------------------------------------------------------


class _Call:
    """A call that waits for its answer."""

    __slots__ = ("_on_error", "_on_late", "answer")

    def __init__(
        self, answer: Future[Any], on_late: Callable[[Any], None], on_error: OnError
    ) -> None:
        self.answer = answer
        self._on_late = on_late
        self._on_error = on_error

    def succeed(self, result: Any) -> None:
        if self.answer.done():  # cancelled, perhaps a moment ago
            self._on_late(result)
        else:
            self.answer.set_result(result)

    def fail(self, error: Exception) -> None:
        if self.answer.done():
            return
        if self._on_error is None:
            self.answer.set_exception(error)
        else:
            self._on_error(self.answer, error)


class _Calls:
    """The calls that wait for answers on one connection."""

    def __init__(
        self, key: bytes, on_notice: Callable[[Any], None], on_lost: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_notice = on_notice
        self._on_lost = on_lost
        self._numbers = count(1)
        self._waiting: dict[int, _Call | Gathered] = {}
        self._gathered: dict[QueueName, Gathered] = {}  # calls of this turn
        self.frames = Frames(key, self, is_client=True)
        self.is_open: Future[None] = self._loop.create_future()
        self.is_lost = False

    def call(
        self,
        method: str,
        arguments: Any,
        on_late: Callable[[Any], None],
        on_error: OnError,
    ) -> Future[Any]:
        self._check()
        if self._gathered:
            self._send_gathered()  # in the order of the calls
        number = next(self._numbers)
        self.frames.send([number, method, arguments])
        answer: Future[Any] = self._loop.create_future()
        self._waiting[number] = _Call(answer, on_late, on_error)

        def cancelled(done: Future[Any]) -> None:
            # It waits for the answer all the same: it may be on its way already.
            if done.cancelled() and number in self._waiting:
                self.frames.send([number])

        answer.add_done_callback(cancelled)
        return answer

    def gather(
        self, queue: QueueName, kind: Kind, argument: Any, pending: Pending, on_refused: OnRefused
    ) -> None:
        self._check()
        gathered = self._gathered.get(queue)
        if gathered is None:
            if not self._gathered:
                self._loop.call_soon(self._end_turn)
            gathered = self._gathered[queue] = Gathered(queue, on_refused)
        gathered.add(kind, argument, pending)

    def _check(self) -> None:
        if self.is_lost:
            raise NotSent("the connection to another broker is lost: try again in a moment")

    def _end_turn(self) -> None:
        if self._gathered:
            self._send_gathered()
        self.frames.flush()

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for one in gathered.values():
            if not one.is_empty:
                number = next(self._numbers)
                self._waiting[number] = one
                self.frames.send_packed(one.packed(number))

    def opened(self) -> None:
        if not self.is_open.done():
            self.is_open.set_result(None)

    def received(self, value: Any) -> None:
        number, result, *more = value
        if number == 0:
            self._on_notice(result)
        elif not more:
            self._waiting.pop(number).succeed(result)
        elif len(more) == 1:
            self._waiting.pop(number).fail(more[0])
        else:
            gathered = self._waiting[number]
            assert isinstance(gathered, Gathered)
            if gathered.succeed_some(result, more[1]):
                del self._waiting[number]

    def lost(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        reason = ChannelLost("the connection to another broker broke: try again in a moment")
        if not self.is_open.done():
            self.is_open.set_exception(reason)
            self.is_open.exception()  # retrieved, in case that the caller gave up
        waiting, self._waiting = self._waiting, {}
        gathered, self._gathered = self._gathered, {}
        for one in waiting.values():
            one.fail(ChannelLost(*reason.args))
        for unsent in gathered.values():
            unsent.fail(NotSent(*reason.args))
        self._on_lost()


class Peer:
    """Another broker. The connection is made by the first call, and anew after it was lost."""

    def __init__(
        self,
        address: str,
        key: bytes,
        on_notice: Callable[[Any], None],
        on_lost: Callable[["Peer"], None],
    ) -> None:
        self.address = address
        self._key = key
        self._on_notice = on_notice
        self._on_lost = on_lost
        self._calls: _Calls | None = None
        self._turn = asyncio.Lock()
        self.watched: set[Any] = set()  # what the other broker was asked to watch

    @property
    def is_connected(self) -> bool:
        return self._calls is not None and not self._calls.is_lost

    @property
    def is_connecting(self) -> bool:
        return self._turn.locked()

    async def connect(self) -> None:
        """Connect if necessary. Raise ChannelLost if the other broker is not reached."""
        async with self._turn:
            if self.is_connected:
                return
            host, _, port = self.address.rpartition(":")
            loop = asyncio.get_running_loop()
            calls = _Calls(self._key, self._on_notice, self._lost)
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await loop.create_connection(lambda: calls.frames, host.strip("[]"), int(port))
                    try:
                        await calls.is_open
                    except BaseException:
                        calls.frames.abort()
                        raise
            except (OSError, TimeoutError, ChannelLost) as error:
                raise NotSent(
                    f"the broker at {self.address} cannot be reached ({error}): try again; if it "
                    f"runs, set its cluster_host to an address that other brokers reach"
                ) from None
            self._calls = calls

    def call(
        self,
        method: str,
        arguments: Any,
        on_late: Callable[[Any], None],
        on_error: OnError = None,
    ) -> Future[Any]:
        """Send a call. `on_late` gets an answer that comes after the future was cancelled.

        `on_error` gets the future and an error, and answers it. None: the future gets the error.
        """
        if self._calls is None:
            raise NotSent("there is no connection to the other broker yet")
        return self._calls.call(method, arguments, on_late, on_error)

    def gather(
        self, queue: QueueName, kind: Kind, argument: Any, pending: Pending, on_refused: OnRefused
    ) -> None:
        """Send a call with the others of this turn, see `together`: `pending` gets the answer.

        `on_refused` gets a call that was not carried out, and why, and answers `pending`.
        """
        if self._calls is None:
            raise NotSent("there is no connection to the other broker yet")
        self._calls.gather(queue, kind, argument, pending, on_refused)

    def close(self) -> None:
        """Close the connection at once. Calls that wait on it get ChannelLost."""
        if self._calls is not None:
            self._calls.frames.abort()

    def _lost(self) -> None:
        self.watched.clear()
        self._on_lost(self)


# -- the answering side ----------------------------------------------------------------------------


class Service(Protocol):
    """What answers the calls of other brokers."""

    def answer(self, caller: "Caller", method: str, arguments: Any) -> "Future[Any]": ...

    def carry_out(self, received: Together) -> None:
        """Carry out calls that travelled together, each by itself, and answer them."""

    def undelivered(self, method: str, arguments: Any, result: Any) -> None:
        """Receive a result whose caller no longer waits."""

    def caller_lost(self, caller: "Caller") -> None: ...


class Caller:
    """A broker that calls this one."""

    def __init__(self, key: bytes, service: Service, callers: "set[Caller]") -> None:
        self._service = service
        self._callers = callers
        self._running: dict[int, Future[Any]] = {}
        self.frames = Frames(key, self, is_client=False)
        self.watched: set[Any] = set()  # what it asked this broker to watch
        callers.add(self)

    def notify(self, notice: Any) -> None:
        self.frames.send([0, notice])

    def opened(self) -> None:
        """Wait for its calls."""

    def received(self, value: Any) -> None:
        number, *rest = value
        if not rest:
            running = self._running.get(number)
            if running is not None:
                running.cancel()
            return
        method, arguments = rest
        if method == "together":
            received = Together(number, arguments, self._send_packed, self._undelivered)
            self._service.carry_out(received)
            return
        try:
            answer = self._service.answer(self, method, arguments)
        except PenstockError as error:
            self.frames.send([number, None, error])
            return
        self._running[number] = answer
        if answer.done():  # it goes out with the others of this read
            self._answered(number, method, arguments, answer)
        else:
            answer.add_done_callback(lambda done: self._answered(number, method, arguments, done))

    def _answered(self, number: int, method: str, arguments: Any, done: Future[Any]) -> None:
        del self._running[number]
        error = None if done.cancelled() else done.exception()
        result = None if done.cancelled() or error is not None else done.result()
        if self.frames.is_closing:
            if result is not None:
                self._service.undelivered(method, arguments, result)
            return
        try:
            self.frames.send([number, result] if error is None else [number, None, error])
        except TypeError as defect:  # a bug of ours: the caller must not wait forever
            log.error("an answer to another broker cannot be sent", exc_info=defect)
            self.frames.send([number, None, Unavailable(f"the answer cannot be sent: {defect}")])

    def _send_packed(self, packed: list[Any]) -> bool:
        if self.frames.is_closing:
            return False
        self.frames.send_packed(packed)
        return True

    def _undelivered(self, queue: QueueName, leased: Any) -> None:
        self._service.undelivered("lease", (queue,), leased)

    def lost(self) -> None:
        self._callers.discard(self)
        for running in list(self._running.values()):
            running.cancel()
        self._service.caller_lost(self)


class Door:
    """Where other brokers connect to this one."""

    def __init__(self, service: Service, key: bytes) -> None:
        self._service = service
        self._key = key
        self._callers: set[Caller] = set()
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen. Return the port. Raise BrokerError if that is not possible there."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Caller(self._key, self._service, self._callers).frames, host, port
            )
        except OSError as error:
            raise BrokerError(
                f"this broker cannot listen for other brokers at {host}:{port or 'any port'} "
                f"({error.strerror or error}): set cluster_host to an address of this machine that "
                f"the others reach, and cluster_port to a free port"
            ) from None
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for caller in list(self._callers):
            caller.frames.abort()
