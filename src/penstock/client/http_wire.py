"""HTTP/1.1 without sockets: the bytes of a request, and the answer of a broker or proxy in pieces.

Shared by the direct sockets of threads and of tasks. A library for HTTP takes several times
longer than everything else together: benchmarks/tasks.py, benchmarks/shared.py.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from penstock.client.address import unix_socket_of
from penstock.client.options import ClientOptions
from penstock.client.request import CONTEXT_HEADERS, Request
from penstock.errors import InvalidInput

READ_BYTES = 1 << 16
# Less than servers and proxies allow (60 s and more): the client closes first, so that a request
# seldom meets a connection that is being closed.
KEEP_ALIVE_S = 30.0
ALL_IN_USE = "all connections of this client are in use: raise max_connections"
_MAX_HEAD_BYTES = 1 << 16
_MAX_SKIPPED_BYTES = 1 << 13
_HTTP_PORT = 80


class Answer(NamedTuple):
    """An answer, with the names that those of the HTTP library have."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes


class NoAnswer(Exception):
    """A request was not answered. `sent`: it may have arrived. `hopeless`: it would fail again."""

    def __init__(self, sentence: str, *, sent: bool, hopeless: bool = False) -> None:
        super().__init__(sentence)
        self.sent = sent
        self.hopeless = hopeless


class Endpoint:
    """Where a broker listens, and what every request to it says."""

    def __init__(self, base: str, options: ClientOptions) -> None:
        parts = urlsplit(base)
        self.base = base
        self.socket_path = unix_socket_of(base)
        self.host = parts.hostname or ""
        self.port = _HTTP_PORT if self.socket_path or parts.port is None else parts.port
        self._prefix = parts.path
        said = {"host": "localhost" if self.socket_path else parts.netloc, **options.headers()}
        self._said = "".join(f"{name}: {value}\r\n" for name, value in said.items())

    def bytes_of(self, request: Request[Any]) -> bytes:
        """Return a request as it is sent."""
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


def is_direct(base: str) -> bool:
    """Return whether a broker is reached by plain HTTP, and by no proxy of the environment."""
    parts = urlsplit(base)
    if unix_socket_of(base) is not None:
        return True
    if parts.scheme != "http" or parts.hostname is None:
        return False
    proxies = getproxies()
    return not ({"http", "all"} & proxies.keys()) or bool(proxy_bypass(parts.hostname))


class AnswerReader:
    """Reads one answer, in any pieces."""

    def __init__(self) -> None:
        self.keeps_open = True  # does the server keep the connection after this answer?
        self._data = b""  # not understood yet
        self._parts: list[bytes] = []  # of a body in chunks, or of one that is long
        self._missing = 0  # bytes of a body with a length
        self._skipped = 0  # bytes of answers before the answer: 100 Continue
        self._status = 0  # 0: its headers are not complete
        self._headers: dict[str, str] = {}

    def feed(self, data: bytes) -> Answer | None:
        """Return the answer if these bytes complete it. Raise OSError if it is not an answer."""
        if not self._status:
            data = self._data + data
            rest = self._read_head(data)
            if rest is None:
                self._data = data
                return None
            self._data = b""
            data = rest
        try:
            return self._read_body(data)
        except ValueError:
            raise OSError("its answer has a bad length") from None

    def end(self) -> Answer:
        """Return the answer that ends with the connection: an error page of a proxy."""
        if self._status >= 400 and not self._has_length():
            return self._answer(b"".join(self._parts))
        if self._status and not self._has_length():
            raise OSError("its answer has no length")
        raise OSError("the server closed it")

    def _read_head(self, data: bytes) -> bytes | None:
        """Return what follows the headers; None if they are not complete."""
        while (end := data.find(b"\r\n\r\n")) >= 0:
            status, headers = _head_of(data[:end])
            data = data[end + 4 :]
            if status < 200:  # 100 Continue
                self._skipped += end + 4
                if self._skipped > _MAX_SKIPPED_BYTES:
                    raise OSError("it only says that it will answer")
            else:
                self._status, self._headers = status, headers
                self.keeps_open = headers.get("connection", "").lower() != "close"
                if not self._is_empty() and not self._is_chunked():
                    self._missing = _length_of(headers)
                return data
        if len(data) > _MAX_HEAD_BYTES:
            raise OSError("its headers are too long")
        self._data = data
        return None

    def _is_empty(self) -> bool:
        return self._status in (204, 304)

    def _is_chunked(self) -> bool:
        return self._headers.get("transfer-encoding", "").lower() == "chunked"

    def _has_length(self) -> bool:
        return self._is_chunked() or "content-length" in self._headers

    def _answer(self, content: bytes) -> Answer:
        return Answer(self._status, self._headers, content)

    def _read_body(self, data: bytes) -> Answer | None:
        if self._is_empty():
            return self._answer(b"")
        if not self._has_length():
            self.keeps_open = False
            self._parts.append(data)
            return None
        if self._is_chunked():
            return self._read_chunks(self._data + data)
        self._missing -= len(data)
        if self._missing < 0:
            raise OSError("it sent more than one answer")
        if self._parts or self._missing:
            self._parts.append(data)
        if self._missing:
            return None
        return self._answer(b"".join(self._parts) if self._parts else data)

    def _read_chunks(self, data: bytes) -> Answer | None:
        while (end := data.find(b"\r\n")) >= 0:
            text = data[:end].partition(b";")[0].strip()
            if not text.isalnum():  # `int` takes a sign as well
                raise OSError("its answer has a bad length")
            size = int(text, 16)
            after = end + 2 + size + 2
            if len(data) < after:
                break
            if not size:
                return self._answer(b"".join(self._parts))
            self._parts.append(data[end + 2 : after - 2])
            data = data[after:]
        self._data = data
        return None


def _length_of(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise OSError("its answer has a bad length")
    return int(text)


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
            name, value = name.lower(), value.strip()
            if name == "content-length" and found.get(name, value) != value:
                raise OSError("its answer has two lengths")
            found[name] = value
        return int(status), found
    except ValueError:
        raise OSError(f"its answer is not HTTP: {first[:80]!r}") from None
