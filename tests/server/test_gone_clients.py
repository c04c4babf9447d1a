"""A client that goes before its request is read, or answered: no error, and nothing is kept."""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import QueueName
from penstock.broker.access import INSIDE
from penstock.model import Stats
from penstock.operations import GetStats
from penstock.server.off_loop import OffLoop
from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire

ROUTES = ["/api/v1/namespaces/default/queues/q/lease", "/v1/queues/q/lease", "/v1/queues/q/enqueue"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_client_that_is_gone_before_its_body_is_read_is_no_error(
    server: RunningServer, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    service = server.server.service
    server.until(lambda: not service.connections)
    before = list(service.http_metrics.totals())
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            with server.wire() as wire:
                head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n"
                wire.send(head.encode() + b'{"')
                server.until(lambda: service.held.bytes == 2)
                _reset(wire)
            server.until(lambda: not service.connections)
    assert caplog.records == []
    assert service.held.bytes == 0
    assert list(service.http_metrics.totals()) == before


def test_clients_that_close_at_once_leave_no_error(
    server: RunningServer, caplog: pytest.LogCaptureFixture, queue: str
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            with server.wire() as wire:
                headers = "Content-Type: application/json;charset=x"
                wire.request("POST", queue_path(queue, "lease"), b'{"wait_s":60}', headers)
        server.until(
            lambda: not server.server.service.connections and not server.server.service.tasks
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
    run = OffLoop.run
    asked: list[Any] = []

    def run_once_it_is_gone(off_loop: OffLoop, work: Any) -> "asyncio.Future[Any]":
        async def later() -> Any:
            while server.server.service.connections:
                await asyncio.sleep(0)
            return await run(off_loop, work)

        asked.append(work)
        made.append(asyncio.ensure_future(later()))
        return made[-1]

    made: list[asyncio.Future[Any]] = []

    async def stats() -> Stats:
        return await broker.run(INSIDE, GetStats(), QueueName("default", queue))

    with server.client() as http:
        sent = http.post(queue_path(queue, "messages"), json={"payload": "x" * 100_000})
        assert sent.status_code == 201
    server.until(lambda: not server.server.service.connections)
    monkeypatch.setattr(OffLoop, "run", run_once_it_is_gone)
    with server.wire() as wire:
        headers = "Content-Type: application/json"
        wire.request(method, path.format(queue), b"{}", headers)
        server.until(lambda: len(asked) == 1)
        assert server.call(stats()).leased == 1
        _reset(wire)
    server.until(lambda: made[0].done())
    found = server.call(stats())
    assert (found.ready, found.leased) == (1, 0)


def _reset(wire: Wire) -> None:
    """Reset, not closed: a client that only sends no more still takes its answer."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# -- leases that were answered ---------------------------------------------------------------------


def _close(wire: Wire) -> None:
    wire.close()


@pytest.mark.parametrize("leave", [_close, _reset])
@pytest.mark.parametrize("is_unix", [False, True])
@pytest.mark.parametrize("sync", ["never", "always"])
def test_messages_of_a_client_that_closes_right_after_its_lease_are_ready_at_once(
    tmp_path: Path, leave: Callable[[Wire], None], is_unix: bool, sync: str
) -> None:
    socket_path = str(tmp_path / "p.sock")
    queues = {"sync": sync, "min_free_bytes": 0, "lease_s": 3600}
    running = RunningServer(tmp_path / "data", unix=socket_path, broker={"queues": queues})
    with running as server, server.client() as http:
        name = QueueName("default", "q")

        async def leased() -> int:
            return (await server.server.broker.run(INSIDE, GetStats(), name)).leased

        for _ in range(5):
            http.post(queue_path("q", "messages"), json={"payload": "x"})
            wire = Wire(socket_path) if is_unix else server.wire()
            wire.json_request("GET", "/livez", None)
            wire.answer()

            async def lease_and_go(wire: Wire = wire) -> None:
                """In the server's loop, which sees the request and the end at once."""
                wire.json_request("POST", queue_path("q", "lease"), {})
                leave(wire)
                wire.close()

            server.call(lease_and_go())
            server.until(lambda: len(server.server.service.connections) == 1)  # `http`
            answer = http.post(queue_path("q", "lease"), json={"wait_s": 30}).json()
            (again,) = answer["messages"]
            assert again["attempt"] == 1
            http.post("/api/v1/settle", json={"ack": [again["receipt"]]})
            assert server.call(leased()) == 0


def test_a_half_closed_client_keeps_the_messages_that_it_reads(
    server: RunningServer, queue: str
) -> None:
    with server.client() as http, server.wire() as wire:
        http.post(queue_path(queue, "messages"), json={"payload": "x"})
        wire.json_request("POST", queue_path(queue, "lease"), {"lease_s": 3600})
        wire.socket.shutdown(socket.SHUT_WR)
        (leased,) = wire.answer().json["messages"]
        assert wire.is_closed_by_server()
        server.until(lambda: len(server.server.service.connections) == 1)
        settled = http.post("/api/v1/settle", json={"ack": [leased["receipt"]]}).json()
        assert [one["status"] for one in settled["results"]] == ["done"]


def test_a_client_that_closes_after_it_has_read_keeps_its_messages(
    server: RunningServer, queue: str
) -> None:
    with server.client() as http:
        http.post(queue_path(queue, "messages"), json={"payload": "x"})
        with server.wire() as wire:
            wire.json_request("POST", queue_path(queue, "lease"), {"lease_s": 3600})
            (leased,) = wire.answer().json["messages"]
        server.until(lambda: len(server.server.service.connections) == 1)
        settled = http.post("/api/v1/settle", json={"ack": [leased["receipt"]]}).json()
        assert [one["status"] for one in settled["results"]] == ["done"]


@pytest.mark.parametrize("is_unix", [False, True])
@pytest.mark.parametrize("pause", [False, True])
def test_a_client_that_resets_after_it_has_read_keeps_its_messages(
    tmp_path: Path, is_unix: bool, pause: bool
) -> None:
    socket_path = str(tmp_path / "p.sock")
    with RunningServer(tmp_path / "data", unix=socket_path) as server, server.client() as http:
        http.post(queue_path("q", "messages"), json={"payload": "x"})
        wire = Wire(socket_path) if is_unix else server.wire()
        wire.json_request("POST", queue_path("q", "lease"), {"lease_s": 3600})
        (leased,) = wire.answer().json["messages"]
        if pause:
            server.until(lambda: True)
        _reset(wire)
        wire.close()
        server.until(lambda: len(server.server.service.connections) == 1)
        assert http.post(queue_path("q", "lease"), json={}).json() == {"messages": []}
        settled = http.post("/api/v1/settle", json={"ack": [leased["receipt"]]}).json()
        assert [one["status"] for one in settled["results"]] == ["done"]


@pytest.mark.parametrize(
    "rest",
    [b"GET /livez", b"POST /v1/queues/q/enqueue HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n{"],
)
def test_requests_before_an_unfinished_one_are_answered_to_a_half_closed_client(
    server: RunningServer, queue: str, rest: bytes
) -> None:
    with server.client() as http, server.wire() as wire:
        wire.json_request("POST", queue_path(queue, "lease"), {"wait_s": 30})
        wire.json_request("POST", queue_path(queue, "messages"), {"payload": 1})
        wire.send(rest)
        wire.socket.shutdown(socket.SHUT_WR)
        assert [wire.answer().status, wire.answer().status] == [200, 201]
        assert wire.is_closed_by_server()
        assert http.get("/livez").status_code == 200
