"""Good bytes and ways to spoil them, from a seeded random source."""

import random
import struct
from typing import TypeVar

from penstock import codec
from penstock.codec.entry import Draft
from penstock.codec.layout import CRC_BYTES, FIRST_EVENT, LENGTH_BYTES, MIN_LENGTH, TOMBSTONE

T = TypeVar("T")
U = TypeVar("U")

TIME_NS = 1_700_000_000_000_000_000
LENGTHS = [0, 1, 21, 22, 23, 26, 0xFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF]
BYTES = [0, 1, 2, 3, 15, 16, 0x7F, 0x80, 0xFE, 0xFF]


def random_draft(source: random.Random) -> Draft:
    """A draft in which each option is there now and then."""

    def now_and_then(value: T, otherwise: U) -> T | U:
        return value if source.random() < 0.3 else otherwise

    if source.random() < 0.05:
        return Draft(struct.pack("<Q", source.randrange(1, 1000)), type=TOMBSTONE)
    return Draft(
        payload=source.randbytes(source.choice([0, 1, 8, 20, 100])),
        type=now_and_then(FIRST_EVENT + source.randrange(4), 1),
        priority=now_and_then(source.randrange(10), 5),
        expires_at_ns=now_and_then(TIME_NS + source.randrange(1000), 0),
        deliver_at_ns=now_and_then(TIME_NS + source.randrange(1000), 0),
        key=now_and_then(source.randbytes(source.randrange(5)), None),
        headers=now_and_then({"a": "b", "größe": "€ 𝄞", "": ""}, None),
        attributes=now_and_then(source.choice([{1: b"one", 200: b""}, {3: b"text/plain"}]), None),
        compression=now_and_then(1, 0),
    )


def random_run(source: random.Random, calls: int) -> bytes:
    """What a packer writes in that many calls, with some of the zeros behind it."""
    packer = codec.Packer(
        bytearray(64 << 10), position=0, limit=64 << 10, next_seq=source.randrange(1, 100)
    )
    for _ in range(calls):
        if source.random() < 0.3:
            packer.promise(source.randrange(packer.position + 1))
        drafts = [random_draft(source) for _ in range(source.choice([1, 1, 2, 4]))]
        packer.append_batch(drafts, TIME_NS + source.randrange(10))
    return packer.take() + bytes(source.choice([0, 1, 3, 40]))


def damaged(source: random.Random, data: bytes) -> bytes:
    """The same bytes with one to three things wrong; some with their checksums made right again."""
    spoiled = bytearray(data)
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        _spoil(source, spoiled)
    if source.random() < 0.5:
        reseal(spoiled)
    return bytes(spoiled)


def _spoil(source: random.Random, data: bytearray) -> None:
    size = len(data)
    if size < 8:
        data += source.randbytes(8)
        return
    at = source.randrange(size)
    count = source.randrange(1, min(40, size))
    match source.randrange(8):
        case 0:
            data[at] ^= 1 << source.randrange(8)
        case 1:
            data[at] = source.choice(BYTES)
        case 2:
            del data[at:]
        case 3:
            data[at : at + count] = bytes(len(data[at : at + count]))
        case 4:
            data[at:at] = data[source.randrange(size) :][:count]
        case 5:
            del data[at : at + count]
        case 6:
            at = min(at, size - 4)
            data[at : at + 4] = struct.pack("<I", source.choice(LENGTHS))
        case _:
            _spoil_head(source, data)


def _spoil_head(source: random.Random, data: bytearray) -> None:
    """Damage where it is read first: the fixed part and the fields of some entry."""
    offsets = entry_offsets(data)
    if offsets:
        at = source.choice(offsets) + source.randrange(40)
        if at < len(data):
            data[at] = source.choice(BYTES)


def entry_offsets(data: bytes | bytearray) -> list[int]:
    """Where entries start as far as the lengths say so."""
    offsets = []
    at = 0
    while len(data) - at >= LENGTH_BYTES:
        (length,) = struct.unpack_from("<I", data, at)
        if length < MIN_LENGTH or at + LENGTH_BYTES + length > len(data):
            break
        offsets.append(at)
        at += LENGTH_BYTES + length
    return offsets


def reseal(data: bytearray) -> None:
    """Make every checksum right again, so that the damage behind it is looked at."""
    for at in entry_offsets(data):
        (length,) = struct.unpack_from("<I", data, at)
        crc_at = at + LENGTH_BYTES + length - CRC_BYTES
        struct.pack_into("<I", data, crc_at, codec.crc32c(bytes(data[at:crc_at])))
