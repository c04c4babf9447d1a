"""Bytes and numbers of the caller: views, checks of limits, and CRC-32C in plain Python."""

from penstock.codec.layout import MAX_ENTRY_BYTES, MAX_SEQ, MAX_TIMESTAMP_NS
from penstock.errors import InvalidInput

Buffer = bytes | bytearray | memoryview


def flat(data: Buffer) -> memoryview:
    """Return a bytes-like object with items of any size as one run of bytes."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous in memory")
    return view.cast("B")


def view_of(buffer: Buffer, start: int, end: int) -> memoryview:
    """Return the buffer as bytes, for use in a `with`, so that no error keeps a mapping open."""
    view = flat(buffer)
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    return view


def check_seq(seq: int) -> None:
    if not 0 <= seq <= MAX_SEQ:
        raise InvalidInput(f"seq {seq} is not between 0 and 2^63 - 1")


def check_timestamp(timestamp_ns: int) -> None:
    if not 0 <= timestamp_ns <= MAX_TIMESTAMP_NS:
        raise InvalidInput(f"timestamp {timestamp_ns} ns is not between 1970 and 2262")


def check_limits(seq_base: int, max_entry_bytes: int) -> None:
    check_seq(seq_base)
    if not 0 <= max_entry_bytes <= MAX_ENTRY_BYTES:
        raise InvalidInput(f"max_entry_bytes {max_entry_bytes} is not up to {MAX_ENTRY_BYTES}")


def _make_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _make_table()


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of the data, continued from `value`.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    table = _TABLE
    crc = value ^ 0xFFFFFFFF
    for byte in bytes(flat(data)):  # faster than over the view
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF
