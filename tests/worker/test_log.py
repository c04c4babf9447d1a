"""What a worker says: that it began, each message where that is asked for, and a new queue."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.model import LeasedMessage
from penstock.queue.queue import Queue
from penstock.worker import Worker, WorkerOptions
from tests.harness.virtual_loop import LoopClock, run_virtually
from tests.server.running import RunningServer

UNTIL_EMPTY = WorkerOptions(idle_s=0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


def test_a_start_is_told_with_the_queue(
    queue: Queue, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="penstock.worker")

    async def handle(job: LeasedMessage) -> None: ...

    run_virtually(lambda _: Worker(queue, handle, options=UNTIL_EMPTY).work(), clock=clock)
    assert caplog.messages == [f"working on {queue.path}, group main, 1 at a time"]


def test_each_message_is_a_line_at_debug_level_without_its_payload(
    queue: Queue, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="penstock.worker")
    good, bad = queue.enqueue_batch([b"good secret", b"bad secret"])

    async def handle(job: LeasedMessage) -> None:
        if job.id == bad:
            raise ValueError("no")

    run_virtually(lambda _: Worker(queue, handle, options=UNTIL_EMPTY).work(), clock=clock)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert lines == [
        f"{good} done in 0.000 s, attempt 1",
        f"{bad} failed in 0.000 s, attempt 1",
        f"{bad} failed in 0.000 s, attempt 2",
    ]
    assert "secret" not in caplog.text


def warned_about(place: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Work until the warning came, or the one message that is there was handled."""
    caplog.set_level(logging.WARNING, logger="penstock.worker")
    worker = Worker(place, lambda job: worker.stop())

    class Stopping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            worker.stop()

    stopping = Stopping()
    log = logging.getLogger("penstock.worker")
    log.addHandler(stopping)
    try:
        worker.run()
    finally:
        log.removeHandler(stopping)
    return caplog.messages


@pytest.mark.timeout(60)
def test_a_worker_of_a_new_directory_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (warning,) = warned_about(str(tmp_path / "ordrs"), caplog)
    assert "ordrs is new and empty" in warning


@pytest.mark.timeout(60)
def test_a_worker_of_a_queue_that_a_broker_does_not_have_warns(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    (warning,) = warned_about(f"{server.url}/shop/ordrs", caplog)
    assert "/shop/ordrs is new and empty" in warning


@pytest.mark.timeout(60)
def test_a_queue_that_once_had_messages_is_no_reason_to_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "orders")
    with penstock.open(path) as queue:
        queue.enqueue_batch([b"1", b"2"])
        queue.dequeue()
    assert warned_about(path, caplog) == []
