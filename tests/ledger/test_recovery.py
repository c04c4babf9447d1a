"""Opening after a crash: what was unfinished is cut off and reported, the rest is there."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import codec
from penstock.codec import Draft
from penstock.codec.layout import CHECKPOINT_BYTES
from penstock.errors import LedgerStopped, NewerVersion, NotALedger
from penstock.ledger import Ledger, read_entry, verify
from penstock.ledger.memory_files import MemoryFiles
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader
from tests.harness.faults import Fault, FaultyFiles
from tests.harness.journal import RecordedFiles
from tests.harness.ledger_life import PATH, open_ledger
from tests.harness.power_cuts import Whole
from tests.ledger.store import MODES, SMALL, Store, payload_of, payloads, seqs
from tests.ledger.watched_files import WatchedFiles

pytestmark = pytest.mark.usefixtures("either_codec")


def written_bytes(data: bytes | bytearray) -> int:
    return len(data.rstrip(b"\0"))


# -- process death ---------------------------------------------------------------------------------


def test_process_death_loses_nothing_that_was_answered(any_store: Store) -> None:
    any_store.fill(50)
    any_store.messages.append_batch([payload_of(51), payload_of(52)])
    any_store.ledger.commit()
    any_store.reopen_after_death()
    assert payloads(any_store.messages) == [payload_of(seq) for seq in range(1, 53)]
    assert any_store.damage == []
    assert any_store.messages.next_seq == 53


def test_death_after_death_loses_nothing(any_store: Store) -> None:
    for _ in range(10):
        any_store.fill(5)
        any_store.reopen_after_death()
    assert seqs(any_store.messages) == list(range(1, 51))
    assert any_store.damage == []


def test_zeros_behind_the_last_entry_are_nothing_and_are_given_back(store: Store) -> None:
    store.fill(3)
    store.die()
    assert store.segment(1).read_bytes()[-100:] == bytes(100)
    store.open()
    assert store.damage == []
    assert store.segment(1).stat().st_size == HEADER_BYTES + 3 * (100 + 26)


# -- a failed sync ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_what_a_failed_sync_left_in_the_cache_is_on_disk_before_it_is_shown(mode: str) -> None:
    """The cache calls it clean, so no sync alone would write it; and a reader has it mapped, so
    the cache cannot be dropped either."""
    recorded = RecordedFiles()
    files = FaultyFiles(recorded)
    ledger = open_ledger(files, MODES[mode])
    ledger.messages.append(b"durable")
    ledger.sync()
    files.fault = Fault(1, methods=frozenset({"fdatasync"}))
    ledger.messages.append(b"in the cache only")
    with pytest.raises(LedgerStopped):
        ledger.sync()
    files.heal()
    ledger.close()
    reader = Ledger.open(PATH, MODES[mode], files=files, read_only=True)
    shown = payloads(reader.messages)
    assert shown == [b"durable", b"in the cache only"]
    assert payloads(open_ledger(files, MODES[mode]).messages) == shown
    after_power_loss = recorded.journal.end().after(Whole(names=False, content_too=False))
    assert payloads(open_ledger(MemoryFiles(after_power_loss.cached())).messages) == shown


def test_what_is_known_to_be_on_disk_is_not_written_again(tmp_path: Path) -> None:
    """After a close only its last word is in doubt, however much came before."""
    files = WatchedFiles()
    store = Store(tmp_path / "queue", replace(SMALL, segment_bytes=1 << 20), files=files)
    store.fill(500)
    store.close()
    files.written_bytes = 0
    store.open()
    assert files.written_bytes < 500
    store.close()


# -- a torn tail -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 3, 4, 5, 21, 22, 60, 125])
def test_a_torn_tail_is_cut_off_and_reported(store: Store, kept: int) -> None:
    store.fill(4)
    store.die()
    path = store.segment(1)
    end = HEADER_BYTES + 3 * 126
    path.write_bytes(path.read_bytes()[: end + kept])
    torn_bytes = written_bytes(path.read_bytes()) - end
    store.open()
    [report] = store.damage
    assert report.torn
    assert (report.file, report.offset) == ("messages/00000000000000000001.log", end)
    assert report.length == torn_bytes
    assert "unfinished write cut off" in str(report)
    assert "next seq is 4" in str(report)
    assert path.stat().st_size == end
    assert payloads(store.messages) == [payload_of(seq) for seq in (1, 2, 3)]
    store.fill(1)
    store.reopen()
    assert seqs(store.messages) == [1, 2, 3, 4]
    assert len(store.damage) == 1


def test_a_torn_tail_in_the_middle_of_zeros_is_cut_off(store: Store) -> None:
    """Mapped pages reach the disk in any order: the start may be missing, the end there."""
    store.fill(4)
    store.die()
    path = store.segment(1)
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 2 * 126 : HEADER_BYTES + 3 * 126] = bytes(126)
    path.write_bytes(data)
    store.open()
    assert seqs(store.messages) == [1, 2]
    assert [report.torn for report in store.damage] == [True]
    assert store.messages.next_seq == 3


def test_garbage_behind_the_last_entry_is_cut_off(store: Store) -> None:
    store.fill(4)
    store.close()
    path = store.segment(1)
    whole = path.read_bytes()
    path.write_bytes(whole + b"garbage" * 20)
    store.open()
    assert [(report.torn, report.length) for report in store.damage] == [(True, 140)]
    assert path.read_bytes() == whole
    assert seqs(store.messages) == [1, 2, 3, 4]


def test_what_was_cut_off_is_not_kept_in_quarantine(store: Store) -> None:
    store.fill(1)
    store.close()
    with store.segment(1).open("ab") as file:
        file.write(b"torn")
    store.open()
    assert not (store.path / "quarantine").exists()


# -- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_is_cut_anywhere_is_not_there_at_all(store: Store, mode: str) -> None:
    store.open(MODES[mode])
    store.fill(2)
    store.messages.append_batch([payload_of(seq) for seq in (3, 4, 5)])
    store.ledger.commit()
    store.die()
    path = store.segment(1)
    data = path.read_bytes()
    whole = written_bytes(data)
    first_end = whole - 3 * 126
    ends = [*range(first_end - CHECKPOINT_BYTES + 1, whole, 13), first_end, first_end + 126]
    for end, size in [(cut, size) for cut in ends for size in (cut, len(data))]:
        path.write_bytes(data[:end].ljust(size, b"\0"))
        store.open(SMALL)
        assert seqs(store.messages) == [1, 2], end
        assert store.messages.next_seq == 3
        store.close()
    path.write_bytes(data)
    assert seqs(store.messages) == [1, 2, 3, 4, 5]


def test_a_batch_that_lacks_an_entry_in_its_middle_is_not_there_at_all(store: Store) -> None:
    store.fill(2)
    store.messages.append_batch([payload_of(seq) for seq in (3, 4, 5)])
    store.die()
    path = store.segment(1)
    data = bytearray(path.read_bytes())
    middle = HEADER_BYTES + 2 * 126 + CHECKPOINT_BYTES + 126
    data[middle : middle + 126] = bytes(126)
    path.write_bytes(data)
    store.open()
    assert seqs(store.messages) == [1, 2]


# -- damage before a point that was promised durable -----------------------------------------------


def promised(store: Store) -> bytearray:
    """Six entries, of which the first four are promised durable by what follows them."""
    store.fill(4)
    store.ledger.sync()
    store.fill(2)
    store.die()
    return bytearray(store.segment(1).read_bytes())


def test_damage_to_what_was_durable_is_reported_and_read_around(store: Store) -> None:
    data = promised(store)
    data[HEADER_BYTES + 126 + 30] ^= 0x10
    store.segment(1).write_bytes(data)
    store.open()
    [report] = store.damage
    assert not report.torn
    assert (report.offset, report.length) == (HEADER_BYTES + 126, 126)
    assert (report.first_lost_seq, report.last_lost_seq) == (2, 2)
    assert seqs(store.messages) == [1, 3, 4, 5, 6]
    assert store.messages.next_seq == 7
    store.fill(3)
    store.reopen()
    assert seqs(store.messages) == [1, 3, 4, 5, 6, 7, 8, 9]


def test_damage_behind_the_last_promise_is_an_unfinished_write(store: Store) -> None:
    data = promised(store)
    data[written_bytes(data) - 126 + 30] ^= 0x10
    store.segment(1).write_bytes(data)
    store.open()
    assert [report.torn for report in store.damage] == [True]
    assert seqs(store.messages) == [1, 2, 3, 4, 5]


def test_what_was_served_behind_damage_stays_when_the_tail_was_cut_as_well(store: Store) -> None:
    """The cut takes the very checkpoint that told the damage from an unfinished write."""
    data = promised(store)
    vouching = HEADER_BYTES + 4 * 126
    first_entry, after_it = HEADER_BYTES + 126, vouching + CHECKPOINT_BYTES
    damaged = bytearray(data[:vouching] + data[first_entry : first_entry + 20] + data[vouching:])
    damaged[first_entry + 30] ^= 1
    assert after_it < len(damaged)
    store.segment(1).write_bytes(damaged)
    for _ in range(3):
        store.open()
        assert seqs(store.messages) == [1, 3, 4]
        assert store.messages.next_seq == 5
        store.die()
    assert [report.torn for report in store.damage] == [False, True, False, False]


def test_zeros_in_what_was_durable_are_damage(store: Store) -> None:
    data = promised(store)
    data[HEADER_BYTES : HEADER_BYTES + 126] = bytes(126)
    store.segment(1).write_bytes(data)
    store.open()
    assert [(r.torn, r.first_lost_seq, r.last_lost_seq) for r in store.damage] == [(False, 1, 1)]
    assert seqs(store.messages) == [2, 3, 4, 5, 6]


def test_after_a_clean_close_any_damaged_entry_is_damage(any_store: Store) -> None:
    """Closing leaves a checkpoint that vouches for everything before it."""
    any_store.fill(5)
    any_store.close()
    path = any_store.segment(1)
    data = path.read_bytes()
    at = data.index(payload_of(5)[:4])
    path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    any_store.open()
    assert [(r.torn, r.first_lost_seq, r.last_lost_seq) for r in any_store.damage] == [
        (False, 5, 5)
    ]
    assert any_store.messages.next_seq == 6, "a lost seq is not given out again"


def test_the_closing_checkpoint_needs_no_room_kept_for_it(any_store: Store) -> None:
    """Whatever the zeros behind the last entry happen to leave."""
    for size in range(30, 60):
        any_store.fill(1, size)
        any_store.close()
        last = any_store.segments()[-1]
        data = bytearray(last.read_bytes())
        at = data.rindex(b"%d " % (any_store.messages.next_seq - 1))
        any_store.close()
        last.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
        any_store.damage.clear()
        any_store.open()
        assert [report.torn for report in any_store.damage] == [False], size
        any_store.close()
        last.write_bytes(data)


# -- headers and names -----------------------------------------------------------------------------


def unfinished(base_seq: int) -> dict[str, Callable[[Store], bytes]]:
    def header(store: Store) -> bytes:
        return SegmentHeader(1, store.ledger.identity, base_seq, 0).pack()

    return {
        "empty file": lambda store: b"",
        "half a header": lambda store: header(store)[:30],
        "a header of zeros": lambda store: bytes(HEADER_BYTES),
        "only zeros": lambda store: bytes(1024),
        "a torn header before zeros": lambda store: header(store)[:30].ljust(1024, b"\0"),
        "a header and nothing else": header,
        "a header before zeros": lambda store: header(store).ljust(1024, b"\0"),
    }


@pytest.mark.parametrize("what", unfinished(1))
@pytest.mark.parametrize("before", [0, 3])
def test_a_segment_whose_creation_did_not_finish_is_no_obstacle(
    store: Store, what: str, before: int
) -> None:
    store.open()
    if before:
        store.fill(before)
    content = unfinished(before + 1)[what](store)
    store.close()
    store.segment(before + 1).write_bytes(content)
    store.open()
    assert store.damage == []
    assert store.messages.next_seq == before + 1
    store.fill(2)
    store.reopen()
    assert seqs(store.messages) == list(range(1, before + 3))
    assert store.damage == []


@pytest.mark.parametrize("upto", [1, HEADER_BYTES, HEADER_BYTES + 10, HEADER_BYTES + 200])
@pytest.mark.parametrize("segment", ["first", "last"])
def test_a_damaged_header_hides_no_entry_behind_it(store: Store, upto: int, segment: str) -> None:
    """Also where the first entries are damaged with it."""
    store.fill(40)
    store.close()
    path = store.segments()[0 if segment == "first" else -1]
    base = int(path.stem)
    data = path.read_bytes()
    path.write_bytes(b"\xaa" * upto + data[upto:])
    lost = -(-max(upto - HEADER_BYTES, 0) // 126)
    expected = [seq for seq in range(1, 41) if not base <= seq < base + lost]
    store.open()
    assert seqs(store.messages) == expected
    assert store.damage
    assert store.damage[0].file == f"messages/{path.name}"
    assert store.messages.next_seq == 41
    store.fill(1)
    store.reopen()
    assert seqs(store.messages) == [*expected, 41]


def test_a_segment_under_a_wrong_name_is_reported_and_read_by_its_name(store: Store) -> None:
    store.fill(60)
    store.close()
    second = store.segments()[1]
    data = second.read_bytes()
    header = SegmentHeader.unpack(data[:HEADER_BYTES])
    wrong = SegmentHeader(header.kind, header.identity, header.base_seq + 1, 0)
    second.write_bytes(wrong.pack() + data[HEADER_BYTES:])
    store.open()
    assert seqs(store.messages) == list(range(1, 61))
    assert "the base seq is not that of the name" in store.damage[0].reason


def test_a_segment_of_another_queue_is_refused_by_name(store: Store) -> None:
    store.fill(60)
    store.close()
    second = store.segments()[1]
    data = second.read_bytes()
    foreign = SegmentHeader(1, 12345, int(second.stem), 0)
    second.write_bytes(foreign.pack() + data[HEADER_BYTES:])
    with pytest.raises(NotALedger, match=f"{second.name} belongs to another queue"):
        store.open()


def test_a_missing_segment_is_a_gap_that_verify_names(store: Store) -> None:
    store.fill(100)
    store.close()
    bases = [int(path.stem) for path in store.segments()]
    store.segments()[1].unlink()
    store.open()
    expected = [seq for seq in range(1, 101) if not bases[1] <= seq < bases[2]]
    assert seqs(store.messages) == expected
    store.close()
    [problem] = verify(str(store.path)).problems
    assert (problem.first_lost_seq, problem.last_lost_seq) == (bases[1], bases[2] - 1)


# -- newer versions --------------------------------------------------------------------------------


@pytest.mark.parametrize("segment", [0, -1])
def test_a_segment_of_a_newer_version_is_left_alone(store: Store, segment: int) -> None:
    store.fill(60)
    store.close()
    path = store.segments()[segment]
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 4, 2)
    struct.pack_into("<I", data, 60, codec.crc32c(bytes(data[:60])))
    path.write_bytes(data)
    for open_it in (store.open, store.look):
        with pytest.raises(NewerVersion, match=f"{path.name}.*newer version"):
            open_it()
    assert path.read_bytes() == data


def test_an_entry_of_a_newer_version_in_the_last_segment_stops_the_opening(store: Store) -> None:
    store.fill(2)
    store.close()
    path = store.segment(1)
    entry = bytearray(codec.pack(3, 0, Draft(b"from the future")))
    entry[5] |= 0x80
    struct.pack_into("<I", entry, len(entry) - 4, codec.crc32c(bytes(entry[:-4])))
    data = path.read_bytes() + entry
    path.write_bytes(data)
    with pytest.raises(NewerVersion, match="newer version"):
        store.open()
    assert path.read_bytes() == data


# -- seqs ------------------------------------------------------------------------------------------


def test_a_seq_whose_entry_was_torn_off_is_free_again(store: Store) -> None:
    """Nobody was answered with it; the next entry gets it."""
    store.fill(3)
    store.die()
    path = store.segment(1)
    path.write_bytes(path.read_bytes()[: HEADER_BYTES + 2 * 126 + 50])
    store.open()
    assert store.messages.append(b"third") == 3
    assert read_entry(store.messages, 3).payload == b"third"


def test_recovery_does_not_depend_on_what_was_set_before(store: Store) -> None:
    for mode in (*MODES.values(), replace(SMALL, segment_bytes=1 << 20)):
        store.open(mode)
        store.fill(11)
        store.die()
    store.open(SMALL)
    assert seqs(store.messages) == list(range(1, 11 * 8 + 1))
