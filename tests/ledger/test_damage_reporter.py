"""Damage is reported once, kept for people, and stops the ledger only where that is asked for."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import CorruptLedger, EntryGone
from penstock.ledger import Ledger, read_entry
from tests.ledger.store import SMALL, Store, payload_of, seqs

ENTRY_BYTES = 126


def flip(path: Path, offset: int) -> bytes:
    """Flip a bit; the damaged entry's bytes."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x20
    path.write_bytes(data)
    start = offset - (offset - 64) % ENTRY_BYTES
    return bytes(data[start : start + ENTRY_BYTES])


@pytest.fixture
def damaged(store: Store) -> Store:
    """Sealed segments, of which the first has lost its second entry; closed."""
    store.fill(100)
    store.close()
    flip(store.segments()[0], 64 + ENTRY_BYTES + 40)
    return store


def test_reading_goes_on_behind_the_damage_and_reports_it_once(damaged: Store) -> None:
    for _ in range(3):
        assert seqs(damaged.messages) == [1, *range(3, 101)]
    [report] = damaged.damage
    assert report == damaged.ledger.damage[0]
    assert (report.file, report.offset, report.length) == (
        "messages/00000000000000000001.log",
        64 + ENTRY_BYTES,
        ENTRY_BYTES,
    )
    assert (report.first_lost_seq, report.last_lost_seq) == (2, 2)
    assert str(report) == (
        "damage: messages/00000000000000000001.log offset 190, 126 bytes, seq 2 to 2 lost: "
        "checksum does not match"
    )


def test_the_lost_entry_is_gone_and_its_neighbours_are_not(damaged: Store) -> None:
    with pytest.raises(EntryGone, match="seq 2 .*damaged"):
        read_entry(damaged.messages, 2)
    assert read_entry(damaged.messages, 1).payload == payload_of(1)
    assert read_entry(damaged.messages, 3).payload == payload_of(3)
    assert len(damaged.damage) == 1


def test_the_damaged_bytes_are_kept_for_people(store: Store) -> None:
    store.fill(100)
    store.close()
    bytes_lost = flip(store.segments()[0], 64 + 40)
    assert len(seqs(store.messages)) == 99
    [kept] = (store.path / "quarantine").iterdir()
    assert kept.name == "messages-00000000000000000001.log-64.bin"
    assert kept.read_bytes() == bytes_lost
    store.reopen()
    assert len(seqs(store.messages)) == 99
    assert len(list((store.path / "quarantine").iterdir())) == 1


def test_damage_is_logged_with_its_facts(damaged: Store, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="penstock.ledger"):
        assert len(seqs(damaged.messages)) == 99
    [record] = caplog.records
    assert "seq 2 to 2 lost" in record.getMessage()


def test_payloads_are_never_logged(damaged: Store, caplog: pytest.LogCaptureFixture) -> None:
    assert len(seqs(damaged.messages)) == 99
    assert payload_of(2).decode()[:20] not in caplog.text


def test_several_damages_are_several_reports(store: Store) -> None:
    store.fill(100)
    store.close()
    sealed = store.segments()[:-1]
    for path in sealed:
        flip(path, 64 + 5 * ENTRY_BYTES + 40)
    lost = [int(path.stem) + 5 for path in sealed]
    assert seqs(store.messages) == [seq for seq in range(1, 101) if seq not in lost]
    assert len(store.damage) == len(sealed) > 1


def test_neighbouring_damages_are_one(store: Store) -> None:
    store.fill(100)
    store.close()
    for number in (3, 4, 5):
        flip(store.segments()[0], 64 + number * ENTRY_BYTES + 40)
    assert seqs(store.messages) == [1, 2, 3, *range(7, 101)]
    [report] = store.damage
    assert (report.first_lost_seq, report.last_lost_seq) == (4, 6)
    assert report.length == 3 * ENTRY_BYTES


@pytest.mark.parametrize("end", ["cut", "zeros"])
@pytest.mark.parametrize("start", [1, 20])
def test_the_missing_end_of_a_sealed_segment_is_reported(
    store: Store, end: str, start: int
) -> None:
    """No bad byte is there to be found: what shows it is where the next segment begins."""
    store.fill(100)
    store.close()
    first, second = store.segments()[:2]
    data = first.read_bytes()
    kept = data[: 64 + 5 * ENTRY_BYTES]
    first.write_bytes(kept if end == "cut" else kept.ljust(len(data), b"\0"))
    behind = int(second.stem)
    store.open()
    for _ in range(2):
        expected = [seq for seq in range(start, 101) if not 6 <= seq < behind]
        assert seqs(store.messages, start) == expected
    with pytest.raises(EntryGone):
        read_entry(store.messages, 10)
    [report] = store.damage
    assert (report.first_lost_seq, report.last_lost_seq) == (6, behind - 1)


def test_a_full_disk_does_not_keep_the_damage_from_being_passed_over(damaged: Store) -> None:
    from tests.ledger.watched_files import WatchedFiles

    class Full(WatchedFiles):
        def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
            raise OSError(28, "No space left on device")

    damaged.files = Full()
    assert len(seqs(damaged.messages)) == 99
    assert len(damaged.damage) == 1


# -- on_corruption="stop" --------------------------------------------------------------------------


def test_stop_takes_no_more_writes_when_damage_is_found(damaged: Store) -> None:
    damaged.open(replace(SMALL, on_corruption="stop"))
    assert damaged.messages.append(b"before it was found") == 101
    assert len(seqs(damaged.messages)) == 100
    with pytest.raises(CorruptLedger, match="on_corruption is 'stop': reading only"):
        damaged.messages.append(b"after")
    with pytest.raises(CorruptLedger):
        damaged.ledger.sync()
    assert len(seqs(damaged.messages)) == 100, "reading goes on"


def test_stop_opens_for_reading_only_where_damage_is_found_at_once(store: Store) -> None:
    store.fill(3)
    store.close()
    flip(store.segment(1), 64 + 40)
    store.open(replace(SMALL, on_corruption="stop"))
    with pytest.raises(CorruptLedger, match="seq 1 to 1 lost"):
        store.messages.append(b"")
    assert seqs(store.messages) == [2, 3]


def test_stop_does_not_stop_at_a_torn_tail(store: Store) -> None:
    store.fill(3)
    store.die()
    path = store.segment(1)
    path.write_bytes(path.read_bytes().rstrip(b"\0")[:-10])
    store.open(replace(SMALL, on_corruption="stop"))
    assert store.messages.append(b"again") == 3


def test_one_damaged_queue_does_not_keep_another_from_serving(
    damaged: Store, tmp_path: Path
) -> None:
    damaged.open(replace(SMALL, on_corruption="stop"))
    with Ledger.open(str(tmp_path / "other")) as other:
        assert len(seqs(damaged.messages)) == 99
        assert other.messages.append(b"") == 1
