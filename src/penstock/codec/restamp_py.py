"""Another time for entries that were written by someone who could not know it."""

import struct

from penstock.codec.checksum_py import crc32c, flat
from penstock.codec.layout import CRC_BYTES, DEFAULT_MAX_ENTRY_BYTES, FIXED_BYTES
from penstock.codec.pack_py import check_limits, check_timestamp
from penstock.codec.unpack_py import read_head, view_of
from penstock.errors import BadEntry

_TIMESTAMP = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def restamp(
    into: bytearray | memoryview,
    start: int,
    end: int,
    timestamp_ns: int,
    *,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> None:
    """Give every entry of a range another time, in its place, and its checksum with it.

    Each is verified before it is touched: what is damaged must not get a checksum that is right.
    BadEntry where that is so, or where the range has anything but whole entries; those before it
    have been changed then. Nobody may be reading the buffer meanwhile.

    >>> from penstock.codec import Draft, pack, unpack
    >>> data = bytearray(pack(7, 1, Draft(b"hi")))
    >>> restamp(data, 0, len(data), 5)
    >>> unpack(data, 0, len(data)).timestamp_ns
    5
    """
    check_timestamp(timestamp_ns)
    check_limits(0, max_entry_bytes)
    target = flat(into)
    if target.readonly:
        raise BufferError("entries need a buffer that can be written")
    with view_of(target, start, end) as view:
        offset = start
        while offset < end:
            head = read_head(view, offset, end, 0, max_entry_bytes)
            if head is None:
                raise BadEntry(offset, "nothing written here")
            _TIMESTAMP.pack_into(view, offset + FIXED_BYTES - _TIMESTAMP.size, timestamp_ns)
            offset += head.size
            crc_at = offset - CRC_BYTES
            _CRC.pack_into(view, crc_at, crc32c(view[head.offset : crc_at]))
