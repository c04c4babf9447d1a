"""Syncs by threads that do not need the interpreter lock, and what happens when one fails."""

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from penstock.errors import LedgerStopped
from penstock.ledger.files import OsFiles, new_sync_lock, new_sync_pool
from penstock.ledger.ledger import Ledger, PendingSync
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.sync_pool import SyncLock, SyncPool

if os.environ.get("PENSTOCK_CODEC") == "python":
    pytest.skip("needs the compiled module", allow_module_level=True)


@pytest.fixture
def pool() -> Iterator[SyncPool]:
    pool = SyncPool(2)
    yield pool
    pool.close()


@pytest.fixture
def pipe() -> Iterator[int]:
    """A file that cannot be synced."""
    reading, writing = os.pipe()
    yield reading
    os.close(reading)
    os.close(writing)


def wait_for(pool: SyncPool, count: int) -> list[Any]:
    jobs: list[Any] = []
    while len(jobs) < count:
        assert select.select([pool.fileno()], [], [], 30)[0], "no sync ended"
        jobs += pool.ended()
    return jobs


def test_a_sync_releases_its_lock_and_makes_the_pool_readable(
    tmp_path: Path, pool: SyncPool
) -> None:
    lock = SyncLock()
    with (tmp_path / "file").open("wb") as file:
        assert lock.acquire()
        pool.start(file.fileno(), lock, "owner")
        with lock:  # waits for the thread
            pass
        [job] = wait_for(pool, 1)
    assert (job.owner, job.error, lock.failed) == ("owner", 0, 0)
    assert not select.select([pool.fileno()], [], [], 0)[0]


def test_more_syncs_than_threads_all_end(tmp_path: Path, pool: SyncPool) -> None:
    with (tmp_path / "file").open("wb") as file:
        for number in range(100):
            lock = SyncLock()
            lock.acquire()
            pool.start(file.fileno(), lock, number)
        jobs = wait_for(pool, 100)
    assert sorted(job.owner for job in jobs) == list(range(100))


def test_a_failed_sync_marks_the_lock_before_it_is_released(pool: SyncPool, pipe: int) -> None:
    lock = SyncLock()
    lock.acquire()
    pool.start(pipe, lock, None)
    with lock:
        assert lock.failed == errno.EINVAL
    assert wait_for(pool, 1)[0].error == errno.EINVAL


def test_the_lock_is_a_lock() -> None:
    lock = SyncLock()
    assert lock.acquire() and not lock.acquire(blocking=False)
    lock.release()
    with pytest.raises(RuntimeError, match="unlocked"):
        lock.release()
    order = []
    lock.acquire()

    def wait() -> None:
        with lock:
            order.append("second")

    waiting = Thread(target=wait)
    waiting.start()
    order.append("first")
    lock.release()
    waiting.join(30)
    assert order == ["first", "second"]


def test_only_real_files_are_synced_in_the_background(tmp_path: Path) -> None:
    class Watched(OsFiles):
        """A test's own files."""

    assert new_sync_pool(Watched(), 1) is None
    real = new_sync_pool(OsFiles(), 1)
    assert real is not None
    real.close()
    assert isinstance(new_sync_lock(), SyncLock)


# -- the ledger ------------------------------------------------------------------------------------

ALWAYS = LedgerSettings(sync="always")


class PipePool(SyncPool):
    """Syncs a file that cannot be synced, in place of the log's."""

    pipe = -1

    def start(self, fd: int, lock: Any, owner: Any) -> None:
        super().start(self.pipe, lock, owner)


def test_a_background_sync_makes_both_logs_durable(tmp_path: Path, pool: SyncPool) -> None:
    with Ledger.open(str(tmp_path), settings=ALWAYS) as ledger:
        ledger.messages.append(b"one")
        ledger.events.append_event(1, b"event")
        pending = PendingSync()
        assert ledger.start_sync(pool, pending)
        # Written in this order: after a kill in between, no event refers to a missing message.
        assert [log for log, _ in pending.parts] == [ledger.messages, ledger.events]
        ledger.messages.append(b"two")  # not covered
        wait_for(pool, 2)
        pending.end()
        assert (ledger.messages.durable_next_seq, ledger.events.durable_next_seq) == (2, 2)
        ledger.sync()
        assert ledger.messages.durable_next_seq == 3


def test_a_second_sync_does_not_start_beside_the_first(tmp_path: Path, pool: SyncPool) -> None:
    with Ledger.open(str(tmp_path), settings=ALWAYS) as ledger:
        ledger.messages.append(b"one")
        first = PendingSync()
        assert ledger.start_sync(pool, first)
        second = PendingSync()
        ledger.messages.append(b"two")
        started = ledger.start_sync(pool, second)
        count = len(first.parts) + len(second.parts)
        assert started == (len(second.parts) == 1)  # the first may have ended in between
        wait_for(pool, count)
        first.end()
        second.end()
        ledger.sync()


def test_a_new_segment_waits_for_the_background_sync(tmp_path: Path, pool: SyncPool) -> None:
    settings = LedgerSettings(sync="always", segment_bytes=64 * 1024)
    with Ledger.open(str(tmp_path), settings=settings) as ledger:
        for number in range(200):
            pending = PendingSync()
            ledger.messages.append(b"x" * 1000)
            if ledger.start_sync(pool, pending):
                ledger.messages.append(b"y" * 1000)  # may need a new segment, while it is synced
                wait_for(pool, len(pending.parts))
                pending.end()
            assert ledger.messages.next_seq == 2 * number + 3
        assert len(ledger.messages.sealed_segments()) > 2
        ledger.sync()
        assert ledger.messages.durable_next_seq == 401


def test_a_failed_background_sync_stops_the_ledger(tmp_path: Path, pipe: int) -> None:
    pool = PipePool(1)
    pool.pipe = pipe
    ledger = Ledger.open(str(tmp_path), settings=ALWAYS)
    ledger.messages.append(b"one")
    pending = PendingSync()
    assert ledger.start_sync(pool, pending)
    [job] = wait_for(pool, 1)
    error = pending.fail(OSError(job.error, "broken"))
    assert isinstance(error, LedgerStopped)
    with pytest.raises(LedgerStopped):
        ledger.messages.append(b"two")
    assert ledger.messages.durable_next_seq == 1
    ledger.close()
    pool.close()


@pytest.mark.parametrize("step", ["sync", "append", "seal", "rest", "close"])
def test_no_step_trusts_the_disk_after_a_failed_background_sync(
    tmp_path: Path, pipe: int, step: str
) -> None:
    """The system reports a failure once. The next sync of the file would seem to succeed."""
    pool = PipePool(1)
    pool.pipe = pipe
    ledger = Ledger.open(
        str(tmp_path), settings=LedgerSettings(sync="always", segment_bytes=64 * 1024)
    )
    ledger.messages.append(b"one")
    pending = PendingSync()
    assert ledger.start_sync(pool, pending)
    wait_for(pool, 1)  # it has failed, and the event loop has not noticed yet
    steps = {
        "sync": ledger.sync,
        "append": lambda: [ledger.messages.append(b"x" * 10_000) for _ in range(10)],
        "seal": ledger.messages.seal,
        "rest": ledger.rest,
        "close": ledger.close,
    }
    with pytest.raises(LedgerStopped):
        steps[step]()
    assert ledger.messages.durable_next_seq == 1
    ledger.close()
    pool.close()
