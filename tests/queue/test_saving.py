"""Large snapshots are saved beside the work; never an older one after a newer."""

import logging
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from penstock.errors import DiskFull
from penstock.queue import StorageSettings
from penstock.queue.snapshot import LARGE_BYTES, Frozen, SnapshotSaver
from tests.harness.queue_store import QueueStore


def frozen(text: bytes) -> Frozen:
    found = Frozen()
    found.blob(text)
    return found


class Disk:
    """Where snapshots are saved to, as slowly as the test wants."""

    def __init__(self) -> None:
        self.saved: list[int] = []
        self.may_go_on = Event()
        self.error: Exception | None = None

    def save(self, event_seq: int, blob: bytes) -> None:
        assert self.may_go_on.wait(30)
        if self.error is not None:
            raise self.error
        self.saved.append(event_seq)


def nothing() -> None:
    pass


def test_saving_beside_keeps_nobody_waiting_and_is_finished_at_the_end() -> None:
    disk, told = Disk(), []
    saver = SnapshotSaver(disk.save, "a queue")
    saver.save_in_thread(7, frozen(b"x"), lambda: told.append(7))
    assert (saver.is_busy, disk.saved) == (True, [])
    disk.may_go_on.set()
    saver.end()
    assert (saver.is_busy, disk.saved, told) == (False, [7], [7])
    saver.save_in_thread(8, frozen(b"x"), nothing)  # after the end it begins anew
    saver.end()
    assert disk.saved == [7, 8]


def test_what_was_saved_is_let_go() -> None:
    disk = Disk()
    disk.may_go_on.set()
    saver = SnapshotSaver(disk.save, "a queue")
    large = frozen(b"x")
    kept, saved = weakref.ref(large), Event()
    saver.save_in_thread(7, large, saved.set)
    del large
    assert saved.wait(30)
    saver.save_in_thread(8, frozen(b"y"), nothing)  # by then the thread is done with the first
    saver.end()
    assert kept() is None


def test_an_older_one_is_not_saved_after_a_newer() -> None:
    disk = Disk()
    disk.may_go_on.set()
    saver = SnapshotSaver(disk.save, "a queue")
    saver.save(9, frozen(b"x"))
    saver.save(8, frozen(b"x"))
    saver.save(9, frozen(b"x"))
    assert disk.saved == [9, 9]


def test_a_save_that_failed_is_told_and_the_next_is_another_chance(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, told = Disk(), []
    disk.may_go_on.set()
    disk.error = DiskFull("no room")
    saver = SnapshotSaver(disk.save, "a queue")
    with caplog.at_level(logging.WARNING):
        saver.save_in_thread(7, frozen(b"x"), lambda: told.append(7))
        saver.end()
    assert (told, saver.is_busy) == ([], False)
    assert "no room" in caplog.text
    disk.error = None
    saver.save_in_thread(8, frozen(b"x"), lambda: told.append(8))
    saver.end()
    assert told == [8]


def test_a_queue_with_a_large_state_goes_on_while_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.core.LARGE_BYTES", 2000)
    store = QueueStore({"snapshot_every": 10}, path=tmp_path)
    queue = store.queue
    core = queue.core
    disk, real = Disk(), core.ledger.save_snapshot

    def slowly(save: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
        def save_slowly(event_seq: int, blob: bytes) -> None:
            disk.save(event_seq, blob)
            save(event_seq, blob)

        return save_slowly

    core.saver.write = slowly(real)
    assert LARGE_BYTES > 2000
    disk.may_go_on.set()
    for number in range(300):
        if number == 200:
            disk.may_go_on.clear()  # from now on it is large
        queue.enqueue(b"later", delay=1000)
    assert core.saver.is_busy
    queue.enqueue(b"now")
    assert queue.dequeue() is not None
    disk.may_go_on.set()
    store.close()
    assert disk.saved
    assert store.open().stats().scheduled == 300


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("sync", ["always", "never"])
def test_publishing_alone_saves_the_state_now_and_then(
    monkeypatch: pytest.MonkeyPatch, sync: str, *, mapped: bool
) -> None:
    made = StorageSettings.ledger_settings
    monkeypatch.setattr(
        StorageSettings, "ledger_settings", lambda self: replace(made(self), mapped=mapped)
    )
    store = QueueStore({"snapshot_every": 4, "sync": sync})
    saved: list[int] = []
    store.queue.core.saver.write = lambda event_seq, blob: saved.append(len(blob))
    for _ in range(1000):
        store.queue.enqueue(b"x")
    assert 5 < len(saved) < 20  # a plain message weighs little
    store.close()
