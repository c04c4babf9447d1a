"""Plain HTTP over TCP and Unix sockets, without the HTTP library: for threads and for tasks.

The transports of the HTTP library remain for TLS and for proxies. By benchmarks/tasks.py, a job
over a broker takes 0.4 to 0.5 of the processor time, server included, with these.
"""

import asyncio
import os
import select
import socket
from threading import Condition, Semaphore
from typing import Any, cast

from penstock.client.http_wire import KEEP_ALIVE_S, READ_BYTES, Answer, AnswerReader, Endpoint
from penstock.client.http_wire import NoAnswer as NoAnswer
from penstock.client.long_paths import short_path
from penstock.client.options import ClientOptions
from penstock.client.request import Request
from penstock.clock import Clock
from penstock.errors import InvalidInput
from penstock.model import NS

_ALL_IN_USE = "all connections of this client are in use: raise max_connections"
_KEEP_ALIVE_NS = round(KEEP_ALIVE_S * NS)


# -- threads ---------------------------------------------------------------------------------------


class DirectTransport:
    """Connections to one broker, for all threads of a process. Nothing here suspends."""

    def __init__(self, base: str, options: ClientOptions, clock: Clock) -> None:
        self._endpoint = Endpoint(base, options)
        self._options = options
        self._clock = clock
        self._closing = Condition()
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._idle: list[_Line] = []
        self._free = Semaphore(self._options.max_connections)
        self._pid = os.getpid()

    async def send(self, request: Request[Any]) -> Answer:
        if self._pid != os.getpid():
            self._begin()  # after a fork the sockets are shared with the parent
        data = self._endpoint.bytes_of(request)
        base, timeout_s = self._endpoint.base, self._options.timeout_s
        if not self._free.acquire(timeout=timeout_s):
            raise NoAnswer(_ALL_IN_USE, sent=False)
        try:
            line = self._line(timeout_s)
            try:
                answer = line.ask(data, timeout_s + request.wait_s)
            except TimeoutError:
                line.close()
                raise NoAnswer(f"{base} did not answer in time", sent=True) from None
            except OSError as error:
                line.close()
                text = f"the connection to {base} broke: {error}"
                raise NoAnswer(text, sent=True) from error
            except BaseException:  # an interrupt: the next answer on it would be of this request
                line.close()
                raise
            if line.is_open and not self._closed:
                line.used_ns = self._clock.monotonic_ns()
                self._idle.append(line)
            else:
                line.close()
            return answer
        finally:
            self._free.release()

    def _line(self, timeout_s: float) -> "_Line":
        """Return an idle connection that is still good, or a new one."""
        old_ns = self._clock.monotonic_ns() - _KEEP_ALIVE_NS
        while self._idle:
            try:
                line = self._idle.pop()  # the one that was used last
            except IndexError:
                break  # another thread took it
            if line.used_ns >= old_ns and line.is_good():
                return line
            line.close()
        return _Line(self._connected(timeout_s))

    def _connected(self, timeout_s: float) -> socket.socket:
        endpoint = self._endpoint
        try:
            if endpoint.socket_path is not None:
                return _unix_socket(endpoint.socket_path, timeout_s)
            one = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return one
        except (OSError, UnicodeError, InvalidInput) as error:
            raise NoAnswer(f"no connection to {endpoint.base}: {error}", sent=False) from error

    async def pause(self, seconds: float) -> None:
        clock = self._clock
        ends_ns = clock.monotonic_ns() + round(seconds * NS)
        with self._closing:
            while not self._closed and (left_ns := ends_ns - clock.monotonic_ns()) > 0:
                clock.wait(self._closing, left_ns / NS)

    async def close(self) -> None:
        with self._closing:
            self._closed = True
            self._closing.notify_all()
        if self._pid == os.getpid():
            while self._idle:
                self._idle.pop().close()


def _unix_socket(path: str, timeout_s: float) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.settimeout(timeout_s)
        one.connect(short_path(path))
    except BaseException:
        one.close()
        raise
    return one


class _Line:
    """One connection. It sends a request and reads the answer."""

    def __init__(self, one: socket.socket) -> None:
        self._socket = one
        self._poll = select.poll()
        self._poll.register(one, select.POLLIN)
        self.is_open = True  # the server keeps it open after the last answer
        self.used_ns = 0

    def is_good(self) -> bool:
        """Return whether the server has neither closed the connection nor sent something."""
        return not self._poll.poll(0)

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: bytes, timeout_s: float) -> Answer:
        self._socket.settimeout(timeout_s)
        self._socket.sendall(request)
        reader, answer = AnswerReader(), None
        while answer is None:
            data = self._socket.recv(READ_BYTES)
            answer = reader.feed(data) if data else reader.end()
        self.is_open = reader.keeps_open
        return answer


# -- tasks -----------------------------------------------------------------------------------------


class DirectTaskTransport:
    """Connections to one broker, for all tasks of one event loop: that of the first call."""

    def __init__(self, base: str, options: ClientOptions, clock: Clock) -> None:
        self._endpoint = Endpoint(base, options)
        self._options = options
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[_TaskLine] = []
        self._free = asyncio.Semaphore(options.max_connections)
        self._closed = False

    async def send(self, request: Request[Any]) -> Answer:
        self._loop = check_loop(self._loop)
        data = self._endpoint.bytes_of(request)
        timeout_s = self._options.timeout_s
        try:
            async with asyncio.timeout(timeout_s if self._free.locked() else None):
                await self._free.acquire()
        except TimeoutError:
            raise NoAnswer(_ALL_IN_USE, sent=False) from None
        try:
            line = self._idle_line() or await self._connected(timeout_s)
            try:
                answer = await line.ask(data, timeout_s + request.wait_s)
            except TimeoutError:
                text = f"{self._endpoint.base} did not answer in time"
                raise NoAnswer(text, sent=True) from None
            except OSError as error:
                text = f"the connection to {self._endpoint.base} broke: {error}"
                raise NoAnswer(text, sent=True) from error
            if line.is_open and not self._closed:
                line.used_ns = self._clock.monotonic_ns()
                self._idle.append(line)
            else:
                line.close()
            return answer
        finally:
            self._free.release()

    def _idle_line(self) -> "_TaskLine | None":
        old_ns = self._clock.monotonic_ns() - _KEEP_ALIVE_NS
        while self._idle:
            line = self._idle.pop()
            if line.is_open and line.used_ns >= old_ns:
                return line
            line.close()
        return None

    async def _connected(self, timeout_s: float) -> "_TaskLine":
        loop, endpoint = asyncio.get_running_loop(), self._endpoint
        try:
            async with asyncio.timeout(timeout_s):
                if endpoint.socket_path is not None:
                    path = short_path(endpoint.socket_path)
                    _, line = await loop.create_unix_connection(_TaskLine, path)
                else:
                    host, port = endpoint.host, endpoint.port
                    _, line = await loop.create_connection(_TaskLine, host, port)
        except TimeoutError:
            raise NoAnswer(f"no connection to {endpoint.base}: timed out", sent=False) from None
        except (OSError, UnicodeError, InvalidInput) as error:
            raise NoAnswer(f"no connection to {endpoint.base}: {error}", sent=False) from error
        return line

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        self._closed = True
        if self._loop in (None, asyncio.get_running_loop()):
            while self._idle:
                self._idle.pop().close()
        # Connections of another loop cannot be closed from this one; they end with it.


def check_loop(known: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    """Return the running loop; raise InvalidInput if another one is known."""
    loop = asyncio.get_running_loop()
    if known is not None and known is not loop:
        raise InvalidInput(
            "a queue at a URL belongs to one event loop, and was used in another before: open "
            "it again in this one"
        )
    return loop


class _TaskLine(asyncio.Protocol):
    """One connection. It sends a request and completes a future with the answer."""

    def __init__(self) -> None:
        self.is_open = True
        self.used_ns = 0
        self._transport: asyncio.Transport | None = None
        self._reader = AnswerReader()
        self._answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not of that class, but with its methods: those of uvloop.
        self._transport = cast(asyncio.Transport, transport)

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
        except BaseException:  # the next answer on it would be of this request
            self.close()
            raise
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
