"""Appending: what goes in comes out, in order, in every mode and over both codecs."""

from threading import Barrier, Thread

import pytest

from penstock.clock import ManualClock
from penstock.codec import Draft
from penstock.errors import InvalidInput, TooLarge
from penstock.ledger import read_entry
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader
from tests.harness.ledger_oracle import draft_of
from tests.ledger.store import EVENT, Store, all_entries, full_draft, payloads, seqs

pytestmark = pytest.mark.usefixtures("either_codec")


def test_appended_entries_are_read_back_in_order_before_and_after_reopening(
    any_store: Store,
) -> None:
    written = [b"", b"x", b"y" * 5000, "grüße".encode(), bytes(range(256))]
    assert [any_store.messages.append(payload) for payload in written] == [1, 2, 3, 4, 5]
    any_store.ledger.commit()
    assert payloads(any_store.messages) == written
    any_store.reopen()
    assert payloads(any_store.messages) == written
    assert any_store.messages.next_seq == 6


def test_every_option_of_a_draft_survives(any_store: Store) -> None:
    drafts = [full_draft(b"all"), Draft(b"plain"), Draft(b"", key=b"", priority=0)]
    for draft in drafts:
        any_store.messages.append_draft(draft)
    any_store.ledger.commit()
    any_store.reopen()
    assert [draft_of(entry) for entry in all_entries(any_store.messages)] == drafts


def test_a_batch_gets_seqs_in_a_row_and_one_time(any_store: Store) -> None:
    any_store.messages.append(b"before")
    any_store.clock.advance(1)
    assert any_store.messages.append_batch([b"a", full_draft(b"b"), b"c"]) == 2
    any_store.ledger.commit()
    any_store.reopen()
    entries = list(all_entries(any_store.messages))
    assert [entry.payload for entry in entries] == [b"before", b"a", b"b", b"c"]
    assert [entry.seq for entry in entries] == [1, 2, 3, 4]
    assert len({entry.timestamp_ns for entry in entries[1:]}) == 1


def test_a_batch_of_one_is_a_message(any_store: Store) -> None:
    assert any_store.messages.append_batch([b"alone"]) == 1
    any_store.ledger.commit()
    assert payloads(any_store.messages) == [b"alone"]


def test_an_empty_batch_is_refused(any_store: Store) -> None:
    with pytest.raises(InvalidInput):
        any_store.messages.append_batch([])
    assert any_store.messages.next_seq == 1


def test_events_have_a_numbering_of_their_own(any_store: Store) -> None:
    any_store.messages.append(b"message")
    assert any_store.events.append_draft(Draft(b"event", type=EVENT)) == 1
    assert any_store.events.append_batch([Draft(b"1", type=EVENT), Draft(b"2", type=255)]) == 2
    any_store.ledger.commit()
    any_store.reopen()
    assert [entry.type for entry in all_entries(any_store.events)] == [EVENT, EVENT, 255]
    assert (any_store.messages.next_seq, any_store.events.next_seq) == (2, 4)


def test_an_entry_larger_than_a_segment_has_a_segment_of_its_own(any_store: Store) -> None:
    written = [b"a", b"b" * 20_000, b"c", b"d" * 20_000]
    for payload in written:
        any_store.messages.append(payload)
    any_store.messages.append_batch([b"e" * 9_000, b"f" * 9_000])
    any_store.ledger.commit()
    any_store.reopen()
    assert payloads(any_store.messages) == [*written, b"e" * 9_000, b"f" * 9_000]


def test_one_entry_too_large_refuses_the_whole_batch_and_changes_nothing(
    any_store: Store,
) -> None:
    any_store.fill(3)
    too_large = b"x" * any_store.settings.max_entry_bytes
    with pytest.raises(TooLarge, match="the maximum is"):
        any_store.messages.append(too_large)
    with pytest.raises(TooLarge, match="the maximum is"):
        any_store.messages.append_batch([b"good", too_large])
    assert any_store.messages.next_seq == 4
    any_store.fill(1)
    any_store.reopen()
    assert seqs(any_store.messages) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "draft",
    [
        Draft(b"", priority=10),
        Draft(b"", expires_at_ns=-1),
        Draft(b"", headers={"name": "lone surrogate \ud800"}),
        Draft(b"", type=0),
        Draft(b"", type=3),
        Draft(b"", attributes={256: b""}),
    ],
    ids=["priority", "expires_at", "headers", "type", "checkpoint", "attributes"],
)
def test_an_invalid_draft_is_refused_and_makes_no_file(store: Store, draft: Draft) -> None:
    with pytest.raises(InvalidInput):
        store.messages.append_draft(draft)
    with pytest.raises(InvalidInput):
        store.messages.append_batch([b"good", draft])
    assert store.segments() == []
    assert store.messages.append(b"good") == 1


def test_a_segment_is_made_with_its_first_entry(store: Store) -> None:
    store.open()
    assert store.segments() == []
    store.messages.append(b"first")
    assert [path.name for path in store.segments()] == ["00000000000000000001.log"]


def test_files_and_directories_are_private(store: Store) -> None:
    store.fill(100)
    store.close()
    for path in [store.path, *store.path.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_stored_times_never_go_back(any_store: Store) -> None:
    for jump_s in (0, 10, -3600, 5, -86400, 0):
        any_store.clock.jump(jump_s)
        any_store.fill(1)
        any_store.reopen()
    stored = [entry.timestamp_ns for entry in all_entries(any_store.messages)]
    assert stored == sorted(stored)
    assert stored[0] < stored[1]


def test_stored_times_never_go_back_over_an_empty_last_segment(any_store: Store) -> None:
    """A crash right after a rotation leaves a segment without entries."""
    any_store.fill(1)
    any_store.die()
    newest_ns = any_store.clock.now_ns()
    first = SegmentHeader.unpack(any_store.segment(1).read_bytes()[:HEADER_BYTES])
    empty = SegmentHeader(first.kind, first.identity, 2, newest_ns)
    any_store.segment(2).write_bytes(empty.pack() + bytes(1000))
    any_store.clock.jump(-3600)
    any_store.fill(1)
    assert all(entry.timestamp_ns >= newest_ns for entry in all_entries(any_store.messages))
    assert seqs(any_store.messages) == [1, 2]


class BackwardClock(ManualClock):
    """Set back by a second between any two looks at it."""

    def now_ns(self) -> int:
        self.jump(-1)
        return super().now_ns()


def test_no_entry_is_older_than_its_segment_says_even_if_the_clock_goes_back(
    any_store: Store,
) -> None:
    """Behind damage, what is older than its segment is not taken for an entry of it."""
    any_store.clock = BackwardClock()
    any_store.fill(100)
    assert len(any_store.segments()) > 2
    for path in any_store.segments():
        header = SegmentHeader.unpack(path.read_bytes()[:HEADER_BYTES])
        assert read_entry(any_store.messages, header.base_seq).timestamp_ns >= header.created_at_ns


def test_threads_append_side_by_side_and_every_seq_is_given_once(any_store: Store) -> None:
    threads, each = 4, 60
    start = Barrier(threads)
    given: dict[int, bytes] = {}

    def write(number: int) -> None:
        start.wait(30)
        for count in range(each):
            payload = b"%d/%d" % (number, count)
            if count % 7 == 3:
                first = any_store.messages.append_batch([payload, payload + b"+"])
                given[first + 1] = payload + b"+"
            else:
                first = any_store.messages.append(payload)
            given[first] = payload
            if count % 10 == 0:
                any_store.ledger.commit()

    any_store.open()
    workers = [Thread(target=write, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    any_store.ledger.commit()
    any_store.reopen()
    assert dict(enumerate(payloads(any_store.messages), start=1)) == given
    assert read_entry(any_store.messages, 1).payload == given[1]
