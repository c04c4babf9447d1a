"""A queue that another process holds for a moment: the sink waits for it, up to a deadline."""

from collections.abc import Callable
from pathlib import Path
from threading import Condition, Thread

import pytest

import penstock
from penstock.clock import SystemClock
from penstock.errors import LedgerLocked
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.queue_directory import DirectoryLock
from penstock.spark import writers
from penstock.spark.stream_reader import StreamReader
from tests.spark.in_process import source
from tests.spark.lock_holder import LockHolder, held
from tests.spark.test_sink import payloads, staging, task, writer


class WaitingClock(SystemClock):
    """Calls a function at each wait instead of waiting. Every wait takes its whole time."""

    def __init__(self, at_wait: Callable[[], None]) -> None:
        self._at_wait = at_wait
        self.waited_s: list[float] = []

    def monotonic_ns(self) -> int:
        return round(sum(self.waited_s) * 1e9)

    def wait(self, condition: Condition, timeout_s: float | None) -> None:
        assert timeout_s is not None
        self.waited_s.append(timeout_s)
        self._at_wait()


def waiting(monkeypatch: pytest.MonkeyPatch, at_wait: Callable[[], None]) -> WaitingClock:
    clock = WaitingClock(at_wait)
    monkeypatch.setattr(writers, "SystemClock", lambda: clock)
    return clock


def released_at(count: int, holder: LockHolder) -> Callable[[], None]:
    """Release the lock at the n-th wait."""
    left = [count]

    def at_wait() -> None:
        left[0] -= 1
        if not left[0]:
            holder.release()

    return at_wait


@pytest.mark.parametrize("waits", [1, 5])
def test_a_commit_waits_for_a_lock_that_is_held_for_a_moment(
    tmp_path: Path, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(tmp_path, txnAppId="nightly", txnVersion=1)
    staged = task(made, [b"a", b"b"])
    with held(tmp_path) as holder:
        clock = waiting(monkeypatch, released_at(waits, holder))
        made.commit([staged])
    assert len(clock.waited_s) == waits
    assert payloads(tmp_path) == [b"a", b"b"]
    assert staging(tmp_path) == []


def test_a_commit_in_a_data_directory_waits_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_broker").mkdir()
    path = tmp_path / "shop" / "orders"
    path.parent.mkdir()
    made = writer(path)
    staged = task(made, [b"a"])
    with held(path) as holder:
        clock = waiting(monkeypatch, released_at(2, holder))
        made.commit([staged])
    assert len(clock.waited_s) == 2
    assert payloads(path) == [b"a"]


def test_a_commit_gives_up_at_the_deadline_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(tmp_path)
    staged = task(made, [b"a"])
    with held(tmp_path):
        clock = waiting(monkeypatch, lambda: None)
        with pytest.raises(LedgerLocked, match="is being written by process"):
            made.commit([staged])
    assert sum(clock.waited_s) == pytest.approx(writers.LOCK_WAIT_S)
    assert max(clock.waited_s) <= 0.5
    assert payloads(tmp_path) == []
    made.commit([staged])
    assert payloads(tmp_path) == [b"a"]


def test_a_new_sink_waits_for_the_one_that_makes_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DirectoryLock(Folder(OsFiles(), str(tmp_path)))
    lock.take(SystemClock())  # which is what making a queue does first
    clock = waiting(monkeypatch, lock.release)
    made = writer(tmp_path)
    assert len(clock.waited_s) == 1
    made.commit([task(made, [b"a"])])
    assert payloads(tmp_path) == [b"a"]


def test_a_new_group_waits_for_a_lock_that_is_held_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(tmp_path) as holder:
        clock = waiting(monkeypatch, released_at(1, holder))
        made = source(tmp_path, group="spark")
        reader = made.streamReader(made.schema())
        assert isinstance(reader, StreamReader)
        reader.initialOffset()
    assert len(clock.waited_s) == 1
    with penstock.open(str(tmp_path)) as queue:
        assert "spark" in queue.groups


def test_streams_that_write_to_one_queue_do_not_fail_each_other(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def stream(name: str) -> None:
        try:
            for version in range(10):
                made = writer(tmp_path, txnAppId=name, txnVersion=version)
                made.commit([task(made, [b"%s %d" % (name.encode(), version)])])
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=stream, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    expected = [b"%s %d" % (n, v) for n in (b"one", b"three", b"two") for v in range(10)]
    assert sorted(payloads(tmp_path)) == expected
