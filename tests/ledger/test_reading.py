"""Reading by seq, by time, and in order."""

from dataclasses import replace
from threading import Thread

import pytest

from penstock.codec import Draft
from penstock.errors import EntryGone, InvalidInput
from penstock.ledger import Cursor, read_entry, seq_at_time
from penstock.ledger.compaction import remove_before
from penstock.ledger.files import OsFiles
from penstock.ledger.segment import Segment
from tests.ledger.store import EVENT, SMALL, Store, all_entries, payload_of, seqs

START_NS = 1_700_000_000_000_000_000


# -- by seq ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_codec")
def test_any_entry_is_read_by_its_seq(any_store: Store) -> None:
    any_store.fill(150)
    for _ in range(2):
        for seq in (1, 2, 75, 149, 150, 33):
            entry = read_entry(any_store.messages, seq)
            assert (entry.seq, entry.payload) == (seq, payload_of(seq))
        any_store.reopen()


@pytest.mark.parametrize("seq", [0, -1, 4, 1 << 70])
def test_a_seq_that_was_not_written_is_gone(store: Store, seq: int) -> None:
    store.fill(3)
    with pytest.raises(EntryGone, match=f"seq {seq} was not written; the next is 4"):
        read_entry(store.messages, seq)


def test_a_seq_that_was_removed_is_gone(store: Store) -> None:
    store.fill(150)
    remove_before(store.ledger, store.messages, 100)
    with pytest.raises(EntryGone, match="seq 1 was removed; the first is"):
        read_entry(store.messages, 1)


def test_reading_by_seq_looks_at_no_more_than_the_entries_near_it(store: Store) -> None:
    """Rests on the index: one map of the segment, and no read of the others."""
    store.fill(3000)
    store.reopen()
    read_entry(store.messages, 1500)
    opened = [segment for segment in store.messages.segments.all if segment.is_open]
    assert len(opened) == 1


# -- by time ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_codec")
def test_a_time_leads_to_the_first_entry_at_or_after_it(any_store: Store) -> None:
    for _ in range(100):
        any_store.fill(1)
        any_store.clock.advance(1)
    for _ in range(2):
        log = any_store.messages
        assert seq_at_time(log, 0) == 1
        assert seq_at_time(log, START_NS) == 1
        assert seq_at_time(log, START_NS + 1) == 2
        assert seq_at_time(log, START_NS + 49_500_000_000) == 51
        assert seq_at_time(log, START_NS + 99_000_000_000) == 100
        assert seq_at_time(log, START_NS + 99_000_000_001) == 101 == log.next_seq
        any_store.reopen()


def test_of_entries_of_one_time_the_first_is_found(any_store: Store) -> None:
    """Also where the one time spans segments and index points."""
    any_store.fill(3)
    any_store.clock.advance(1)
    any_store.fill(150)
    any_store.clock.advance(1)
    any_store.fill(3)
    assert len(any_store.segments()) > 3
    assert seq_at_time(any_store.messages, START_NS + 1_000_000_000) == 4
    assert seq_at_time(any_store.messages, START_NS + 1_000_000_001) == 154


def test_entries_written_while_the_clock_was_behind_are_found_at_the_time_stored(
    store: Store,
) -> None:
    store.fill(2)
    store.clock.jump(-3600)
    store.fill(2)
    store.clock.jump(7200)
    store.fill(1)
    assert seq_at_time(store.messages, START_NS - 1) == 1
    assert seq_at_time(store.messages, START_NS) == 1
    assert seq_at_time(store.messages, START_NS + 1) == 5


def test_an_empty_log_has_no_entry_at_any_time(store: Store) -> None:
    assert seq_at_time(store.messages, START_NS) == 1


# -- in order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_a_cursor_reads_on_over_all_segments(any_store: Store, at_once: int) -> None:
    any_store.fill(150)
    found = [entry.seq for entry in all_entries(any_store.messages, at_once=at_once)]
    assert found == list(range(1, 151))


def test_a_cursor_starts_where_it_is_told(store: Store) -> None:
    store.fill(150)
    assert seqs(store.messages, 77) == list(range(77, 151))
    assert seqs(store.messages, -5) == list(range(1, 151))
    assert seqs(store.messages, 151) == []


def test_a_cursor_goes_on_as_the_log_grows(any_store: Store) -> None:
    cursor = Cursor(any_store.messages, 1)
    assert cursor.read(10) == []
    for count in (1, 5, 80):
        any_store.fill(count)
        first = cursor.next_seq
        found: list[int] = []
        while entries := cursor.read(7):
            found += [entry.seq for entry in entries]
        assert found == list(range(first, first + count))
    assert cursor.read(10) == []


def test_a_cursor_that_is_ahead_waits_for_its_seq(store: Store) -> None:
    store.fill(2)
    cursor = Cursor(store.messages, 5)
    assert cursor.read(10) == []
    store.fill(100)
    assert cursor.read(1)[0].seq == 5


def test_a_cursor_does_not_read_nothing(store: Store) -> None:
    """Asking for no entries must not move it past those there are."""
    store.fill(150)
    cursor = Cursor(store.messages, 1)
    with pytest.raises(InvalidInput, match="max_count"):
        cursor.read(0)
    assert cursor.read(1)[0].seq == 1


def test_a_cursor_misses_nothing_when_the_log_rotates_while_it_reads(store: Store) -> None:
    """An append falls behind its look at the tail, a rotation behind its reading of the segment."""
    store.fill(2)
    log = store.messages
    cursor = Cursor(log, 1)
    assert len(cursor.read(10)) == 2
    look, after = log.publish_tail, log.segments.after

    def look_and_be_overtaken() -> None:
        look()
        log.publish_tail = look  # type: ignore[method-assign]
        log.append(payload_of(3))

    def rotate_and_look_for_the_next(segment: Segment) -> Segment | None:
        log.segments.after = after  # type: ignore[method-assign]
        store.fill(59)
        return after(segment)

    log.publish_tail = look_and_be_overtaken  # type: ignore[method-assign]
    log.segments.after = rotate_and_look_for_the_next  # type: ignore[method-assign]
    found = []
    while entries := cursor.read(7):
        found += [entry.seq for entry in entries]
    assert found == list(range(3, 63))


def test_a_cursor_misses_nothing_at_the_moment_of_rotation(store: Store) -> None:
    """It reads after the new segment is there and before the old one is sealed."""
    store.fill(2)
    log = store.messages
    cursor = Cursor(log, 1)
    found = [entry.seq for entry in cursor.read(10)]
    add_segment = log.segments.add

    def add_and_read(*new: Segment) -> None:
        add_segment(*new)
        found.extend(entry.seq for entry in cursor.read(1000))

    log.segments.add = add_and_read  # type: ignore[method-assign]
    store.fill(60)
    log.segments.add = add_segment  # type: ignore[method-assign]
    while entries := cursor.read(7):
        found += [entry.seq for entry in entries]
    assert found == list(range(1, 63))


def test_an_entry_is_found_while_its_bytes_are_on_their_way_to_the_file(store: Store) -> None:
    """Its seq is given already; who asks for it waits for the bytes."""
    store.open(replace(SMALL, mapped=False))
    store.fill(3)
    files = store.ledger.root.files
    found: list[bytes] = []
    reader = Thread(target=lambda: found.append(read_entry(store.messages, 4).payload))
    pwrite = files.pwrite

    def slow_pwrite(fd: int, data: bytes | memoryview, offset: int) -> int:
        reader.start()
        reader.join(0.1)
        return pwrite(fd, data, offset)

    files.pwrite = slow_pwrite  # type: ignore[method-assign]
    store.messages.append(b"fourth")
    del files.pwrite
    reader.join(30)
    assert found == [b"fourth"]


def test_cursors_and_look_ups_need_few_open_files(store: Store) -> None:
    store.open(replace(SMALL, max_open_segments=2))
    store.fill(300)
    assert len(store.segments()) > 8
    cursors = [Cursor(store.messages, seq) for seq in (1, 100, 200, 280)]
    for _ in range(20):
        for cursor in cursors:
            assert cursor.read(1)[0].seq == cursor.next_seq - 1
    assert sum(segment.is_open for segment in store.messages.segments.all) <= 2


def test_entries_that_a_segment_of_another_seq_base_holds_count_from_it(store: Store) -> None:
    """A segment with the relative flag: written elsewhere, adopted by its header alone."""
    from penstock import codec
    from penstock.ledger.segment_header import RELATIVE, SegmentHeader, segment_name

    store.fill(4)
    identity = store.ledger.identity
    store.close()
    entries = [codec.pack(n, START_NS + n, Draft(b"%d" % n)) for n in range(3)]
    header = SegmentHeader(1, identity, 5, START_NS, RELATIVE)
    (store.path / "messages" / segment_name(5)).write_bytes(header.pack() + b"".join(entries))
    store.open()
    assert seqs(store.messages) == [1, 2, 3, 4, 5, 6, 7]
    assert read_entry(store.messages, 6).payload == b"1"
    assert store.messages.next_seq == 8
    store.fill(2)
    store.reopen_after_death()
    assert seqs(store.messages) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert read_entry(store.messages, 8).payload == payload_of(8)


def test_the_event_log_is_read_in_the_same_ways(store: Store) -> None:
    for number in range(100):
        store.events.append_draft(Draft(b"%d" % number, type=EVENT))
        store.clock.advance(1)
    assert read_entry(store.events, 50).payload == b"49"
    assert seq_at_time(store.events, START_NS + 49_000_000_000) == 50
    assert len(list(all_entries(store.events))) == 100


def test_reading_does_not_write(store: Store) -> None:
    class NoWrites(OsFiles):
        def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
            raise AssertionError("a write")

    store.fill(150)
    store.reopen()
    store.ledger.root.files.pwrite = NoWrites().pwrite  # type: ignore[method-assign]
    list(all_entries(store.messages))
    seq_at_time(store.messages, START_NS)
    read_entry(store.messages, 3)
    del store.ledger.root.files.pwrite
