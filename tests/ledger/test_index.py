"""The sparse index is a cache: missing, short, stale or damaged, it never changes an answer."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.codec.layout import INDEX_POINT_BYTES
from penstock.ledger import read_entry, seq_at_time
from tests.ledger.store import SMALL, Store, payload_of

ENTRIES = 600
STEP_S = 1.0

Spoil = Callable[[Path], None]


def without(index: Path) -> None:
    index.unlink()


def empty(index: Path) -> None:
    index.write_bytes(b"")


def cut_in_a_point(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-10])


def cut_in_the_header(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:7])


def of_zeros(index: Path) -> None:
    index.write_bytes(bytes(index.stat().st_size))


def of_another_version(index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[4] = 99
    index.write_bytes(data)


def with_points_missing(index: Path) -> None:
    data = index.read_bytes()
    (count,) = struct.unpack_from("<I", data, 8)
    kept = 12 + (count // 2) * INDEX_POINT_BYTES
    index.write_bytes(data[:8] + struct.pack("<I", count // 2) + data[12:kept])


def with_the_first_point_missing(index: Path) -> None:
    data = index.read_bytes()
    (count,) = struct.unpack_from("<I", data, 8)
    index.write_bytes(data[:8] + struct.pack("<I", count - 1) + data[12 + INDEX_POINT_BYTES :])


def changed(field: int, by: int) -> Spoil:
    """Every point's seq (0), time (1) or offset (2) is another."""

    def change(index: Path) -> None:
        data = bytearray(index.read_bytes())
        for at in range(12 + 8 * field, len(data), INDEX_POINT_BYTES):
            (value,) = struct.unpack_from("<Q", data, at)
            struct.pack_into("<Q", data, at, max(value + by, 0))
        index.write_bytes(data)

    return change


def one_changed(point: int, field: int, value: int) -> Spoil:
    def change(index: Path) -> None:
        data = bytearray(index.read_bytes())
        struct.pack_into("<Q", data, 12 + point * INDEX_POINT_BYTES + 8 * field, value)
        index.write_bytes(data)

    return change


def shuffled(index: Path) -> None:
    data = index.read_bytes()
    points = [data[at : at + INDEX_POINT_BYTES] for at in range(12, len(data), INDEX_POINT_BYTES)]
    index.write_bytes(data[:12] + b"".join(reversed(points)))


SPOILS: dict[str, Spoil] = {
    "missing": without,
    "empty": empty,
    "cut in a point": cut_in_a_point,
    "cut in the header": cut_in_the_header,
    "zeros": of_zeros,
    "another version": of_another_version,
    "points missing": with_points_missing,
    "first point missing": with_the_first_point_missing,
    "seqs too high": changed(0, 5),
    "seqs too low": changed(0, -5),
    "times too late": changed(1, 10**12),
    "times too early": changed(1, -(10**12)),
    "offsets moved": changed(2, 3),
    "offsets outside": changed(2, 1 << 40),
    "offsets in the header": changed(2, -(10**9)),
    "one offset outside": one_changed(1, 2, 1 << 62),
    "one seq absurd": one_changed(1, 0, 1 << 62),
    "one time absurd": one_changed(1, 1, 1),
    "one time of today": one_changed(2, 1, 1_700_000_000_000_000_100),
    "shuffled": shuffled,
}


@pytest.fixture
def rotated(store: Store) -> Store:
    """Several sealed segments, each with several index points; an entry a second."""
    store.settings = SMALL.__class__(
        sync="never", segment_bytes=20_000, min_free_bytes=0, reserve_bytes=0
    )
    store.open()
    for seq in range(1, ENTRIES + 1):
        store.messages.append(payload_of(seq))
        store.clock.advance(STEP_S)
    store.close()
    return store


def time_of(seq: int) -> int:
    return 1_700_000_000_000_000_000 + round((seq - 1) * STEP_S * 1e9)


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
def test_a_spoilt_index_is_made_anew_and_no_answer_changes(rotated: Store, spoil: Spoil) -> None:
    indexes = sorted(rotated.path.glob("messages/*.idx"))
    assert len(indexes) > 2
    for index in indexes:
        spoil(index)
    log = rotated.messages
    for seq in range(1, ENTRIES + 1, 7):
        assert read_entry(log, seq).payload == payload_of(seq)
        assert seq_at_time(log, time_of(seq)) == seq
        assert seq_at_time(log, time_of(seq) - 1) == seq
    assert rotated.damage == []


def test_an_index_of_another_segment_is_seen_through(rotated: Store) -> None:
    first, second, third, *_ = sorted(rotated.path.glob("messages/*.idx"))
    third.write_bytes(second.read_bytes())
    second.write_bytes(first.read_bytes())
    for seq in range(1, ENTRIES + 1, 7):
        assert read_entry(rotated.messages, seq).payload == payload_of(seq)
        assert seq_at_time(rotated.messages, time_of(seq)) == seq


def test_a_point_stands_about_each_four_kilobytes(rotated: Store) -> None:
    for index in rotated.path.glob("messages/*.idx"):
        points = (index.stat().st_size - 12) // INDEX_POINT_BYTES
        segment_bytes = index.with_suffix(".log").stat().st_size
        assert segment_bytes // 4096 - 1 <= points <= segment_bytes // 4096 + 1


def test_an_index_in_the_way_of_writing_is_removed_at_opening(store: Store) -> None:
    """The last segment is written again: an index of what it was may mislead."""
    store.fill(3)
    store.close()
    stale = store.segment(1).with_suffix(".idx")
    stale.write_bytes(b"stale")
    store.open()
    assert not stale.exists()
