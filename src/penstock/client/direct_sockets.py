"""Sockets to a broker, for threads and for tasks: all that differs between them.

`http_wire` has the protocol, `direct_transport` the connections that are kept.
"""

import asyncio
import select
import socket
from threading import Semaphore
from typing import Protocol, cast

from penstock.client.http_wire import READ_BYTES, Answer, AnswerReader, Endpoint
from penstock.client.long_paths import connect_unix, short_path
from penstock.clock import Clock
from penstock.model import NS


class DirectSocket(Protocol):
    """One connection."""

    is_open: bool  # the server keeps it open after the last answer
    used_ns: int  # when it was last used

    def is_idle(self) -> bool:
        """Return whether the server has neither closed the connection nor sent something."""

    async def ask(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request and return the answer, whole, before the time is over.

        After an OSError, TimeoutError included, the connection is of no use.
        """

    def close(self) -> None: ...


class DirectSockets(Protocol):
    """Makes connections, and limits their number."""

    async def acquire(self, timeout_s: float) -> bool:
        """Wait until one more may be used; return False if the time is over."""

    def release(self) -> None: ...

    async def connect(self, endpoint: Endpoint, timeout_s: float) -> DirectSocket:
        """Return a new connection; raise OSError, UnicodeError or InvalidInput."""


# -- threads ---------------------------------------------------------------------------------------


class ThreadSockets:
    """Connections of all threads of a process. Nothing here suspends."""

    def __init__(self, max_connections: int, clock: Clock) -> None:
        self._free = Semaphore(max_connections)
        self._clock = clock

    async def acquire(self, timeout_s: float) -> bool:
        return self._free.acquire(timeout=timeout_s)

    def release(self) -> None:
        self._free.release()

    async def connect(self, endpoint: Endpoint, timeout_s: float) -> DirectSocket:
        if endpoint.socket_path is not None:
            return _ThreadSocket(connect_unix(endpoint.socket_path, timeout_s), self._clock)
        one = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _ThreadSocket(one, self._clock)


class _ThreadSocket:
    """A socket that blocks."""

    def __init__(self, one: socket.socket, clock: Clock) -> None:
        self._socket = one
        self._clock = clock
        self._poll = select.poll()
        self._poll.register(one, select.POLLIN)
        self.is_open = True
        self.used_ns = 0

    def is_idle(self) -> bool:
        return not self._poll.poll(0)

    async def ask(self, request: bytes, timeout_s: float) -> Answer:
        ends_ns = self._clock.monotonic_ns() + round(timeout_s * NS)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(request)
        reader, answer = AnswerReader(), None
        while answer is None:
            # A socket's own timeout is that of one read: a trickle of bytes would never end.
            left_ns = ends_ns - self._clock.monotonic_ns()
            if left_ns <= 0:
                raise TimeoutError
            self._socket.settimeout(left_ns / NS)
            data = self._socket.recv(READ_BYTES)
            answer = reader.feed(data) if data else reader.end()
        self.is_open = reader.keeps_open
        return answer

    def close(self) -> None:
        self._socket.close()


# -- tasks -----------------------------------------------------------------------------------------


class TaskSockets:
    """Connections of all tasks of an event loop."""

    def __init__(self, max_connections: int, clock: Clock) -> None:
        self._free = asyncio.Semaphore(max_connections)  # time is that of the event loop

    async def acquire(self, timeout_s: float) -> bool:
        if not self._free.locked():
            return await self._free.acquire()  # does not suspend
        try:
            async with asyncio.timeout(timeout_s):
                return await self._free.acquire()
        except TimeoutError:
            return False

    def release(self) -> None:
        self._free.release()

    async def connect(self, endpoint: Endpoint, timeout_s: float) -> DirectSocket:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            if endpoint.socket_path is not None:
                path = short_path(endpoint.socket_path)
                _, one = await loop.create_unix_connection(_TaskSocket, path)
            else:
                _, one = await loop.create_connection(_TaskSocket, endpoint.host, endpoint.port)
        return one


class _TaskSocket(asyncio.Protocol):
    """A socket of the event loop: a future is completed with the answer."""

    def __init__(self) -> None:
        self.is_open = True
        self.used_ns = 0
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._reader = AnswerReader()
        self._answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not of that class, but with its methods: those of uvloop.
        self._transport = cast(asyncio.Transport, transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def is_idle(self) -> bool:
        # The server may have closed it, and the event loop has not heard of it yet.
        return self.is_open and not self._poll.poll(0)

    async def ask(self, request: bytes, timeout_s: float) -> Answer:
        if self._transport is None or self._transport.is_closing():
            raise OSError("the server closed it")
        loop = asyncio.get_running_loop()
        self._reader = AnswerReader()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._answer = answer
        self._transport.write(request)
        timer = loop.call_later(timeout_s, self._fail, TimeoutError())
        try:
            return await answer
        finally:
            timer.cancel()
            self._answer = None

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # no request asked for this
            return
        try:
            answer = self._reader.feed(data)
        except OSError as error:
            self._fail(error)
            return
        if answer is not None:
            self.is_open = self._reader.keeps_open
            self._answer.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._answer is None or self._answer.done():
            return
        try:
            if error is not None:
                raise error if isinstance(error, OSError) else OSError(str(error))
            self._answer.set_result(self._reader.end())
        except OSError as lost:
            self._fail(lost)

    def _fail(self, error: OSError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()
