"""A connection as bytes, for what a well-behaved client would not send."""

import json
import socket
from typing import Any, NamedTuple

_PATIENCE_S = 30


class Answered(NamedTuple):
    """An answer as it arrived."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a problem."""
        return str(self.json["code"])


class Wire:
    """One connection to a server on this machine."""

    def __init__(self, port: int | str, *, receive_buffer_bytes: int | None = None) -> None:
        """`port` of TCP, or the path of a Unix socket."""
        address = port if isinstance(port, str) else ("127.0.0.1", port)
        is_unix = isinstance(port, str)
        self.socket = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
        self.socket.settimeout(_PATIENCE_S)
        if receive_buffer_bytes is not None:  # has its full effect only before connecting
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.connect(address)
        self._read = self.socket.makefile("rb")

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._read.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(
        self, method: str, path: str, body: bytes = b"", *headers: str, length: bool = True
    ) -> None:
        """Send a request as it should be, but for what is given."""
        lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
        if length:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def json_request(self, method: str, path: str, body: Any) -> None:
        self.request(method, path, json.dumps(body).encode(), "Content-Type: application/json")

    def answer(self) -> Answered:
        """The next answer; it must have a Content-Length, or no body."""
        status_line = self._read.readline()
        assert status_line.startswith(b"HTTP/1.1 "), status_line
        status = int(status_line.split()[1])
        headers: dict[str, str] = {}
        while (line := self._read.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        return Answered(status, headers, self._read.read(int(headers.get("content-length", 0))))

    def chunks(self) -> bytes:
        """The body of an answer in chunks. Raise EOFError if it ends without the last one."""
        body: list[bytes] = []
        while line := self._read.readline():
            body.append(self._read.read(int(line, 16) + 2)[:-2])
            if not body[-1]:
                return b"".join(body)
        raise EOFError(f"{sum(map(len, body))} bytes came, but not the last chunk")

    def is_closed_by_server(self) -> bool:
        """Waits for the end: true if nothing more came before it."""
        try:
            return self._read.read() == b""
        except ConnectionResetError:
            return True
