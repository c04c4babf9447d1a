"""A client that goes before its request is read, or answered: no error, and nothing is kept."""

import asyncio
import logging
import socket
import struct
from typing import Any

import pytest

from penstock.broker import QueueName
from penstock.broker.access import INSIDE
from penstock.model import Stats
from penstock.operations import GetStats
from penstock.server.app import build_app
from penstock.server.off_loop import OffLoop
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


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/namespaces/default/queues/{}/lease"),
        ("POST", "/v1/queues/{}/lease"),
        ("GET", "/namespaces/default/queues/{}/messages"),
    ],
)
def test_a_lease_of_a_client_that_goes_while_the_answer_is_made_is_given_back(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, queue: str, method: str, path: str
) -> None:
    broker = server.server.broker
    answer = OffLoop.answer
    asked: list[int] = []

    async def answer_once_it_is_gone(off_loop: OffLoop, size: int, make: Any) -> Any:
        asked.append(size)
        while server.server._state.connections:
            await asyncio.sleep(0)
        return await answer(off_loop, size, make)

    async def stats() -> Stats:
        return await broker.run(INSIDE, GetStats(), QueueName("default", queue))

    with server.client() as http:
        sent = http.post(queue_path(queue, "messages"), json={"payload": "x" * 100_000})
        assert sent.status_code == 201
    server.until(lambda: not server.server._state.connections)
    monkeypatch.setattr(OffLoop, "answer", answer_once_it_is_gone)
    with server.wire() as wire:
        headers = "Content-Type: application/json;charset=x"  # which leaves it to the app
        wire.request(method, path.format(queue), b"{}", headers)
        server.until(lambda: len(asked) == 1)
        assert server.call(stats()).leased == 1
        # Reset, not closed: a client that only sends no more still takes its answer.
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.until(lambda: not server.server._state.tasks)
    found = server.call(stats())
    assert (found.ready, found.leased) == (1, 0)
