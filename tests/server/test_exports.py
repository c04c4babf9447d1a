"""Exports: whole, however slowly they are read, and no burden to others."""

import json
import logging
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.server.export_limits import MOST_EXPORTS
from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire

MIB = 1 << 20
MESSAGE_BYTES, MESSAGES = MIB, 8
EXPORT = queue_path("large", "messages", "export")


def publish_large(running: RunningServer, count: int = MESSAGES) -> None:
    with running.client() as http:
        for _ in range(count):
            http.post(
                queue_path("large", "messages"),
                content=b"x" * MESSAGE_BYTES,
                headers={"content-type": "application/octet-stream"},
            ).raise_for_status()


def unread_exports(running: RunningServer, held: ExitStack, count: int) -> list[Wire]:
    """Begin exports on connections that take almost nothing."""
    wires = [held.enter_context(running.wire(receive_buffer_bytes=4096)) for _ in range(count)]
    for wire in wires:
        wire.request("GET", EXPORT)
    return wires


def lines_of(wire: Wire) -> list[bytes]:
    """Read a whole export, which must have its last chunk, and return its lines."""
    assert wire.answer().status == 200
    return wire.chunks().splitlines()


def test_unread_exports_hold_a_part_of_the_memory_and_are_whole_when_they_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningServer(tmp_path / "data", max_buffered_bytes=12 * MIB) as running, ExitStack() as h:
        publish_large(running)
        service, most = running.server.service, 0
        wires = unread_exports(running, h, 8)

        def are_stuck() -> bool:
            nonlocal most
            most = max(most, service.held.bytes)
            return service.exports.count == 8 and service.exports.bytes > 2 * MESSAGE_BYTES

        running.until(are_stuck)
        with running.client() as http:  # others are served
            path = queue_path("other", "messages")
            assert http.post(path, json={"payload": "y" * 500_000}).status_code == 201
            assert len(http.get(path).json()["messages"]) == 1
        with ThreadPoolExecutor(8) as threads:
            for lines in threads.map(lines_of, wires):
                assert [json.loads(line)["seq"] for line in lines] == list(range(1, MESSAGES + 1))
        assert most <= 3 * MIB + 8 * 4 * 65536  # a quarter, and what transports buffer
        running.until(lambda: not service.exports.count and not service.held.bytes)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_more_exports_than_the_limit_are_refused_with_a_time_to_retry(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as running, ExitStack() as held:
        publish_large(running)
        wires = unread_exports(running, held, MOST_EXPORTS)
        service = running.server.service
        running.until(lambda: service.exports.count == MOST_EXPORTS)
        running.until(lambda: service.streamed_replies == MOST_EXPORTS)
        with running.client() as http:
            refused = http.get(EXPORT)
            assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
            assert "exports" in refused.json()["detail"] and int(refused.headers["retry-after"])
            assert http.get("/dashboard/queues/default/large/messages/export").status_code == 503
            wires[0].close()
            running.until(lambda: service.exports.count < MOST_EXPORTS)
            assert http.get(EXPORT, params={"limit": 1}).status_code == 200


def test_a_message_larger_than_the_part_of_exports_is_exported_alone(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", max_buffered_bytes=3 * MIB) as running:
        publish_large(running, 2)
        with running.client() as http:
            assert http.get(EXPORT).text.count("\n") == 2


def test_an_export_that_waits_for_room_does_not_read_its_page_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningServer(tmp_path / "data", max_buffered_bytes=3 * MIB) as running, ExitStack() as h:
        publish_large(running)
        service, reads, count = running.server.service, list[int](), 20
        browse_on = service.broker.browse_on

        async def counted(queue: Any, browse: Any, max_bytes: int) -> Any:
            reads.append(browse.after_seq)
            return await browse_on(queue, browse, max_bytes)

        async def awake() -> None:
            service.exports.wake()

        monkeypatch.setattr(service.broker, "browse_on", counted)
        wires = unread_exports(running, h, count)
        running.until(lambda: service.exports.count == count and service.exports.bytes > 0)
        for _ in range(10):  # as when clients of other queues have read a page
            running.call(awake())
            running.until(lambda: not service.exports.making.locked())
        assert len(reads) <= count  # each knows the size of its page, or that there is no room
        for wire in wires:
            reset = struct.pack("ii", 1, 0)
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            wire.close()
        running.until(lambda: not service.exports.count)
        assert len(reads) <= 2 * count


def test_a_client_that_reads_nothing_is_dropped_after_the_idle_timeout(tmp_path: Path) -> None:
    """However large the message is: a rate is asked only of clients that read."""
    with RunningServer(tmp_path / "data", idle_timeout_s=1) as running, ExitStack() as held:
        with running.client() as http:
            for _ in range(3):
                body = b"x" * (15 * MIB)
                kind = {"content-type": "application/octet-stream"}
                http.post(queue_path("large", "messages"), content=body, headers=kind)
        unread_exports(running, held, 1)
        service = running.server.service
        running.until(lambda: service.streamed_replies == 1)
        running.until(lambda: not service.streamed_replies)  # 15 MiB at 64 KiB/s are 4 minutes


def test_a_client_that_is_gone_before_its_first_page_leaves_nothing_behind(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", max_buffered_bytes=3 * MIB) as running, ExitStack() as h:
        publish_large(running)
        service = running.server.service
        unread_exports(running, h, 1)
        running.until(lambda: service.streamed_replies == 1 and service.exports.bytes > MIB)
        [waiting] = unread_exports(running, h, 1)
        running.until(lambda: service.exports.count == 2)
        reset = struct.pack("ii", 1, 0)
        waiting.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        waiting.close()
        running.until(lambda: service.connection_count == 1)
        h.close()
        running.until(lambda: not service.exports.count and not service.tasks)
        assert (service.streamed_replies, service.held.bytes, service.exports.bytes) == (0, 0, 0)


def test_an_export_counts_as_one_call_of_its_client(tmp_path: Path) -> None:
    limits = {"client_rate_per_s": 0.001, "client_burst": 2}
    with RunningServer(tmp_path / "data", broker=limits) as running, running.client() as http:
        body = [{"payload": number} for number in range(500)]
        assert http.post(queue_path("large", "messages"), json=body).status_code == 201
        assert http.get(EXPORT).text.count("\n") == 500  # ten pages
        assert http.get(EXPORT).status_code == 429


def test_an_export_of_a_queue_that_is_deleted_ends_without_its_last_chunk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningServer(tmp_path / "data") as running, ExitStack() as held:
        publish_large(running)
        [wire] = unread_exports(running, held, 1)
        service = running.server.service
        running.until(lambda: service.streamed_replies == 1 and service.held.bytes > MIB)
        with running.client() as http:
            http.delete(queue_path("large")).raise_for_status()
        assert wire.answer().status == 200
        with pytest.raises(EOFError):
            wire.chunks()
        running.until(lambda: not service.tasks)
    [warning] = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert warning.exc_info is None
    assert warning.fields["code"] == "no_such_queue"  # type: ignore[attr-defined]
