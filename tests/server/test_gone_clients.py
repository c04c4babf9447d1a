"""A client that is gone before its request was read: no error, and nothing is counted."""

import logging
from typing import Any

import pytest

from penstock.server.app import build_app
from tests.server.running import RunningServer, queue_path

ROUTES = ["/api/v1/namespaces/default/queues/q/lease", "/v1/queues/q/lease", "/v1/queues/q/enqueue"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_client_that_is_gone_before_its_body_is_read_is_no_error(
    server: RunningServer, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    service = server.server.service
    before = list(service.http_metrics.totals())
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"t"), (b"content-type", b"application/json"), (b"content-length", b"2")]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    with caplog.at_level(logging.INFO):
        server.call(build_app(service)(scope, receive, send))  # type: ignore[arg-type]
    assert sent == []
    assert caplog.records == []
    assert list(service.http_metrics.totals()) == before


def test_clients_that_close_at_once_leave_no_error(
    server: RunningServer, caplog: pytest.LogCaptureFixture, queue: str
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            with server.wire() as wire:
                # A content type that leaves it to the app.
                headers = "Content-Type: application/json;charset=x"
                wire.request("POST", queue_path(queue, "lease"), b'{"wait_s":60}', headers)
        server.until(
            lambda: not server.server._state.connections and not server.server._state.tasks
        )
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    statuses = {status for _, _, status, _, _ in server.server.service.http_metrics.totals()}
    assert statuses <= {200}
