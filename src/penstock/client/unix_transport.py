"""Requests over a Unix socket, for threads, without the HTTP library.

On the same machine, a library for HTTP takes longer than everything else together: a publish takes
0.88 ms of CPU time with it, server included, and 0.26 ms with this (benchmarks/shared.py). What it
reads is an answer of the broker: HTTP/1.1 with a length, or in chunks.
"""

import os
import select
import socket
from collections.abc import Mapping
from threading import Condition, Semaphore
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from penstock.client.address import unix_socket_of
from penstock.client.long_paths import short_path
from penstock.client.options import ClientOptions
from penstock.client.request import CONTEXT_HEADERS, Request
from penstock.clock import Clock
from penstock.errors import InvalidInput
from penstock.model import NS

_READ_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 16


class Answer(NamedTuple):
    """An answer, with the names that those of the HTTP library have."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes


class NoAnswer(Exception):
    """A request was not answered. `sent`: it may have arrived."""

    def __init__(self, sentence: str, *, sent: bool) -> None:
        super().__init__(sentence)
        self.sent = sent


class UnixTransport:
    """Connections to one socket, for all threads of a process. Nothing here suspends."""

    def __init__(self, base: str, options: ClientOptions, clock: Clock) -> None:
        path = unix_socket_of(base)
        assert path is not None
        self._base = base
        self._path = path
        self._prefix = urlsplit(base).path
        self._options = options
        self._clock = clock
        said = {"host": "localhost", **options.headers()}
        self._said = "".join(f"{name}: {value}\r\n" for name, value in said.items())
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
        data = self._bytes_of(request)
        timeout_s = self._options.timeout_s
        if not self._free.acquire(timeout=timeout_s):
            raise NoAnswer(
                "all connections of this client are in use: raise max_connections", sent=False
            )
        try:
            line = self._line(timeout_s)
            try:
                answer = line.ask(data, timeout_s + request.wait_s)
            except TimeoutError:
                line.close()
                raise NoAnswer(f"{self._base} did not answer in time", sent=True) from None
            except OSError as error:
                line.close()
                text = f"the connection to {self._base} broke: {error}"
                raise NoAnswer(text, sent=True) from error
            except BaseException:  # an interrupt: the next answer on it would be of this request
                line.close()
                raise
            if line.is_open and not self._closed:
                self._idle.append(line)
            else:
                line.close()
            return answer
        finally:
            self._free.release()

    def _line(self, timeout_s: float) -> "_Line":
        """Return an idle connection that is still good, or a new one."""
        while self._idle:
            try:
                line = self._idle.pop()  # the one that was used last
            except IndexError:
                break  # another thread took it
            if line.is_good():
                return line
            line.close()
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            one.settimeout(timeout_s)
            one.connect(short_path(self._path))
        except (OSError, InvalidInput) as error:
            one.close()
            raise NoAnswer(f"no connection to {self._base}: {error}", sent=False) from error
        except BaseException:
            one.close()
            raise
        return _Line(one)

    def _bytes_of(self, request: Request[Any]) -> bytes:
        url = self._prefix + request.path
        if request.query:
            url = f"{url}?{urlencode(request.query)}"
        lines = [f"{request.method} {url} HTTP/1.1\r\n", self._said]
        for headers in (request.headers, CONTEXT_HEADERS.get()):
            for name, value in headers.items():
                if "\n" in value or "\r" in value:
                    raise InvalidInput(f"{name} has a line break: it cannot be sent as a header")
                lines.append(f"{name}: {value}\r\n")
        if request.body or request.method not in ("GET", "DELETE"):
            lines.append(f"content-length: {len(request.body)}\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1", "replace") + request.body

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


class _Line:
    """One connection. It sends a request and reads the answer."""

    def __init__(self, one: socket.socket) -> None:
        self._socket = one
        self._poll = select.poll()
        self._poll.register(one, select.POLLIN)
        self.is_open = True  # the server keeps it open after the last answer

    def is_good(self) -> bool:
        """Return whether the server has neither closed the connection nor sent something."""
        return not self._poll.poll(0)

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: bytes, timeout_s: float) -> Answer:
        self._socket.settimeout(timeout_s)
        self._socket.sendall(request)
        data = b""
        while True:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                status, headers = _head_of(data[:end])
                if status >= 200:
                    break
                data = data[end + 4 :]  # 100 Continue
            elif len(data) > _MAX_HEAD_BYTES:
                raise OSError("its headers are too long")
            else:
                data += self._read()
        self.is_open = headers.get("connection", "").lower() != "close"
        return Answer(status, headers, self._body(status, headers, data[end + 4 :]))

    def _body(self, status: int, headers: Mapping[str, str], data: bytes) -> bytes:
        if status in (204, 304):
            return b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks(data)
        length = headers.get("content-length")
        if length is None:
            raise OSError("its answer has no length")
        return self._upto(data, int(length))

    def _chunks(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        while True:
            while (end := data.find(b"\r\n")) < 0:
                data += self._read()
            size = int(data[:end].partition(b";")[0], 16)
            data = self._upto(data[end + 2 :], size + 2, exactly=False)
            if not size:
                return b"".join(parts)
            parts.append(data[:size])
            data = data[size + 2 :]

    def _upto(self, data: bytes, count: int, *, exactly: bool = True) -> bytes:
        """Return at least `count` bytes, the first of which were read already."""
        if len(data) < count:
            parts, missing = [data], count - len(data)
            while missing > 0:
                part = self._read()
                parts.append(part)
                missing -= len(part)
            data = b"".join(parts)
        if exactly and len(data) > count:
            raise OSError("it sent more than one answer")
        return data

    def _read(self) -> bytes:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise OSError("the server closed it")
        return data


def _head_of(head: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the headers, whose names are in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    try:
        version, status, *_ = first.split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise ValueError
        found = {}
        for line in lines:
            name, _, value = line.partition(":")
            found[name.lower()] = value.strip()
        return int(status), found
    except ValueError:
        raise OSError(f"its answer is not HTTP: {first[:80]!r}") from None
