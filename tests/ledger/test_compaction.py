"""Compaction: what is done with goes, what is live stays, seqs and bytes are kept."""

import errno
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.codec import Draft, Entry
from penstock.errors import DiskFull, EntryGone, LedgerClosed, PenstockError
from penstock.ledger import Compactor, Cursor, Retention, read_entry, seq_at_time, verify
from penstock.ledger.compaction import CompactionResult, remove_before
from penstock.ledger.json_files import Manifest, Marks
from penstock.ledger.memory_files import MemoryFiles
from penstock.torture.damage_store import Live
from tests.harness.faults import Fault, FaultyFiles
from tests.ledger.store import SMALL, Store, all_entries, full_draft, payload_of, seqs
from tests.ledger.watched_files import WatchedFiles


def compact(store: Store, live: set[int], **retention: object) -> CompactionResult:
    rule = Retention(**retention)  # type: ignore[arg-type]
    return Compactor(store.ledger, store.messages, Live(frozenset(live)), rule, store.clock).run()


def without_place(entry: Entry) -> Entry:
    return entry._replace(offset=0, size=0)


def bases(store: Store) -> list[int]:
    return [int(path.stem) for path in store.segments()]


# -- removing --------------------------------------------------------------------------------------


def test_segments_without_a_live_entry_are_removed_from_the_front(any_store: Store) -> None:
    any_store.fill(200)
    before = bases(any_store)
    result = compact(any_store, set(range(100, 201)), rewrite_below=0)
    kept = [base for base, end in pairwise(before) if end > 100]
    assert bases(any_store) == [*kept, before[-1]]
    assert result.segments_removed == len(before) - len(kept) - 1
    assert result.removed_below_seq == kept[0]
    assert result.bytes_freed > 0
    assert seqs(any_store.messages) == list(range(kept[0], 201))
    assert any_store.messages.first_seq == kept[0]
    any_store.reopen()
    assert seqs(any_store.messages) == list(range(kept[0], 201))


def test_the_segment_being_written_is_never_touched(store: Store) -> None:
    store.fill(10)
    compact(store, set(), rewrite_below=1)
    assert seqs(store.messages) == list(range(1, 11))


def test_a_live_entry_keeps_its_segment_and_all_behind_it_from_removal(store: Store) -> None:
    store.fill(200)
    before = bases(store)
    compact(store, {before[2]}, rewrite_below=0)
    assert bases(store) == before[2:]


def test_remove_before_removes_whole_segments_below_a_seq(store: Store) -> None:
    store.fill(200)
    before = bases(store)
    remove_before(store.ledger, store.messages, before[3] + 1)
    assert bases(store) == before[3:]
    assert remove_before(store.ledger, store.messages, 1) == CompactionResult()
    remove_before(store.ledger, store.messages, 1 << 60)
    assert bases(store) == before[-1:]


def test_the_low_water_mark_is_durable_before_the_first_file_goes(tmp_path: Path) -> None:
    """Unlinks can become durable in any order: without the mark, entries would come back."""
    seen: list[Marks] = []

    class Unlinks(WatchedFiles):
        def unlink(self, path: str) -> None:
            if path.endswith(".log"):
                marks = Manifest.unpack((tmp_path / "queue/queue.json").read_bytes()).messages
                seen.append(marks)
            super().unlink(path)

    store = Store(tmp_path / "queue", files=Unlinks())
    store.fill(200)
    low = bases(store)[4]
    remove_before(store.ledger, store.messages, low)
    assert seen == [Marks(low=low, next=201)] * 4
    store.close()


def test_a_removed_segment_that_comes_back_is_removed_again(store: Store) -> None:
    store.fill(200)
    old = [(path, path.read_bytes()) for path in store.segments()[:4]]
    low = bases(store)[4]
    remove_before(store.ledger, store.messages, low)
    store.die()
    for path, content in old:
        path.write_bytes(content)
    store.open()
    assert seqs(store.messages) == list(range(low, 201))
    assert not any(path.exists() for path, _ in old)


def test_seqs_are_never_used_again_after_everything_was_removed(any_store: Store) -> None:
    any_store.fill(100)
    for _ in range(3):
        next_seq = any_store.messages.next_seq
        compact(any_store, set(), rewrite_below=1)
        any_store.reopen()
        compact(any_store, set(), rewrite_below=1)
        any_store.reopen_after_death()
        assert any_store.messages.next_seq == next_seq
        any_store.fill(50)
        assert any_store.messages.next_seq == next_seq + 50


def test_seqs_are_never_used_again_even_if_the_last_segment_is_lost_too(store: Store) -> None:
    """The mark says how far they were given out when it was written."""
    store.fill(100)
    remove_before(store.ledger, store.messages, 60)
    store.close()
    for path in store.segments():
        path.unlink()
    store.open()
    assert store.messages.next_seq == 101
    store.fill(1)
    assert seqs(store.messages) == [101]


# -- retention -------------------------------------------------------------------------------------


def test_with_no_limit_what_is_done_with_goes_at_once(store: Store) -> None:
    store.fill(200)
    compact(store, set())
    assert len(bases(store)) == 1


def test_max_segments_keeps_that_many(store: Store) -> None:
    store.fill(300)
    before = bases(store)
    compact(store, set(), max_segments=4)
    assert bases(store) == before[-4:]


@pytest.mark.parametrize("limits", [{}, {"max_segments": 4}])
def test_what_reaches_beyond_upto_seq_stays_whatever_the_limits_say(
    store: Store, limits: dict[str, int]
) -> None:
    """Neither removed nor rewritten. The limits count all segments, not only those that may go."""
    store.fill(300)
    before = bases(store)
    assert len(before) > 6
    compact(store, {before[1]}, upto_seq=before[3], **limits)
    assert bases(store)[-len(before[3:]) :] == before[3:]
    assert seqs(store.messages) == [before[1], *range(before[3], 301)]


def test_min_segments_is_stronger_than_any_limit(store: Store) -> None:
    store.fill(300)
    before = bases(store)
    store.clock.advance(1000)
    compact(store, set(), max_segments=2, max_age_s=1, max_bytes=0, min_segments=5)
    assert bases(store) == before[-5:]


def test_max_bytes_keeps_about_that_much(store: Store) -> None:
    store.fill(300)
    compact(store, set(), max_bytes=10_000)
    sealed = sum(path.stat().st_size for path in store.segments()[:-1])
    assert 10_000 - 4096 < sealed <= 10_000


def test_max_age_counts_from_when_the_next_segment_was_begun(store: Store) -> None:
    store.open(replace(SMALL, segment_entries=10))
    for _ in range(5):
        store.fill(10)
        store.clock.advance(100)
    store.fill(1)
    compact(store, set(), max_age_s=1000)
    assert bases(store) == [1, 11, 21, 31, 41, 51]
    compact(store, set(), max_age_s=250)
    assert bases(store) == [21, 31, 41, 51]


def test_what_retention_keeps_is_not_rewritten_either(store: Store) -> None:
    store.fill(200)
    before = [path.read_bytes() for path in store.segments()]
    compact(store, {50}, max_age_s=1000, rewrite_below=1)
    assert [path.read_bytes() for path in store.segments()] == before


@pytest.mark.parametrize("limit", ["max_age_s", "max_bytes", "max_segments"])
def test_no_limit_ever_removes_a_live_entry(store: Store, limit: str) -> None:
    store.fill(200)
    store.clock.advance(1e6)
    live = set(range(1, 201, 13))
    compact(store, live, **{limit: 0}, rewrite_below=1)
    assert live <= set(seqs(store.messages))


# -- rewriting -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_codec")
def test_a_few_live_entries_do_not_pin_their_segments(any_store: Store) -> None:
    any_store.fill(30)
    any_store.messages.append_batch([full_draft(b"batch %d" % n) for n in range(10)])
    any_store.fill(200)
    live = {3, 33, 34, 99, 100, 160}
    before = {seq: read_entry(any_store.messages, seq) for seq in live}
    result = compact(any_store, live)
    assert result.segments_rewritten > 3
    for _ in range(2):
        found = {entry.seq: entry for entry in all_entries(any_store.messages)}
        assert live <= found.keys()
        for seq in live:
            assert without_place(found[seq]) == without_place(before[seq])
            assert without_place(read_entry(any_store.messages, seq)) == without_place(before[seq])
        with pytest.raises(EntryGone):
            read_entry(any_store.messages, 50)
        any_store.reopen()
    assert verify(str(any_store.path)).is_sound


def test_a_run_of_neighbours_becomes_one_segment(store: Store) -> None:
    store.fill(300)
    before = bases(store)
    compact(store, {before[0] + 1, before[3] + 1, before[5] + 1})
    assert bases(store) == [before[0], before[-1]]
    assert store.segments()[0].stat().st_size < 1000


def test_a_mostly_live_segment_parts_two_runs(store: Store) -> None:
    store.fill(300)
    before = bases(store)
    live = {before[0], before[1], *range(before[2], before[3]), before[3], before[4]}
    compact(store, live)
    assert bases(store)[:3] == [before[0], before[2], before[3]]
    assert live <= set(seqs(store.messages))


def test_rewriting_merges_no_more_than_fits_into_a_segment(store: Store) -> None:
    """Also what was rewritten before, run after run, as the log goes on."""
    live: set[int] = set()
    for _ in range(8):
        first = store.messages.next_seq
        store.fill(200)
        live |= set(range(first, first + 200, 3))
        compact(store, live)
        largest = max(path.stat().st_size for path in store.segments())
        assert largest <= store.settings.segment_bytes * 1.1
    assert live <= set(seqs(store.messages))


def test_compacting_again_changes_nothing(store: Store) -> None:
    store.fill(300)
    live = set(range(1, 300, 9))
    compact(store, live)
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in store.segments()}
    result = compact(store, live)
    after = {path: (path.stat().st_ino, path.read_bytes()) for path in store.segments()}
    assert after == before
    assert (result.segments_removed, result.bytes_freed) == (0, 0)


def test_a_rewritten_segment_is_rewritten_when_more_of_it_died(store: Store) -> None:
    store.fill(300)
    compact(store, set(range(1, 300, 9)))
    large = store.segments()[0].stat().st_size
    compact(store, {28})
    assert store.segments()[0].stat().st_size < large / 2
    assert 28 in seqs(store.messages)


def test_times_are_found_in_a_rewritten_segment(store: Store) -> None:
    for _ in range(150):
        store.fill(1)
        store.clock.advance(1)
    live = {5, 60, 61, 100}
    compact(store, live, rewrite_below=1)
    start_ns = 1_700_000_000_000_000_000
    for seq in live:
        at = seq_at_time(store.messages, start_ns + (seq - 1) * 10**9)
        assert Cursor(store.messages, at).read(1)[0].seq == seq
    at = seq_at_time(store.messages, start_ns + 5 * 10**9)
    assert Cursor(store.messages, at).read(1)[0].seq == 60


@pytest.mark.parametrize("left", ["all", "some"])
def test_a_crash_right_after_the_rename_leaves_each_entry_once(store: Store, left: str) -> None:
    """The merged neighbours may still be there: the new header says that it stands for them."""
    store.fill(300)
    before = bases(store)
    live = {before[0] + 1, before[2] + 1, before[4] + 1}
    neighbours = [(path, path.read_bytes()) for path in store.segments()[1:5]]
    compact(store, live)
    store.die()
    for path, content in neighbours[:: 1 if left == "all" else 2]:
        path.write_bytes(content)
    store.open()
    found = seqs(store.messages)
    assert found == sorted(set(found))
    assert [seq for seq in found if seq < before[5]] == sorted(live)
    assert not any(path.exists() for path, _ in neighbours)


def test_the_event_log_is_compacted_in_the_same_way(store: Store) -> None:
    for number in range(200):
        store.events.append_draft(Draft(b"%d" % number, type=16))
    live = Live(frozenset([150]))
    Compactor(store.ledger, store.events, live, Retention(), store.clock).run()
    assert 150 in seqs(store.events)
    assert len(store.segments("events")) <= 3
    assert store.ledger.marks(store.events).low > 1
    assert store.ledger.marks(store.messages) == Marks()


def test_damaged_entries_of_a_rewritten_segment_are_kept_in_quarantine(store: Store) -> None:
    store.fill(300)
    store.close()
    first = store.segments()[0]
    data = bytearray(first.read_bytes())
    data[64 + 126 + 50] ^= 1
    first.write_bytes(data)
    store.open()
    compact(store, {1, 2, 3})
    assert [seq for seq in seqs(store.messages) if seq < 10] == [1, 3]
    assert [(r.first_lost_seq, r.last_lost_seq) for r in store.damage] == [(2, 2)]
    [kept] = (store.path / "quarantine").iterdir()
    assert len(kept.read_bytes()) == 126


# -- when something fails --------------------------------------------------------------------------


def calls_of_a_compaction(live: set[int]) -> int:
    files = FaultyFiles(MemoryFiles(), Fault(1 << 30))
    store = Store(Path("/queue"), files=files)
    store.fill(200)
    before = files.chosen_calls
    compact(store, live)
    return files.chosen_calls - before


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("live", [{60, 61}, set(range(150, 201))], ids=["rewriting", "removing"])
def test_whatever_call_fails_the_error_is_typed_and_nothing_live_is_lost(
    error: int, live: set[int]
) -> None:
    for nth in range(1, calls_of_a_compaction(live) + 1):
        files = FaultyFiles(MemoryFiles())
        store = Store(Path("/queue"), files=files)
        store.fill(200)
        files.fault = Fault(nth, error)
        try:
            compact(store, live)
        except PenstockError:
            pass
        files.heal()
        assert live <= set(seqs(store.messages)), nth
        store.reopen_after_death()
        assert live <= set(seqs(store.messages)), nth
        assert store.messages.next_seq == 201
        compact(store, live)
        assert live <= set(seqs(store.messages)), nth
        assert store.damage == []
        store.close()


def test_a_full_disk_is_said_to_be_one(tmp_path: Path) -> None:
    files = FaultyFiles(WatchedFiles())
    store = Store(tmp_path / "queue", files=files)
    store.fill(200)
    files.fault = Fault(1, errno.ENOSPC, forever=True, methods=frozenset(["pwrite"]))
    with pytest.raises(DiskFull, match="compacting failed: .*No space left"):
        compact(store, {1})
    with pytest.raises(DiskFull, match=r"saving queue\.json failed: .*No space left"):
        compact(store, set())
    files.heal()
    store.close()


def test_a_closed_ledger_is_not_compacted(store: Store) -> None:
    store.fill(200)
    names = bases(store)
    compactor = Compactor(
        store.ledger, store.messages, Live(frozenset([60])), Retention(), store.clock
    )
    store.close()
    with pytest.raises(LedgerClosed):
        compactor.run()
    assert bases(store) == names


def test_steps_can_be_left_off_and_begun_again(store: Store) -> None:
    """A worker that compacts between other things may stop anywhere."""
    live = {7, 8, 90, 170}
    steps: Callable[[], Compactor] = lambda: Compactor(  # noqa: E731
        store.ledger, store.messages, Live(frozenset(live)), Retention(), store.clock
    )
    store.fill(200)
    for count in range(30):
        run = steps().steps()
        for _ in range(count):
            if next(run, "end") == "end":
                break
        del run
        store.fill(5)
    assert live <= set(seqs(store.messages))
    steps().run()
    assert live <= set(seqs(store.messages))
    store.reopen()
    assert live <= set(seqs(store.messages))
    assert read_entry(store.messages, 90).payload == payload_of(90)
