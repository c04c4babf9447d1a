"""WebSocket clients for tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.server.running import RunningServer, queue_path

PATIENCE_S = 30.0


class Socket:
    """A connection that speaks JSON."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, **frame: Any) -> None:
        self.connection.send(json.dumps(frame))

    def next(self) -> dict[str, Any]:
        """The next frame."""
        return dict(json.loads(self.connection.recv(PATIENCE_S)))

    def messages(self, count: int) -> list[dict[str, Any]]:
        """The next so many frames, which must be messages."""
        frames = [self.next() for _ in range(count)]
        assert all(one["type"] == "message" for one in frames), frames
        return frames

    def settle(self, **frame: Any) -> dict[str, Any]:
        """Send a settling frame; the `settled` or `error` that answers it."""
        self.send(**frame)
        while True:
            answer = self.next()
            if answer["type"] != "message":
                return answer

    def closed(self) -> tuple[int, str]:
        """Read until the end: its code and reason."""
        try:
            while True:
                self.connection.recv(PATIENCE_S)
        except ConnectionClosed as error:
            assert error.rcvd is not None
            return error.rcvd.code, error.rcvd.reason


@contextmanager
def opened(server: RunningServer, path: str, **options: Any) -> Iterator[Socket]:
    options.setdefault("proxy", None)
    url = f"ws://127.0.0.1:{server.port}{path}"
    with connect(url, max_size=None, **options) as connection:
        yield Socket(connection)


def stream_path(queue: str, query: str = "") -> str:
    return queue_path(queue, "stream") + query
