"""The first 64 bytes of a segment, and its name."""

import struct
from dataclasses import dataclass

from penstock.codec import crc32c
from penstock.errors import BadEntry, NewerVersion

HEADER_BYTES = 64
FORMAT_VERSION = 1

MESSAGES = 1
EVENTS = 2

SEALED = 0x01
COMPACTED = 0x02  # some of its entries were removed; end_seq is set
RELATIVE = 0x04  # the seq of its entries counts from base_seq
_KNOWN_FLAGS = SEALED | COMPACTED | RELATIVE

_MAGIC = b"PNSK"
_BODY = struct.Struct("<4sHBBIIQQQ20x")  # 60 bytes; the reserved ones are zero
_CRC = struct.Struct("<I")

_SUFFIX = ".log"
_INDEX_SUFFIX = ".idx"


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says of itself. Written once, when the segment is made."""

    kind: int
    identity: int
    base_seq: int
    created_at_ns: int
    flags: int = 0
    end_seq: int = 0  # of a compacted segment: one above the last seq it stands for

    @property
    def seq_base(self) -> int:
        """What to add to the seq of each entry."""
        return self.base_seq if self.flags & RELATIVE else 0

    @property
    def oldest_ns(self) -> int:
        """No entry in it is older; 0 where the header cannot say, being the younger."""
        return 0 if self.flags & RELATIVE else self.created_at_ns

    def pack(self) -> bytes:
        body = _BODY.pack(
            _MAGIC,
            FORMAT_VERSION,
            self.kind,
            self.flags,
            self.identity,
            0,
            self.base_seq,
            self.created_at_ns,
            self.end_seq,
        )
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def unpack(cls, data: bytes) -> "SegmentHeader":
        """Read a header; BadEntry where it is not one, NewerVersion where we must not guess."""
        if len(data) < HEADER_BYTES:
            raise BadEntry(0, f"a segment header has {HEADER_BYTES} bytes, here are {len(data)}")
        body = data[: HEADER_BYTES - _CRC.size]
        if _CRC.unpack_from(data, len(body))[0] != crc32c(body):
            raise BadEntry(0, "the checksum of the segment header does not match")
        magic, version, kind, flags, identity, _, base, created, end = _BODY.unpack(body)
        if magic != _MAGIC:
            raise BadEntry(0, "not a segment: the magic number is missing")
        if version > FORMAT_VERSION or flags & ~_KNOWN_FLAGS or kind not in (MESSAGES, EVENTS):
            raise NewerVersion(0, "the segment was written by a newer version")
        return cls(kind, identity, base, created, flags, end)


def segment_name(base_seq: int) -> str:
    """
    >>> segment_name(4711)
    '00000000000000004711.log'
    """
    return f"{base_seq:020d}{_SUFFIX}"


def index_name(base_seq: int) -> str:
    """Return the name of a segment's sparse index."""
    return f"{base_seq:020d}{_INDEX_SUFFIX}"


def base_seq_of(name: str, suffix: str = _SUFFIX) -> int | None:
    """Return the base seq in a segment's name; None if it is not a segment's name."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def index_base_seq_of(name: str) -> int | None:
    return base_seq_of(name, _INDEX_SUFFIX)
