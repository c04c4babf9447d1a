"""Passing over entries: verified, counted, indexed, found again behind damage."""

import struct
import time
from typing import Any

import pytest

from penstock.codec.entry import Draft
from penstock.codec.layout import CHECKPOINT, CHECKPOINT_BYTES, MAX_SEQ, TOMBSTONE
from penstock.errors import BadEntry, InvalidInput
from tests.codec.bodies import Body, compiled, each_body, needs_compiled
from tests.codec.test_unpack import sealed

TIME_NS = 1_700_000_000_000_000_000


def checkpoint(body: Body, promise: int = 0, count: int = 0, size: int = 0) -> bytes:
    return sealed(body, struct.pack("<QII", promise, count, size), type_=CHECKPOINT)


def plain(body: Body, seq: int, payload: bytes = b"x", timestamp_ns: int = 1) -> bytes:
    found: bytes = body.pack(seq, timestamp_ns, Draft(payload))
    return found


def tombstone(body: Body, first: int, last: int) -> bytes:
    found: bytes = body.pack(first, 1, Draft(struct.pack("<Q", last), type=TOMBSTONE))
    return found


def skim(body: Body, data: bytes | bytearray, **options: Any) -> Any:
    return body.skim(data, 0, len(data), **options)


# -- skim ------------------------------------------------------------------------------------------


@each_body
def test_skim_counts_what_is_good(body: Body) -> None:
    entries = plain(body, 5, timestamp_ns=10) + plain(body, 9, timestamp_ns=30)
    data = checkpoint(body) + entries + checkpoint(body, promise=50) + bytes(40)
    found = skim(body, data)
    end = len(data) - 40
    assert found == (end, end, 2, 10, 30, 50, None, False, b"")
    assert skim(body, b"") == (0, 0, 0, 0, 0, 0, None, False, b"")
    assert skim(body, data, seq_base=100).next_seq == 110


@each_body
def test_skim_stops_at_damage_and_says_why(body: Body) -> None:
    data = bytearray(plain(body, 1) + plain(body, 2) + plain(body, 3))
    data[40] ^= 1
    found = skim(body, data)
    assert (found.end, found.stop, found.entries) == (27, 27, 1)
    assert (found.problem, found.newer) == ("checksum does not match", False)
    newer = skim(body, plain(body, 1) + sealed(body, flags=0x80))
    assert (newer.stop, newer.newer) == (27, True)
    assert newer.problem == "a reserved flag is set: written by a newer version"
    assert skim(body, plain(body, 1) + b"\1").problem == "cut off inside the length"


@each_body
def test_skim_never_ends_inside_a_batch(body: Body) -> None:
    batch = checkpoint(body, 27, 2, 54) + plain(body, 2) + plain(body, 3)
    data = plain(body, 1) + batch
    assert skim(body, data) == (len(data), len(data), 3, 4, 9, 27, None, False, b"")
    for cut in range(27 + CHECKPOINT_BYTES, len(data)):
        torn = data[:cut] + bytes(len(data) - cut)
        found = skim(body, torn, index_from=0)
        assert found.end == 27
        assert (found.entries, found.next_seq, found.last_timestamp_ns) == (1, 2, 1)
        assert found.synced_upto == 0
        assert len(found.points) == 24
        assert found.problem is not None
    torn = data[:-27] + bytes(27)
    assert skim(body, torn).problem == "a batch that was not written to its end"
    assert skim(body, torn).stop == len(data) - 27
    loose = skim(body, torn, whole_batches=False)
    assert (loose.end, loose.entries, loose.problem) == (len(data) - 27, 2, None)
    assert loose.synced_upto == 27


@each_body
@pytest.mark.parametrize(
    ("count", "size", "reason"),
    [
        (2, 53, "a batch that does not fill its frame"),
        (2, 55, "a batch that does not fill its frame"),
        (2, 27, "a batch that does not fill its frame"),
        (1, 54, "a batch that does not fill its frame"),
        (3, 54, "a batch that does not fill its frame"),
        (3, 81, "a batch that was not written to its end"),
        (0xFFFFFFFF, 0xFFFFFFFF, "a batch that was not written to its end"),
        (0, 1, "a frame without entries"),
    ],
)
def test_a_frame_must_fit_its_entries(body: Body, count: int, size: int, reason: str) -> None:
    found = skim(body, checkpoint(body, 0, count, size) + plain(body, 1) + plain(body, 2))
    assert (found.end, found.entries, found.problem) == (0, 0, reason)


@each_body
def test_a_checkpoint_must_make_sense(body: Body) -> None:
    short = sealed(body, bytes(15), type_=CHECKPOINT)
    flagged = sealed(body, bytes(16), type_=CHECKPOINT, flags=0x01)
    for wrong in (short, flagged):
        assert skim(body, wrong).problem == "a checkpoint of the wrong size"
    early = skim(body, checkpoint(body, promise=1))
    assert early.problem == "a checkpoint that promises more than there is"
    inside = checkpoint(body, 0, 2, 96) + plain(body, 1) + checkpoint(body) + plain(body, 2)
    assert skim(body, inside).problem == "a checkpoint inside a batch"
    assert skim(body, inside, whole_batches=False).problem is None


@each_body
def test_a_tombstone_reaches_to_its_last_seq(body: Body) -> None:
    found = skim(body, tombstone(body, 5, 90) + plain(body, 91))
    assert (found.entries, found.next_seq) == (2, 92)
    assert skim(body, tombstone(body, 5, 2)).next_seq == 6
    assert skim(body, tombstone(body, 5, 90), seq_base=1000).next_seq == 1091
    assert skim(body, tombstone(body, 5, 1 << 63)).problem == "a seq beyond 2^63 - 1"
    assert skim(body, tombstone(body, 5, MAX_SEQ)).next_seq == MAX_SEQ + 1
    wrong = body.pack(1, 1, Draft(b"1234567", type=TOMBSTONE))
    assert skim(body, wrong).problem == "a tombstone of the wrong size"


@each_body
def test_index_points_stand_about_each_4_kb(body: Body) -> None:
    data = b"".join(plain(body, seq, b"x" * 974, seq + 50) for seq in range(1, 21))
    points = skim(body, data, index_from=0).points
    found = list(struct.iter_unpack("<QQQ", points))
    assert found == [(s, s + 50, (s - 1) * 1000) for s in (1, 6, 11, 16)]
    later = skim(body, data, index_from=2500, seq_base=7).points
    assert next(struct.iter_unpack("<QQQ", later)) == (11, 54, 3000)
    assert skim(body, data).points == b""
    headed = skim(body, checkpoint(body) + data, index_from=0).points
    assert next(struct.iter_unpack("<QQQ", headed))[2] == CHECKPOINT_BYTES


@each_body
def test_long_runs_are_skimmed_alike(body: Body) -> None:
    data = b"".join(plain(body, seq, b"x" * 974) for seq in range(1, 81))  # other threads may run
    found = skim(body, data, index_from=0)
    assert (found.end, found.entries, found.next_seq) == (80_000, 80, 81)
    assert len(found.points) == 24 * 16


# -- seek ------------------------------------------------------------------------------------------


@each_body
def test_seek_finds_the_first_entry_at_or_after(body: Body) -> None:
    data = b"".join(
        [
            checkpoint(body),
            plain(body, 10, timestamp_ns=100),
            plain(body, 12, timestamp_ns=100),
            plain(body, 13, timestamp_ns=200),
        ]
    )
    first, second, third = (CHECKPOINT_BYTES + 27 * i for i in range(3))
    end = len(data)
    assert body.seek(data, 0, end) == first
    assert body.seek(data, 0, end, seq=10) == first
    assert body.seek(data, 0, end, seq=11) == second
    assert body.seek(data, 0, end, timestamp_ns=101) == third
    assert body.seek(data, 0, end, seq=12, timestamp_ns=100) == second
    assert body.seek(data, 0, end, seq=14) == -1
    assert body.seek(data, 0, end, seq=14, seq_base=3) == second
    assert body.seek(data, 0, end, seq=2, seq_base=3) == first
    assert body.seek(data + bytes(50), 0, end + 50, seq=14) == -1
    assert body.seek(data, 0, third) == first
    assert body.seek(data, third, end, seq=1) == third


@each_body
def test_seek_does_not_follow_a_length_that_cannot_be_right(body: Body) -> None:
    data = bytearray(plain(body, 1) + plain(body, 2))
    for length in (1, 21, 24, 60, 0xFFFFFFFF):
        data[27:31] = struct.pack("<I", length)
        with pytest.raises(BadEntry) as caught:
            body.seek(data, 0, len(data), seq=5)
        assert (caught.value.offset, caught.value.reason) == (
            27,
            f"length {length} cannot be right",
        )
    with pytest.raises(BadEntry):
        body.seek(plain(body, 1), 0, 27, max_entry_bytes=26)
    for options in ({"seq": -1}, {"seq": 1 << 63}, {"timestamp_ns": -1}, {"timestamp_ns": 1 << 63}):
        with pytest.raises(InvalidInput):
            body.seek(data, 0, len(data), **options)


# -- resync ----------------------------------------------------------------------------------------


def resync(body: Body, data: bytes, start: int = 0, **options: Any) -> int:
    options = {"min_seq": 0, "max_seq": MAX_SEQ} | options
    found: int = body.resync(data, start, len(data), **options)
    return found


@each_body
def test_resync_finds_the_next_entry_behind_garbage(body: Body) -> None:
    for garbage in (b"", b"\0" * 100, b"\xff" * 37, b"\1" * 50, b"\x16\0\0\0\1\0" * 9):
        data = garbage + plain(body, 5, timestamp_ns=TIME_NS)
        assert resync(body, data) == len(garbage)
        assert resync(body, data + b"more") == len(garbage)
        assert resync(body, data[:-1]) == -1
        assert resync(body, data, len(garbage) + 1) == -1


@each_body
def test_resync_keeps_to_the_bounds(body: Body) -> None:
    data = b"garbage" + plain(body, 5, timestamp_ns=100) + plain(body, 6, timestamp_ns=200)
    assert resync(body, data, min_seq=6) == 34
    assert resync(body, data, max_seq=4) == -1
    assert resync(body, data, max_seq=-1) == -1
    assert resync(body, data, min_seq=-5, max_seq=1 << 80) == 7
    assert resync(body, data, min_seq=1 << 80) == -1
    assert resync(body, data, min_timestamp_ns=101) == 34
    assert resync(body, data, min_timestamp_ns=1 << 63) == -1
    assert resync(body, data, max_entry_bytes=26) == -1
    far = sealed(body, seq=1 << 63)
    assert resync(body, far, max_seq=1 << 64) == -1


@each_body
def test_resync_passes_over_what_it_could_not_read(body: Body) -> None:
    newer = sealed(body, flags=0x80) + sealed(body, type_=4)
    assert resync(body, newer + plain(body, 1)) == len(newer)


@needs_compiled
@pytest.mark.parametrize("length", [900, 5000, 3 << 20])
def test_resync_stays_quick_where_every_entry_looks_plausible(length: int) -> None:
    # Checking each candidate on its own would read some 300,000 million bytes: half a minute.
    assert compiled is not None
    unit = struct.pack("<IBBQQ", length, 1, 0, 5, TIME_NS)
    good = compiled.pack(5, TIME_NS, Draft(b"x" * 6000))
    data = unit * ((4 << 20) // len(unit)) + good
    begin_s = time.thread_time()
    assert resync(compiled, data, max_seq=10) == len(data) - len(good)
    assert time.thread_time() - begin_s < 5


# -- zeros -----------------------------------------------------------------------------------------


@each_body
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4096, 70_000])
def test_first_nonzero_finds_it_wherever_it_is(body: Body, size: int) -> None:
    assert body.first_nonzero(bytes(size), 0, size) == -1
    for at in {0, 1, size // 2, size - 2, size - 1}:
        if 0 <= at < size:
            data = bytearray(size)
            data[at] = 1
            assert body.first_nonzero(data, 0, size) == at
            assert body.first_nonzero(data, at, size) == at
            assert body.first_nonzero(data, at + 1, size) == -1
            assert body.first_nonzero(data, 0, at) == -1
