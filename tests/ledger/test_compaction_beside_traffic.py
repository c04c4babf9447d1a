"""Compaction works while others append and read: nobody misses an entry or sees one twice."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from penstock.errors import EntryGone
from penstock.ledger import Compactor, Cursor, Retention, read_entry
from penstock.ledger.compaction import remove_before
from penstock.ledger.segment import Segment
from penstock.torture.damage_store import Live
from tests.ledger.store import MODES, Store, payload_of, seqs
from tests.ledger.watched_files import WatchedFiles

DEADLINE_S = 60


class Unread:
    """Live is what was not read yet, and each tenth entry for ever."""

    def __init__(self) -> None:
        self.next_seq = 1

    def count(self, first_seq: int, end_seq: int) -> int:
        return len(list(self.seqs(first_seq, end_seq)))

    def seqs(self, first_seq: int, end_seq: int) -> Iterable[int]:
        next_seq = self.next_seq
        return [seq for seq in range(first_seq, end_seq) if seq >= next_seq or seq % 10 == 0]


@pytest.mark.parametrize("mode", MODES)
def test_an_appender_a_reader_and_a_compactor_do_not_disturb_each_other(
    tmp_path: Path, mode: str
) -> None:
    total = 1500
    store = Store(tmp_path / "queue", replace(MODES[mode], max_open_segments=2))
    ledger, log = store.ledger, store.messages
    unread, done = Unread(), Event()
    found: list[int] = []
    errors: list[BaseException] = []

    def guarded(do: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                do()
            except BaseException as error:
                errors.append(error)
                done.set()

        return run

    def append() -> None:
        while log.next_seq <= total and not done.is_set():
            first = log.next_seq
            log.append_batch([payload_of(first + n) for n in range(5)])
            ledger.commit()

    def read() -> None:
        cursor = Cursor(log, 1)
        while cursor.next_seq <= total and not done.is_set():
            if not log.wait_for(cursor.next_seq, DEADLINE_S):
                break
            for entry in cursor.read(20):
                assert entry.payload == payload_of(entry.seq)
                found.append(entry.seq)
            unread.next_seq = cursor.next_seq
        done.set()

    def compact() -> None:
        while not done.is_set():
            Compactor(ledger, log, unread, Retention(), store.clock).run()

    def look_up() -> None:
        while not done.is_set():
            for seq in range(10, log.readable_next_seq, 170):
                assert read_entry(log, seq).payload == payload_of(seq)

    threads = [Thread(target=guarded(do)) for do in (append, read, compact, look_up)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert errors == []
    assert found == list(range(1, total + 1))
    assert store.damage == []
    store.reopen()
    kept = seqs(store.messages)
    assert {seq for seq in range(1, total + 1) if seq % 10 == 0} <= set(kept)
    assert store.damage == []
    store.close()


class StoppingFiles(WatchedFiles):
    """Calls back right after a rename or an unlink of a segment."""

    def __init__(self) -> None:
        super().__init__()
        self.after_rename: Callable[[], None] = lambda: None
        self.after_unlink: Callable[[], None] = lambda: None

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if target.endswith(".log"):
            self.after_rename()

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if path.endswith(".log"):
            self.after_unlink()


@pytest.mark.parametrize("moment", ["after_rename", "after_unlink"])
def test_a_reader_is_right_at_every_moment_of_a_rewrite(tmp_path: Path, moment: str) -> None:
    """Also one that has to open its segment anew just then."""
    files = StoppingFiles()
    store = Store(tmp_path / "queue", files=files)
    store.fill(300)
    log, live = store.messages, {20, 70, 75, 110}
    cursor = Cursor(log, 1)
    found = [entry.seq for entry in cursor.read(40)]

    def read_some() -> None:
        for segment in log.segments.all:
            segment.close()
        found.extend(entry.seq for entry in cursor.read(10))
        for seq in live:
            assert read_entry(log, seq).payload == payload_of(seq)

    setattr(files, moment, read_some)
    Compactor(store.ledger, log, Live(frozenset(live)), Retention(), store.clock).run()
    while entries := cursor.read(10):
        found += [entry.seq for entry in entries]
    assert found == sorted(set(found))
    assert live <= set(found)
    assert store.damage == []
    store.close()


def test_a_reader_of_a_segment_that_is_removed_goes_on_behind_it(tmp_path: Path) -> None:
    files = StoppingFiles()
    store = Store(tmp_path / "queue", files=files)
    store.fill(300)
    log = store.messages
    cursor = Cursor(log, 1)
    found = [entry.seq for entry in cursor.read(10)]
    used = log.segments.used

    def use_and_be_overtaken(segment: Segment) -> Segment:
        used(segment)
        log.segments.used = used  # type: ignore[method-assign]
        for each in log.segments.all:
            each.close()
        remove_before(store.ledger, log, 100)
        return segment

    log.segments.used = use_and_be_overtaken  # type: ignore[method-assign]
    while entries := cursor.read(10):
        found += [entry.seq for entry in entries]
    first = log.first_seq
    assert found == [*range(1, 11), *range(first, 301)]
    with pytest.raises(EntryGone):
        read_entry(log, 1)
    store.close()
