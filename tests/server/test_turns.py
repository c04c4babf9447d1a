"""One connection uses a bounded part of each turn of the event loop, and bounded memory."""

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.server.running import RunningServer, queue_path
from tests.server.test_pipelining import request_text

CHUNK = b"2\r\nab\r\n"


@contextmanager
def every_turn(server: RunningServer, look: Callable[[], None]) -> Iterator[None]:
    """Call `look` once in each turn of the server's event loop."""

    async def start() -> Any:
        async def turns() -> None:
            while True:
                look()
                await asyncio.sleep(0)

        return asyncio.create_task(turns())

    async def stop() -> None:
        task.cancel()

    task = server.call(start())
    try:
        yield
    finally:
        server.call(stop())


def chunked_head(queue: str) -> bytes:
    return (
        f"POST {queue_path(queue, 'messages')} HTTP/1.1\r\nHost: t\r\n"
        "Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()


@pytest.mark.parametrize(
    ("one", "status"),
    [
        (request_text("GET", "/livez"), 200),
        (request_text("GET", "/nowhere"), 404),
        (request_text("POST", queue_path("turns", "messages"), {"nope": 1}), 400),
    ],
    ids=["livez", "not found", "bad publish"],
)
def test_a_flood_of_requests_is_answered_over_many_turns(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, one: bytes, status: int
) -> None:
    service, count = server.server.service, 2000
    started, most = 0.0, 0.0
    monotonic_ns = service.monotonic_ns

    def counted() -> int:
        nonlocal started
        started += 0.5  # a request reads it twice: when it is started and when it is answered
        return monotonic_ns()

    def look() -> None:
        nonlocal started, most
        most, started = max(most, started), 0

    monkeypatch.setattr(service, "monotonic_ns", counted)
    with server.wire() as wire, every_turn(server, look):
        wire.send(one * count)
        assert [wire.answer().status for _ in range(count)] == [status] * count
    assert 0 < most <= 64


def test_a_flood_is_answered_after_the_client_has_closed_its_side(server: RunningServer) -> None:
    with server.wire() as wire:
        wire.send(request_text("GET", "/livez") * 1000)
        wire.socket.shutdown(1)
        assert [wire.answer().status for _ in range(1000)] == [200] * 1000
        assert wire.is_closed_by_server()


def test_a_bad_request_behind_a_flood_is_refused_last(server: RunningServer) -> None:
    with server.wire() as wire:
        wire.send(request_text("GET", "/livez") * 1000 + b"this is not HTTP\r\n\r\n" * 5000)
        assert [wire.answer().status for _ in range(1001)] == [200] * 1000 + [400]
        assert wire.is_closed_by_server()


def test_a_body_in_tiny_chunks_is_read_over_many_turns(server: RunningServer, queue: str) -> None:
    held = server.server.service.held
    before, most, count = 0, 0, 100_000

    def look() -> None:
        nonlocal before, most
        most, before = max(most, held.bytes - before), held.bytes

    with server.wire() as wire, every_turn(server, look):
        wire.send(chunked_head(queue) + CHUNK * count)
        server.until(lambda: held.bytes == 2 * count)
        wire.send(b"0\r\n\r\n")
        assert wire.answer().status == 201
    assert 0 < most <= 20_000


def test_a_body_in_tiny_chunks_needs_the_memory_of_its_bytes(
    server: RunningServer, queue: str
) -> None:
    held, count = server.server.service.held, 100_000
    with server.wire() as wire:
        wire.request("GET", "/livez")
        wire.answer()
        tracemalloc.start()
        try:
            wire.send(chunked_head(queue) + CHUNK * count)
            server.until(lambda: held.bytes == 2 * count)
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        wire.send(b"0\r\n\r\n")
        assert wire.answer().status == 201
    assert used < 6 * count


def test_a_large_body_behind_small_requests_is_whole(server: RunningServer, queue: str) -> None:
    body = bytes(range(256)) * 4000
    head = (
        f"POST {queue_path(queue, 'messages')} HTTP/1.1\r\nHost: t\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    small = request_text("GET", "/livez")
    with server.wire() as wire:
        wire.send(small * 40 + head.encode() + body + small)
        statuses = [wire.answer().status for _ in range(42)]
        wire.request("POST", queue_path(queue, "lease"), b"{}", "Content-Type: application/json")
        [leased] = wire.answer().json["messages"]
    assert statuses == [200] * 40 + [201, 200]
    assert len(leased["payload_b64"]) == (len(body) + 2) // 3 * 4
