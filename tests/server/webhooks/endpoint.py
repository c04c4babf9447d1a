"""The receiving end of webhooks, in threads of its own."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Endpoint(ThreadingHTTPServer):
    """Takes what is posted; answers 200, or as told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.came = threading.Condition()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that is killed resets its connections."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"

    def wait_for(self, count: int, *, timeout_s: float = 30) -> list[tuple[dict[str, str], bytes]]:
        """All that came, as soon as so many did."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.received) >= count, timeout=timeout_s)
            return list(self.received)


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        body = self.rfile.read(length)
        if len(body) < length:
            return  # the sender was killed
        with self.server.came:
            self.server.received.append((dict(self.headers.items()), body))
            status = self.server.statuses.pop(0) if self.server.statuses else 200
            self.server.came.notify_all()
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass
