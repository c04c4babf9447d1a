"""The header and the names of segments."""

import struct

import pytest

from penstock import codec
from penstock.errors import BadEntry, NewerVersion
from penstock.ledger.segment_header import (
    COMPACTED,
    EVENTS,
    HEADER_BYTES,
    MESSAGES,
    RELATIVE,
    SegmentHeader,
    base_seq_of,
    index_base_seq_of,
    index_name,
    segment_name,
)

HEADER = SegmentHeader(MESSAGES, 0xDEADBEEF, 4711, 1_700_000_000_000_000_000)


def with_right_checksum(data: bytearray) -> bytes:
    struct.pack_into("<I", data, 60, codec.crc32c(bytes(data[:60])))
    return bytes(data)


@pytest.mark.usefixtures("either_codec")
@pytest.mark.parametrize(
    "header",
    [
        HEADER,
        SegmentHeader(EVENTS, 0, 1, 0, RELATIVE),
        SegmentHeader(MESSAGES, (1 << 32) - 1, (1 << 63) - 1, (1 << 63) - 1, COMPACTED, 1 << 62),
    ],
)
def test_a_header_is_read_as_it_was_written(header: SegmentHeader) -> None:
    assert len(header.pack()) == HEADER_BYTES
    assert SegmentHeader.unpack(header.pack()) == header


def test_the_layout_is_the_one_of_the_format_page() -> None:
    data = HEADER.pack()
    assert data[:4] == b"PNSK"
    assert data[4:8] == bytes([1, 0, 1, 0])  # version, kind, flags
    assert data[8:12] == bytes.fromhex("efbeadde")
    assert data[12:16] == bytes(4)
    assert data[16:24] == (4711).to_bytes(8, "little")
    assert data[32:60] == bytes(28)
    assert data[60:] == codec.crc32c(data[:60]).to_bytes(4, "little")


def test_any_flipped_bit_is_seen() -> None:
    for bit in range(HEADER_BYTES * 8):
        data = bytearray(HEADER.pack())
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadEntry):
            SegmentHeader.unpack(bytes(data))


@pytest.mark.parametrize("length", [0, 1, 63])
def test_a_short_header_is_none(length: int) -> None:
    with pytest.raises(BadEntry, match=f"here are {length}"):
        SegmentHeader.unpack(HEADER.pack()[:length])


def test_another_magic_number_is_not_a_segment() -> None:
    data = bytearray(HEADER.pack())
    data[:4] = b"RIFF"
    with pytest.raises(BadEntry, match="magic"):
        SegmentHeader.unpack(with_right_checksum(data))


@pytest.mark.parametrize(("at", "value"), [(4, 2), (6, 3), (6, 0), (7, 0x08), (7, 0x80)])
def test_what_only_a_newer_version_can_have_written_is_not_guessed_at(at: int, value: int) -> None:
    data = bytearray(HEADER.pack())
    data[at] = value
    with pytest.raises(NewerVersion):
        SegmentHeader.unpack(with_right_checksum(data))


def test_names_sort_as_their_seqs_do() -> None:
    seqs = [1, 9, 10, 4711, 10**18, (1 << 63) - 1]
    names = [segment_name(seq) for seq in seqs]
    assert names == sorted(names)
    assert [base_seq_of(name) for name in names] == seqs
    assert [index_base_seq_of(index_name(seq)) for seq in seqs] == seqs


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        "1.log",
        "0" * 19 + ".log",
        "0" * 21 + ".log",
        "x" * 20 + ".log",
        "²" * 20 + ".log",
    ],
)
def test_other_names_are_not_ours(name: str) -> None:
    assert base_seq_of(name) is None
