"""Bytes to entries: bad bytes get a typed error with offset and reason, and cost nothing."""

import mmap
import struct
import tracemalloc
from typing import Any

import pytest

from penstock.codec.entry import Draft, Entry
from penstock.codec.layout import DEFAULT_MAX_ENTRY_BYTES, MAX_ENTRY_BYTES, MAX_SEQ
from penstock.errors import BadEntry, InvalidInput, NewerVersion
from tests.codec.bodies import Body, each_body


def sealed(
    body: Body,
    fields: bytes = b"",
    *,
    type_: int = 1,
    flags: int = 0,
    seq: int = 7,
    timestamp_ns: int = 9,
) -> bytes:
    """An entry whose checksum is right, whatever is in it."""
    head = struct.pack("<IBBQQ", 22 + len(fields), type_, flags, seq, timestamp_ns) + fields
    return head + struct.pack("<I", body.crc32c(head))


def refusal(body: Body, data: bytes, offset: int = 0, **options: Any) -> BadEntry:
    with pytest.raises(BadEntry) as caught:
        body.unpack(data, offset, len(data), **options)
    assert str(caught.value) == f"bad entry at offset {offset}: {caught.value.reason}"
    assert caught.value.offset == offset
    return caught.value


@each_body
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "nothing written here"),
        (bytes(2), "nothing written here"),
        (bytes(100), "nothing written here"),
        (b"\0\1", "cut off inside the length"),
        (b"\1\0\0\0" + bytes(100), "length 1 is less than 22"),
        (b"\x15\0\0\0" + bytes(100), "length 21 is less than 22"),
        (b"\x16\0\0\0" + bytes(21), "length 22 reaches beyond the end"),
        (b"\xff\0\0\0" + bytes(100), "length 255 reaches beyond the end"),
        (b"\xff\xff\xff\xff" + bytes(100), "length 4294967295 is beyond the limit of 33554432"),
        (b"\x16\0\0\0" + bytes(22), "checksum does not match"),
    ],
)
def test_a_bad_length_or_checksum_is_a_bad_entry(body: Body, data: bytes, reason: str) -> None:
    assert refusal(body, data).reason.startswith(reason)
    assert refusal(body, b"12345" + data, 5).reason.startswith(reason)


@each_body
def test_every_single_bit_is_guarded(body: Body) -> None:
    data = body.pack(1, 2, Draft(b"payload", headers={"a": "b"}, key=b"k"))
    for bit in range(8 * len(data)):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadEntry):
            body.unpack(spoiled, 0, len(spoiled))


@each_body
def test_what_a_newer_version_wrote_is_said_to_be_newer(body: Body) -> None:
    for flags in (0x80, 0xFF):
        error = refusal(body, sealed(body, bytes(64), flags=flags))
        assert isinstance(error, NewerVersion)
        assert error.reason == "a reserved flag is set: written by a newer version"
    for type_ in (0, 4, 15):
        error = refusal(body, sealed(body, type_=type_))
        assert isinstance(error, NewerVersion)
        assert error.reason == f"unknown entry type {type_}: written by a newer version"


@each_body
@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (0x01, bytes(7)),
        (0x02, b"\0"),
        (0x02, b"\1\0"),
        (0x02, b"\1\0\0"),
        (0x02, b"\1\0\0\0\5\0four"),
        (0x02, b"\xff\xff" + bytes(200)),
        (0x04, b""),
        (0x08, b""),
        (0x10, bytes(7)),
        (0x20, b"\0"),
        (0x20, b"\1\0"),
        (0x20, b"\xff\xff1234"),
        (0x40, b""),
        (0x40, b"\1"),
        (0x40, b"\1\1\0"),
        (0x40, b"\2\1\0\0\2\1\0"),
        (0x7F, bytes(20)),
    ],
)
def test_a_field_that_leaves_its_entry_is_found(body: Body, flags: int, fields: bytes) -> None:
    behind = body.pack(2, 2, Draft(b"\1" * 50))
    data = sealed(body, fields, flags=flags) + behind
    assert refusal(body, data).reason == "fields reach beyond the entry"


@each_body
@pytest.mark.parametrize(
    ("flags", "fields"),
    [(0x01, bytes(7)), (0x02, b"\0"), (0x04, b""), (0x08, b""), (0x20, b"\0"), (0x40, b"")],
)
def test_no_field_is_read_out_of_the_checksum(body: Body, flags: int, fields: bytes) -> None:
    # Among a thousand entries are some whose checksum would make the missing byte a good one.
    for seq in range(1000):
        data = sealed(body, fields, flags=flags, seq=seq)
        assert refusal(body, data).reason == "fields reach beyond the entry"


@each_body
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fields": b"\x0a", "flags": 0x08}, "priority 10 is not between 0 and 9"),
        ({"fields": b"\xff" * 8, "flags": 0x01}, "expires_at is beyond the year 2262"),
        ({"fields": b"\xff" * 8, "flags": 0x10}, "deliver_at is beyond the year 2262"),
        ({"seq": 1 << 63}, "a seq beyond 2^63 - 1"),
        ({"timestamp_ns": 1 << 63}, "a timestamp beyond the year 2262"),
        ({"fields": b"\1\0\1\0\xff\0\0", "flags": 0x02}, "a header is not UTF-8"),
        ({"fields": b"\1\0\0\0\3\0\xed\xa0\x80", "flags": 0x02}, "a header is not UTF-8"),
    ],
)
def test_a_value_outside_its_range_is_a_bad_entry(
    body: Body, options: dict[str, Any], reason: str
) -> None:
    assert refusal(body, sealed(body, **options)).reason == reason


@each_body
def test_lengths_are_believed_up_to_the_limit_only(body: Body) -> None:
    data = body.pack(1, 1, Draft(b"x" * 74))
    assert body.unpack(data, 0, 100, max_entry_bytes=100).size == 100
    reason = "length 96 is beyond the limit of 99 bytes"
    assert refusal(body, data, max_entry_bytes=99).reason == reason
    for limit in (-1, MAX_ENTRY_BYTES + 1, 1 << 70):
        with pytest.raises(InvalidInput):
            body.unpack(data, 0, 100, max_entry_bytes=limit)


@each_body
def test_a_relative_seq_counts_from_the_base(body: Body) -> None:
    data = sealed(body, seq=5)
    assert body.unpack(data, 0, len(data), seq_base=100).seq == 105
    assert body.unpack(data, 0, len(data), seq_base=MAX_SEQ - 5).seq == MAX_SEQ
    assert refusal(body, data, seq_base=MAX_SEQ - 4).reason == "a seq beyond 2^63 - 1"
    for base in (-1, MAX_SEQ + 1):
        with pytest.raises(InvalidInput):
            body.unpack(data, 0, len(data), seq_base=base)


@each_body
@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 101), (60, 50), (101, 101), (-5, -1)])
def test_a_range_outside_the_buffer_is_refused(body: Body, start: int, end: int) -> None:
    data = bytes(100)
    for call, options in (
        (body.unpack, {}),
        (body.read_entries, {"max_count": 1}),
        (body.seek, {}),
        (body.skim, {}),
        (body.resync, {"min_seq": 0, "max_seq": 1}),
        (body.first_nonzero, {}),
        (body.decode_columns, {"names": ["seq"]}),
    ):
        with pytest.raises(ValueError, match="is not inside a buffer of 100 bytes"):
            call(data, start, end, **options)


@each_body
def test_a_bad_length_never_drives_an_allocation(body: Body) -> None:
    huge = b"\xff\xff\xff\x01" + bytes(100)  # 32 MB, within the limit, not within the buffer
    headers = sealed(body, b"\xff\xff" + b"\0" * 8, flags=0x02)
    key = sealed(body, b"\xff\xff", flags=0x20)
    tracemalloc.start()
    try:
        for data in (huge, headers, key):
            end = len(data)
            refusal(body, data)
            for call, options in (
                (body.read_entries, {"max_count": 1 << 40}),
                (body.decode_columns, {"names": ["payload", "headers", "key"]}),
                (
                    body.decode_columns,
                    {"names": ["seq"], "max_rows": 1 << 60, "max_bytes": 1 << 60},
                ),
            ):
                with pytest.raises(BadEntry):
                    call(data, 0, end, **options)
            body.skim(data, 0, end, index_from=0)
            body.resync(data, 0, end, min_seq=0, max_seq=MAX_SEQ)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


# -- many ------------------------------------------------------------------------------------------


def payloads(answer: tuple[list[Entry], int]) -> list[bytes]:
    return [entry.payload for entry in answer[0]]


@each_body
def test_reading_stops_at_the_count_the_zeros_and_the_end(body: Body) -> None:
    buffer = bytearray(500)
    packer = body.Packer(buffer, position=0, limit=500, next_seq=1)
    packer.append(b"a", 1)
    packer.append_batch([b"b", b"c"], 1)
    end = packer.position
    assert payloads(body.read_entries(buffer, 0, 500, max_count=2)) == [b"a", b"b"]
    assert payloads(body.read_entries(buffer, 0, 500, max_count=9)) == [b"a", b"b", b"c"]
    assert body.read_entries(buffer, 0, 500, max_count=9)[1] == end
    assert body.read_entries(buffer, 0, end, max_count=9)[1] == end
    assert body.read_entries(buffer, 0, 500, max_count=0) == ([], 0)
    assert body.read_entries(buffer, end, 500, max_count=9) == ([], end)
    assert body.read_entries(buffer, 500, 500, max_count=9) == ([], 500)


@each_body
def test_reading_stops_before_a_bad_entry_and_raises_if_it_is_the_first(body: Body) -> None:
    data = bytearray(b"".join(body.pack(seq, 1, Draft(b"x")) for seq in (1, 2, 3)))
    data[30] ^= 1
    entries, after = body.read_entries(data, 0, 81, max_count=9)
    assert [e.seq for e in entries] == [1]
    assert after == 27
    with pytest.raises(BadEntry) as caught:
        body.read_entries(data, after, 81, max_count=9)
    assert caught.value.offset == 27
    assert body.read_entries(data, 54, 81, max_count=9)[0][0].offset == 54


@each_body
def test_entries_are_equal_hash_alike_and_have_names(body: Body) -> None:
    data = body.pack(1, 2, Draft(b"x"))
    entry = body.unpack(data, 0, 27)
    assert type(entry) is Entry
    assert entry == Entry(1, 2, 1, b"x", 5, 0, 0, None, None, None, 0, 0, 27)
    assert hash(entry) == hash(Entry(*entry))
    assert entry._replace(seq=5).seq == 5
    assert entry.priority == 5


@each_body
def test_an_error_does_not_keep_a_mapping_open(body: Body) -> None:
    mapping = mmap.mmap(-1, 4096)
    mapping[:4] = b"\xff" * 4
    with pytest.raises(BadEntry):
        body.read_entries(mapping, 0, 4096, max_count=1)
    with pytest.raises(BadEntry):
        body.decode_columns(mapping, 0, 4096, ["payload"])
    with pytest.raises(BadEntry) as caught:
        body.unpack(mapping, 0, 4096, max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES)
    mapping.close()  # a BufferError if the pending error still held it
    assert caught.value.offset == 0
