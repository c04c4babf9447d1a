"""Closing: everything is synced, nothing is held, and whatever comes after is refused."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from penstock.codec import Draft
from penstock.errors import LedgerClosed, LedgerStopped
from penstock.ledger import Cursor, Ledger, read_entry, seq_at_time
from penstock.ledger.compaction import remove_before
from penstock.ledger.json_files import Marks
from tests.ledger.store import EVENT, SMALL, Store, all_entries, seqs
from tests.ledger.test_preallocation import open_files
from tests.ledger.watched_files import WatchedFiles

USES: dict[str, Callable[[Ledger], object]] = {
    "append": lambda ledger: ledger.messages.append(b""),
    "append batch": lambda ledger: ledger.messages.append_batch([b"", b""]),
    "append draft": lambda ledger: ledger.events.append_draft(Draft(b"", type=EVENT)),
    "sync": lambda ledger: ledger.sync(),
    "rest": lambda ledger: ledger.rest(),
    "read by seq": lambda ledger: read_entry(ledger.messages, 1),
    "read by time": lambda ledger: seq_at_time(ledger.messages, 0),
    "read in order": lambda ledger: Cursor(ledger.messages, 1).read(1),
    "save settings": lambda ledger: ledger.save_queue_settings({}),
    "save marks": lambda ledger: ledger.save_marks(ledger.messages, Marks(9, 9)),
    "save a snapshot": lambda ledger: ledger.save_snapshot(1, b""),
    "remove": lambda ledger: remove_before(ledger, ledger.messages, 100),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_ledger_refuses_every_use_and_writes_nothing(any_store: Store, use: str) -> None:
    any_store.fill(100)
    ledger = any_store.ledger
    any_store.close()
    before = {path: path.stat().st_mtime_ns for path in any_store.path.rglob("*")}
    for _ in range(2):
        with pytest.raises(LedgerClosed, match="open it again"):
            USES[use](ledger)
    assert {path: path.stat().st_mtime_ns for path in any_store.path.rglob("*")} == before


def test_closing_twice_is_fine(any_store: Store) -> None:
    any_store.fill(3)
    ledger = any_store.ledger
    ledger.close()
    ledger.close()
    with any_store.open():
        assert len(seqs(any_store.messages)) == 3


def test_a_with_statement_closes(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "queue")) as ledger:
        ledger.messages.append(b"")
    with pytest.raises(LedgerClosed):
        ledger.messages.append(b"")


def test_a_closed_ledger_holds_nothing(any_store: Store) -> None:
    any_store.fill(300)
    assert len(seqs(any_store.messages)) == 300
    any_store.close()
    assert open_files(any_store.path) == []


def test_closing_syncs_whatever_the_policy(any_store: Store) -> None:
    files = WatchedFiles()
    any_store.files = files
    any_store.fill(3)
    before = files.calls["fdatasync"]
    any_store.close()
    assert files.calls["fdatasync"] > before


def test_an_append_that_races_the_closing_is_there_or_refused(any_store: Store) -> None:
    answered: list[int] = []
    started = Event()
    ledger = any_store.open()

    def append() -> None:
        try:
            while True:
                seq = ledger.messages.append(b"x" * 100)
                ledger.commit()
                answered.append(seq)
                started.set()
        except LedgerClosed:
            pass

    threads = [Thread(target=append) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait(30)
    any_store.close()
    for thread in threads:
        thread.join(30)
    found = seqs(any_store.messages)
    assert set(answered) <= set(found)
    assert found == list(range(1, len(found) + 1))


@pytest.mark.parametrize("end", ["rest", "close"])
def test_an_append_in_the_middle_of_resting_or_closing_is_not_lost(
    any_store: Store, end: str
) -> None:
    """At whatever call of the system it comes: it is there, or it was refused."""
    answered: list[tuple[int, bytes]] = []

    class Overtaken(WatchedFiles):
        armed = 0
        late: Thread | None = None

        def _overtake(self) -> None:
            self.armed -= 1
            if self.armed == 0:
                self.late = Thread(target=append)
                self.late.start()
                self.late.join(0.02)

        def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
            self._overtake()
            return super().pwrite(fd, data, offset)

        def truncate(self, fd: int, size: int) -> None:
            self._overtake()
            super().truncate(fd, size)

        def fdatasync(self, fd: int) -> None:
            self._overtake()
            super().fdatasync(fd)

    def append() -> None:
        try:
            seq = ledger.messages.append(b"late %d" % nth)
            ledger.commit()
        except LedgerClosed:
            return
        answered.append((seq, b"late %d" % nth))

    any_store.files = files = Overtaken()
    for nth in range(1, 7):
        ledger = any_store.open()
        answered += enumerate(any_store.fill(3), ledger.messages.next_seq - 3)
        files.armed = nth
        if end == "rest":
            ledger.rest()
        else:
            any_store.close()
        if files.late is not None:
            files.late.join(30)
        any_store.close()
    found = {(entry.seq, entry.payload) for entry in all_entries(any_store.messages)}
    assert set(answered) <= found


def test_tasks_that_wait_when_the_ledger_closes_are_answered(tmp_path: Path) -> None:
    files = WatchedFiles()
    store = Store(tmp_path / "queue", replace(SMALL, sync="always"), files=files)
    ledger = store.open()
    syncing, go_on = Event(), Event()

    def be_slow() -> None:
        files.before_fdatasync = lambda: None
        syncing.set()
        go_on.wait(30)

    async def append() -> str:
        ledger.messages.append(b"x")
        try:
            await (ledger.commit_async() or asyncio.sleep(0))
        except LedgerClosed:
            return "closed"
        return "durable"

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        await append()
        files.before_fdatasync = be_slow
        first = asyncio.create_task(append())
        await loop.run_in_executor(None, syncing.wait, 30)
        later = [asyncio.create_task(append()) for _ in range(3)]
        await asyncio.sleep(0)
        closing = loop.run_in_executor(None, ledger.close)
        go_on.set()
        answers = await asyncio.wait_for(asyncio.gather(first, *later), 30)
        await asyncio.wait_for(closing, 30)
        return answers

    answers = asyncio.run(main())
    assert answers[0] == "durable"
    assert set(answers) <= {"durable", "closed"}
    store.forget()
    assert len(seqs(store.messages)) >= 1 + answers.count("durable")
    store.close()


def test_a_failed_sync_while_closing_is_an_error_and_lets_go_of_everything(
    tmp_path: Path,
) -> None:
    files = WatchedFiles()
    store = Store(tmp_path / "queue", files=files)
    store.fill(3)

    def fail() -> None:
        raise OSError(5, "Input/output error")

    files.before_fdatasync = fail
    with pytest.raises(LedgerStopped, match="Input/output error"):
        store.close()
    files.before_fdatasync = lambda: None
    gc.collect()  # the error holds the frames it came through, and they the mapping
    assert open_files(store.path) == []
    assert seqs(store.messages) == [1, 2, 3]
    store.close()


def test_closing_a_ledger_that_nothing_was_written_to_writes_no_segment(store: Store) -> None:
    store.open()
    store.close()
    assert store.segments() == []
