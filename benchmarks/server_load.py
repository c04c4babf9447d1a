"""Load generator for servers: connections send prepared bytes and read one reply each, on one loop.

All contenders use the same generator, so its cost is equal: raw protocols on uvloop, without client
libraries, and without a task or future per request. It shares the machine with the server, so its
own processor time reduces the rate of the server. PostgreSQL is called through asyncpg instead.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from time import perf_counter
from typing import TypeVar

_C = TypeVar("_C", bound="Line")
_T = TypeVar("_T")

# Yields what to send, gets the answer; returns how many things were done.
Talk = Generator[bytes, bytes, int]


class Line(asyncio.Protocol):
    """A connection on which one thing is asked after the other."""

    def __init__(self) -> None:
        self._data = b""
        self._talk: Talk | None = None
        self._end: asyncio.Future[int]
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        if self._talk is not None and not self._end.done():
            self._end.set_exception(error or ConnectionError("closed by the server"))

    def talk(self, talk: Talk) -> "asyncio.Future[int]":
        """Send what it yields, one after the other; done with what it returns."""
        self._end = asyncio.get_running_loop().create_future()
        self._talk = talk
        self.transport.write(next(talk))
        return self._end

    def ask(self, data: bytes) -> "asyncio.Future[bytes]":
        """One answer."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def once() -> Talk:
            got = yield data
            if not answer.done():
                answer.set_result(got)
            return 1

        def ended(end: "asyncio.Future[int]") -> None:
            error = end.exception()
            if error is not None and not answer.done():
                answer.set_exception(error)

        self.talk(once()).add_done_callback(ended)
        return answer

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        answer, after = self.answer_in(data)
        if answer is None:
            self._data = data
            return
        self._data = data[after:]
        talk = self._talk
        assert talk is not None, "nothing was asked"
        try:
            self.transport.write(talk.send(answer))
        except StopIteration as end:
            self._talk = None
            if not self._end.done():
                self._end.set_result(end.value)

    def answer_in(self, data: bytes) -> tuple[bytes | None, int]:
        """The first whole answer, and where the next begins."""
        raise NotImplementedError


class HttpLine(Line):
    """An answer is the body of a response with a length; anything but 2xx is an error."""

    def answer_in(self, data: bytes) -> tuple[bytes | None, int]:
        head = data.find(b"\r\n\r\n")
        if head < 0:
            return None, 0
        at = data.find(b"content-length: ", 0, head)
        length = int(data[at + 16 : data.find(b"\r\n", at)])
        end = head + 4 + length
        if len(data) < end:
            return None, 0
        if data[9:10] != b"2":
            raise RuntimeError(f"refused: {data[:end]!r}")
        return data[head + 4 : end], end


class BeanstalkLine(Line):
    """An answer is a line, and for a reserved job its body."""

    def answer_in(self, data: bytes) -> tuple[bytes | None, int]:
        line = data.find(b"\r\n")
        if line < 0:
            return None, 0
        words = data[:line].split()
        if words[0] != b"RESERVED":
            return data[:line], line + 2
        end = line + 2 + int(words[2]) + 2
        return (words[1], end) if len(data) >= end else (None, 0)


class RedisLine(Line):
    """An answer is one RESP value; its raw bytes."""

    def answer_in(self, data: bytes) -> tuple[bytes | None, int]:
        end = _resp_end(data, 0)
        return (None, 0) if end < 0 else (data[:end], end)


def _resp_end(data: bytes, at: int) -> int:
    """Where the value that begins here ends; -1 if it is not whole."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return -1
    kind, rest = data[at : at + 1], line + 2
    if kind == b"$":
        length = int(data[at + 1 : line])
        end = rest if length < 0 else rest + length + 2
        return end if len(data) >= end else -1
    if kind == b"*":
        for _ in range(max(int(data[at + 1 : line]), 0)):
            rest = _resp_end(data, rest)
            if rest < 0:
                return -1
    if kind == b"-":
        raise RuntimeError(data[at:line].decode())
    return rest


def redis_command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def http_post(path: str, body: bytes) -> bytes:
    return (
        b"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (path.encode(), len(body), body)
    )


async def connect(kind: type[_C], port: int, count: int) -> list[_C]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(kind, "127.0.0.1", port))[1] for _ in range(count)]


async def rate_over(
    lines: Sequence[_C], each: int, step: Callable[[_C], Talk], *, warm: int = 20
) -> float:
    """Return items per second: every connection takes `each` steps; a step returns its items."""

    def steps(line: _C, count: int) -> Talk:
        done = 0
        for _ in range(count):
            done += yield from step(line)
        return done

    if warm:
        await asyncio.gather(*(line.talk(steps(line, min(warm, each))) for line in lines))
    start = perf_counter()
    done = sum(await asyncio.gather(*(line.talk(steps(line, each)) for line in lines)))
    return done / (perf_counter() - start)


async def rate_of_tasks(
    lines: Sequence[_T], each: int, step: Callable[[_T], Awaitable[int]], *, warm: int = 20
) -> float:
    """The same with a client library, a task for each connection."""

    async def work(line: _T, steps: int) -> int:
        done = 0
        for _ in range(steps):
            done += await step(line)
        return done

    await asyncio.gather(*(work(line, min(warm, each)) for line in lines))
    start = perf_counter()
    done = sum(await asyncio.gather(*(work(line, each) for line in lines)))
    return done / (perf_counter() - start)
