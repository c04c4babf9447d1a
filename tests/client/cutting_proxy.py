"""A proxy that cuts connections on purpose: before the request goes on, or before the answer."""

import socket
import threading
from collections.abc import Callable
from enum import Enum

_PATIENCE_S = 30.0


class Cut(Enum):
    """Where a connection is cut."""

    BEFORE_REQUEST = "the request does not reach the server"
    BEFORE_ANSWER = "the server has carried it out, and nobody learns of it"
    WITHIN_ANSWER = "half of the answer arrives"


class CuttingProxy:
    """Listens on a free port; one request and answer at a time on each connection."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.requests: list[bytes] = []  # first lines
        self._cuts: list[tuple[Cut, Callable[[bytes], bool]]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self, where: Cut, matching: str = "", *, times: int = 1) -> None:
        """Cut the next requests whose first line has this text."""
        self._cuts += [(where, lambda line: matching.encode() in line)] * times

    @property
    def cuts_left(self) -> int:
        return len(self._cuts)

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> "CuttingProxy":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- passing on --------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(_PATIENCE_S)
        with client, socket.create_connection(("127.0.0.1", self.target_port)) as server:
            server.settimeout(_PATIENCE_S)
            try:
                while request := read_message(client):
                    if not self._pass_on(request, client, server):
                        return
            except OSError:
                return

    def _pass_on(self, request: bytes, client: socket.socket, server: socket.socket) -> bool:
        first_line = request.partition(b"\r\n")[0]
        with self._lock:
            self.requests.append(first_line)
            cut = next((c for c in self._cuts if c[1](first_line)), None)
            if cut is not None:
                self._cuts.remove(cut)
        where = None if cut is None else cut[0]
        if where is Cut.BEFORE_REQUEST:
            return False
        server.sendall(request)
        answer = read_message(server)
        if not answer or where is Cut.BEFORE_ANSWER:
            return False
        if where is Cut.WITHIN_ANSWER:
            client.sendall(answer[: len(answer) // 2])
            return False
        client.sendall(answer)
        return True


def read_message(connection: socket.socket) -> bytes:
    """A request or an answer with a Content-Length, whole; nothing at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n")[1:]:
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    while len(body) < length:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
        body += more
    return data
