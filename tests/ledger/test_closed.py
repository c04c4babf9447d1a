"""What a clean close leaves on record, and what is found out with it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.codec import Draft
from penstock.codec.layout import CHECKPOINT_BYTES
from penstock.errors import BadEntry, CorruptLedger
from penstock.ledger import verify
from penstock.ledger.compaction import remove_before
from penstock.ledger.json_files import CLOSED_NAME, Closed, LogEnd
from penstock.ledger.segment_header import segment_name
from penstock.ledger.tail import durability_checkpoint
from tests.harness.file_strokes import entry_bounds
from tests.ledger.store import EVENT, SMALL, Store, seqs
from tests.ledger.watched_files import WatchedFiles

LOST = {
    "delete": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "only the header": lambda path: path.write_bytes(path.read_bytes()[:64]),
}


def cut(path: Path, entries: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: entry_bounds(data)[entries]])


@pytest.fixture
def closed(store: Store) -> Store:
    """Several segments of messages, one of events; closed in order."""
    store.fill(60)
    for _ in range(10):
        store.events.append_draft(Draft(b"event", type=EVENT))
    store.close()
    return store


def told(store: Store) -> list[tuple[int, int]]:
    """The lost seqs that a reader, `verify` and a writer tell of; they must agree."""
    with store.look() as ledger:
        looked = [(d.first_lost_seq, d.last_lost_seq) for d in ledger.damage if not d.torn]
    problems = verify(str(store.path)).problems
    verified = [(d.first_lost_seq, d.last_lost_seq) for d in problems if not d.torn]
    store.damage.clear()
    store.open()
    opened = [(d.first_lost_seq, d.last_lost_seq) for d in store.damage]
    assert not any(d.torn for d in store.damage)
    assert looked == opened
    assert set(opened) <= set(verified)
    return opened


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("log", ["messages", "events"])
def test_a_lost_last_segment_is_told_after_a_clean_close(closed: Store, log: str, how: str) -> None:
    last = closed.segments(log)[-1]
    base, end = int(last.stem), {"messages": 61, "events": 11}[log]
    LOST[how](last)
    assert told(closed) == [(base, end - 1)]
    assert getattr(closed, log).next_seq == end
    left = base if log == "messages" else 61
    assert seqs(closed.messages) == list(range(1, left))
    closed.reopen_after_death()
    closed.damage.clear()
    closed.reopen()
    assert closed.damage == []
    assert verify(str(closed.path)).is_sound


@pytest.mark.parametrize("entries", range(0, 28, 3))
def test_a_last_segment_cut_at_an_entry_is_damage_and_not_unfinished(
    closed: Store, entries: int
) -> None:
    last = closed.segments()[-1]
    base = int(last.stem)
    cut(last, entries)
    assert told(closed) == [(base + entries, 60)]
    assert seqs(closed.messages) == list(range(1, base + entries))
    assert closed.messages.append(b"new") == 61
    closed.reopen_after_death()
    assert seqs(closed.messages) == [*range(1, base + entries), 61]


def test_an_end_that_was_overwritten_up_to_a_checkpoint_is_reported_of_its_file(
    closed: Store,
) -> None:
    """The file is as long as it was, and ends in something whole."""
    last = closed.segments()[-1]
    base, data = int(last.stem), last.read_bytes()
    kept, end = entry_bounds(data)[2], len(data) - CHECKPOINT_BYTES
    checkpoint = durability_checkpoint(end, next_seq=base + 2, timestamp_ns=1 << 61)
    last.write_bytes(data[:kept] + b"\xff" * (end - kept) + checkpoint)
    assert (base + 2, 60) in told(closed)
    lost = [one.file for one in closed.damage if one.last_lost_seq >= one.first_lost_seq]
    assert lost == [f"messages/{last.name}"]


def test_a_cut_between_entries_is_damage_and_its_bytes_are_kept(closed: Store) -> None:
    last = closed.segments()[-1]
    data = last.read_bytes()
    bounds = entry_bounds(data)
    last.write_bytes(data[: bounds[5] + 7])
    assert told(closed) == [(int(last.stem) + 5, 60)]
    [kept] = (closed.path / "quarantine").iterdir()
    assert kept.read_bytes() == data[bounds[5] : bounds[5] + 7]


def test_a_lost_first_segment_is_told(closed: Store) -> None:
    first, second = closed.segments()[:2]
    first.unlink()
    assert told(closed) == [(1, int(second.stem) - 1)]
    closed.damage.clear()
    closed.reopen()
    assert closed.damage == []  # it is on record


def test_segments_that_were_removed_are_not_missed(store: Store) -> None:
    store.fill(100)
    remove_before(store.ledger, store.messages, 60)
    for _ in range(3):
        store.reopen()
        store.reopen_after_death()
    assert store.damage == []
    assert verify(str(store.path)).is_sound


def test_a_batch_of_which_the_end_is_lost_shows_what_is_left(store: Store) -> None:
    store.messages.append_batch([b"1", b"2", b"3", b"4"])
    store.close()
    cut(store.segment(1), 3)  # behind the checkpoint and two messages
    assert told(store) == [(3, 4)]
    assert seqs(store.messages) == [1, 2]
    store.reopen_after_death()
    assert (seqs(store.messages), store.messages.next_seq) == ([1, 2], 5)


def test_a_torn_end_behind_the_last_close_is_an_unfinished_write(closed: Store) -> None:
    closed.fill(5)
    closed.die()
    last = closed.segments()[-1]
    last.write_bytes(last.read_bytes().rstrip(b"\0")[:-3])
    closed.open()
    assert [d.torn for d in closed.damage] == [True]
    assert seqs(closed.messages) == list(range(1, 65))


def test_what_was_there_at_the_last_close_is_missed_also_after_a_kill(closed: Store) -> None:
    closed.fill(3)
    closed.die()
    last = closed.segments()[-1]
    cut(last, 2)
    closed.open()
    [damage] = closed.damage
    assert (damage.torn, damage.first_lost_seq) == (False, int(last.stem) + 2)
    assert damage.last_lost_seq == 60


def test_nothing_is_mended_where_damage_is_to_stop(closed: Store) -> None:
    last = closed.segments()[-1]
    cut(last, 3)
    before = {p.name: p.read_bytes() for p in closed.segments()}
    settings = replace(SMALL, on_corruption="stop")
    for _ in range(2):
        closed.open(settings)
        with pytest.raises(CorruptLedger):
            closed.messages.append(b"new")
        closed.close()
    assert {p.name: p.read_bytes() for p in closed.segments()} == before


def test_two_empty_segments_at_the_end_are_told(closed: Store) -> None:
    third, last = closed.segments()[-2:]
    for path in (third, last):
        path.write_bytes(b"")
    closed.file(CLOSED_NAME).unlink()
    problems = verify(str(closed.path)).problems
    assert (int(third.stem), int(last.stem) - 1) in {
        (d.first_lost_seq, d.last_lost_seq) for d in problems
    }
    closed.open()
    assert closed.messages.append(b"new") == int(last.stem)
    closed.reopen_after_death()
    assert seqs(closed.messages) == [*range(1, int(third.stem)), int(last.stem)]


@pytest.mark.parametrize("number", [2, 61, 70, 1000])
def test_a_copy_of_a_segment_under_another_number_is_no_segment(closed: Store, number: int) -> None:
    copy = closed.segment(number)
    copy.write_bytes(closed.segments()[0].read_bytes())
    with closed.look() as ledger:
        assert seqs(ledger.messages) == list(range(1, 61))
    assert not verify(str(closed.path)).is_sound
    closed.damage.clear()
    closed.open()
    assert (seqs(closed.messages), closed.messages.next_seq) == (list(range(1, 61)), 61)
    assert [d.file for d in closed.damage] == [f"messages/{segment_name(number)}"]
    assert not copy.exists()
    assert (closed.path / "quarantine" / f"messages-{copy.name}").exists()


def test_a_queue_without_its_manifest_says_so(closed: Store) -> None:
    closed.file("queue.json").unlink()
    assert verify(str(closed.path)).problems[0].file == "queue.json"
    closed.open()
    assert [d.file for d in closed.damage] == ["queue.json"]
    assert seqs(closed.messages) == list(range(1, 61))


def test_a_directory_of_before_there_was_such_a_file_opens_as_it_did(closed: Store) -> None:
    closed.file(CLOSED_NAME).unlink()
    assert verify(str(closed.path)).is_sound
    closed.open()
    assert closed.damage == []


def test_what_an_older_program_wrote_behind_the_last_close_is_sound(store: Store) -> None:
    """It leaves the file as it is, writes on, removes, and dies."""
    store.fill(60)
    store.close()
    old = store.file(CLOSED_NAME).read_bytes()
    store.fill(60)
    remove_before(store.ledger, store.messages, 70)
    store.reopen()
    store.fill(3)
    store.die()
    store.file(CLOSED_NAME).write_bytes(old)
    assert verify(str(store.path)).is_sound
    store.open()
    assert store.damage == []


@pytest.mark.parametrize("content", [b"", b"{}", b"damaged", b"[1]", b'{"crc": 1}'])
def test_a_damaged_note_is_told_and_does_no_harm(closed: Store, content: bytes) -> None:
    closed.file(CLOSED_NAME).write_bytes(content)
    closed.open()
    assert [d.file for d in closed.damage] == [CLOSED_NAME]
    closed.reopen()
    closed.damage.clear()
    closed.reopen()
    assert closed.damage == []


def test_the_note_of_another_queue_is_told_and_not_believed(closed: Store) -> None:
    other = Closed(closed.ledger.identity ^ 1, LogEnd(1, 10_000, 999), LogEnd())
    closed.close()
    closed.file(CLOSED_NAME).write_bytes(other.pack())
    closed.open()
    assert [d.file for d in closed.damage] == [CLOSED_NAME]
    assert closed.messages.next_seq == 61


def test_the_note_says_where_each_log_ends(closed: Store) -> None:
    content = json.loads(closed.file(CLOSED_NAME).read_bytes())
    last = closed.segments()[-1]
    assert content["messages"] == {
        "last": int(last.stem),
        "bytes": last.stat().st_size,
        "next": 61,
    }
    assert content["events"]["next"] == 11
    assert Closed.unpack(closed.file(CLOSED_NAME).read_bytes()).messages.next == 61
    with pytest.raises(BadEntry):
        Closed.unpack(closed.file(CLOSED_NAME).read_bytes().replace(b"61", b"62"))


def test_the_note_costs_one_sync_at_closing_and_none_at_opening(tmp_path: Path) -> None:
    files = WatchedFiles()
    store = Store(tmp_path / "queue", files=files)
    store.fill(3)
    store.close()

    def syncs() -> tuple[int, int]:
        files.calls.clear()
        store.open()
        at_opening = files.calls["fdatasync"]
        files.calls.clear()
        store.close()
        return at_opening, files.calls["fdatasync"]

    with_note = syncs()
    store.file(CLOSED_NAME).unlink()
    assert with_note == syncs()
    assert with_note[1] == 2  # closed.json and metadata.json
