"""CRC-32C in plain Python: one table, one step a byte; and what counts as bytes."""

Buffer = bytes | bytearray | memoryview


def flat(data: Buffer) -> memoryview:
    """A bytes-like object, whatever its items are, as one run of bytes."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("the bytes do not lie side by side in memory")
    return view.cast("B")


def _make_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _make_table()


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of the data, continued from `value`.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    table = _TABLE
    crc = value ^ 0xFFFFFFFF
    for byte in bytes(flat(data)):  # quicker than over the view
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF
