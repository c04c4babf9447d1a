"""Defects that were found in an earlier program of this kind, each as the promise it broke."""

import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import codec
from penstock.codec import Draft
from penstock.errors import LedgerLocked, TooLarge
from penstock.ledger import Compactor, Ledger, Retention, read_entry
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.torture.damage_store import Live
from tests.ledger.other_process import OtherProcess
from tests.ledger.store import EVENT, MODES, SMALL, Store, payload_of, payloads, seqs
from tests.ledger.test_read_only import listing


def test_a_kill_between_metadata_and_entry_does_not_wedge_the_queue(any_store: Store) -> None:
    """The summary may be ahead of the log or behind it: only the log counts."""
    any_store.fill(5)
    any_store.close()
    metadata = any_store.file("metadata.json")
    for next_id in (b"1", b"6", b"7", b"1000000"):
        metadata.write_bytes(b'{"version": 1, "next_message_id": %s}' % next_id)
        next_seq = any_store.messages.next_seq
        any_store.fill(1)
        any_store.reopen_after_death()
        assert seqs(any_store.messages) == list(range(1, next_seq + 1))
        any_store.close()


def test_a_kill_before_the_first_flush_leaves_a_queue_that_opens(any_store: Store) -> None:
    """The segment is there, its entries are not; or not even its header."""
    any_store.open()
    identity = any_store.ledger.identity
    any_store.messages.append(b"never flushed")
    any_store.die()
    segment = any_store.segment(1)
    for content in (segment.read_bytes()[:HEADER_BYTES], b"", bytes(4096)):
        any_store.file("closed.json").unlink(missing_ok=True)  # as if it had never been closed
        segment.write_bytes(content)
        any_store.open()
        assert any_store.ledger.identity == identity
        assert seqs(any_store.messages) == []
        any_store.fill(1)
        any_store.reopen()
        assert seqs(any_store.messages) == [1]
        any_store.die()


def test_a_torn_tail_opens(any_store: Store) -> None:
    any_store.fill(5)
    any_store.die()
    segment = any_store.segment(1)
    whole = segment.read_bytes().rstrip(b"\0")
    for cut in range(1, 127, 7):
        segment.write_bytes(whole[:-cut])
        any_store.open()
        assert payloads(any_store.messages) == [payload_of(seq) for seq in range(1, 5)]
        any_store.die()


def test_process_death_loses_nothing_in_any_mode(tmp_path: Path) -> None:
    """A real process, really killed, with no time to flush anything."""
    code = """
        import sys
        from dataclasses import replace
        from penstock.ledger import Ledger
        from tests.ledger.store import MODES, payload_of
        ledger = Ledger.open(sys.argv[1], MODES[sys.argv[2]])
        for seq in range(1, 101):
            ledger.messages.append(payload_of(seq))
        ledger.commit()
        print(seq, flush=True)
        sys.stdin.readline()
    """
    for number, mode in enumerate(MODES):
        path = tmp_path / str(number)
        with OtherProcess(code, path, mode) as other:
            assert other.answer() == "100"
            other.kill()
        with Ledger.open(str(path), SMALL) as ledger:
            assert payloads(ledger.messages) == [payload_of(seq) for seq in range(1, 101)], mode


def test_compaction_deletes_nothing_unread(any_store: Store) -> None:
    any_store.fill(200)
    read_upto = 120
    unread = Live(frozenset(range(read_upto + 1, 201)))
    strict = Retention(max_age_s=0, max_bytes=0, max_segments=0, rewrite_below=1)
    any_store.clock.advance(1e6)
    Compactor(any_store.ledger, any_store.messages, unread, strict, any_store.clock).run()
    assert seqs(any_store.messages, read_upto + 1) == list(range(read_upto + 1, 201))
    any_store.reopen()
    assert seqs(any_store.messages, read_upto + 1) == list(range(read_upto + 1, 201))


def test_one_flipped_bit_does_not_stop_reading(any_store: Store) -> None:
    any_store.fill(100)
    any_store.close()
    first = any_store.segments()[0]
    whole = first.read_bytes()
    entry_10 = whole.index(payload_of(10)) - 22
    for at in (entry_10, entry_10 + 3, entry_10 + 6, entry_10 + 40, entry_10 + 125):
        damaged = bytearray(whole)
        damaged[at] ^= 0x04
        first.write_bytes(damaged)
        any_store.damage.clear()
        any_store.open()
        assert seqs(any_store.messages) == [seq for seq in range(1, 101) if seq != 10]
        assert [(r.first_lost_seq, r.last_lost_seq) for r in any_store.damage] == [(10, 10)]
        for seq in (9, 11, 12):
            assert read_entry(any_store.messages, seq).payload == payload_of(seq)
        any_store.close()
        first.write_bytes(whole)


@pytest.mark.usefixtures("either_codec")
@pytest.mark.parametrize(
    "draft",
    [
        Draft(b"", headers={"name": "v" * 65_536}),
        Draft(b"", headers={"n" * 65_536: "value"}),
        Draft(b"", headers={"name": "ü" * 40_000}),
        Draft(b"", key=b"k" * 65_536),
        Draft(b"", attributes={1: b"a" * 65_536}),
    ],
    ids=["value", "name", "value in UTF-8", "key", "attribute"],
)
def test_a_header_over_64_kb_is_refused_and_changes_nothing(store: Store, draft: Draft) -> None:
    store.fill(2)
    with pytest.raises(TooLarge, match="65535"):
        store.messages.append_draft(draft)
    with pytest.raises(TooLarge, match="65535"):
        store.messages.append_batch([b"good", draft])
    store.fill(1)
    assert seqs(store.messages) == [1, 2, 3]


def test_a_header_of_just_under_64_kb_is_kept_whole(store: Store) -> None:
    headers = {"n" * 65_535: "v" * 65_535, "": ""}
    store.messages.append_draft(Draft(b"payload", headers=headers))
    store.reopen()
    entry = read_entry(store.messages, 1)
    assert (entry.payload, entry.headers) == (b"payload", headers)


def test_opening_for_a_look_changes_nothing(any_store: Store) -> None:
    any_store.fill(100)
    any_store.die()
    before = listing(any_store.path)
    for _ in range(3):
        with any_store.look() as reader:
            assert len(seqs(reader.messages)) == 100
            assert reader.messages.next_seq == 101
            read_entry(reader.messages, 50)
    assert listing(any_store.path) == before


def test_two_processes_cannot_corrupt_each_other(tmp_path: Path) -> None:
    code = """
        import sys
        from penstock.errors import LedgerLocked
        from penstock.ledger import Ledger
        for line in sys.stdin:
            try:
                with Ledger.open(sys.argv[1]) as ledger:
                    ledger.messages.append(b"x" * 100)
                print("written", flush=True)
            except LedgerLocked:
                print("refused", flush=True)
    """
    path = tmp_path / "queue"
    with OtherProcess(code, path) as first, OtherProcess(code, path) as second:
        assert first.ask() == "written"
        assert second.ask() == "written"
        with Ledger.open(str(path)) as ledger:
            assert ledger.messages.append(b"x" * 100) == 3
            assert first.ask() == "refused"
            assert second.ask() == "refused"
            with pytest.raises(LedgerLocked):
                Ledger.open(str(path))
            assert ledger.messages.append(b"x" * 100) == 4
        assert first.ask() == "written"
    with Ledger.open(str(path)) as ledger:
        assert payloads(ledger.messages) == [b"x" * 100] * 5
        assert ledger.damage == ()


def test_reading_at_a_seq_does_not_walk_there_from_the_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in bytes that the codec was given to pass over, not in seconds."""
    store.open(
        replace(SMALL, segment_bytes=1 << 20, first_step_bytes=1 << 20, largest_step_bytes=1 << 20)
    )
    store.fill(20_000)
    store.reopen()
    walked: list[int] = []
    seek, skim = codec.seek, codec.skim

    def counted_seek(view: memoryview, start: int, end: int, **bounds: int) -> int:
        found = seek(view, start, end, **bounds)
        walked.append((end if found < 0 else found) - start)
        return found

    def counted_skim(view: memoryview, start: int, end: int, **options: Any) -> object:
        walked.append(end - start)
        return skim(view, start, end, **options)

    read_entry(store.messages, 1)
    monkeypatch.setattr(codec, "seek", counted_seek)
    monkeypatch.setattr(codec, "skim", counted_skim)
    sealed_end = int(store.segments()[-1].stem)
    for seq in range(1, sealed_end, 997):
        walked.clear()
        assert read_entry(store.messages, seq).payload == payload_of(seq)
        assert sum(walked) <= 2 * (4096 + 126), seq


def test_opening_again_and_again_adds_no_segment(any_store: Store) -> None:
    any_store.fill(3, size=10)
    for _ in range(10):
        any_store.reopen()
        any_store.fill(1, size=10)
    for _ in range(10):
        any_store.reopen_after_death()
        any_store.fill(1, size=10)
    assert len(any_store.segments()) == 1
    assert len(any_store.segments("events")) == 0
    assert seqs(any_store.messages) == list(range(1, 24))


@pytest.mark.usefixtures("either_codec")
@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 1 << 30, 30 << 20, 5000])
def test_a_corrupt_length_allocates_nothing(store: Store, length: int) -> None:
    store.fill(60)
    store.close()
    for path in (store.segments()[0], store.segments()[-1]):
        data = bytearray(path.read_bytes())
        struct.pack_into("<I", data, HEADER_BYTES + 126, length)
        path.write_bytes(data)
    tracemalloc.start()
    try:
        store.open(replace(SMALL, max_entry_bytes=1 << 30))
        found = seqs(store.messages)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20
    assert len(found) == 58
    assert len(store.damage) == 2


def test_an_event_log_keeps_each_of_these_promises_too(any_store: Store) -> None:
    """It is the same kind of log: death, a flipped bit, and a torn tail."""
    for number in range(200):
        any_store.events.append_draft(Draft(b"%d" % number, type=EVENT))
    any_store.ledger.commit()
    any_store.die()
    first, *_, last = any_store.segments("events")
    data = bytearray(first.read_bytes())
    data[HEADER_BYTES + 10] ^= 1
    first.write_bytes(data)
    last.write_bytes(last.read_bytes().rstrip(b"\0")[:-3])
    assert seqs(any_store.events) == list(range(2, 200))
    assert any_store.events.next_seq == 200
