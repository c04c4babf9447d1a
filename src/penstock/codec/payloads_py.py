"""Many plain messages at once, from payloads that lie side by side, as Arrow has them."""

import struct

from penstock.codec.checksum_py import Buffer, flat
from penstock.codec.layout import DATA, DEFAULT_MAX_ENTRY_BYTES, ENTRY_OVERHEAD_BYTES, MAX_SEQ
from penstock.codec.pack_py import check_limits, check_seq, check_timestamp, seal
from penstock.errors import InvalidInput, TooLarge

_PLACE = struct.Struct("<ii")


def pack_payloads(
    into: bytearray | memoryview,
    offsets: Buffer,
    data: Buffer,
    row: int,
    *,
    seq: int,
    timestamp_ns: int,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> tuple[int, int]:
    """Write entries from the start of a buffer on, as many as it has room for.

    Payload n is what lies between the n-th and the next of the offsets (32 bits each). Begins with
    number `row`, which gets `seq`; answers the number of the first that did not fit (or how many
    there are), and how many bytes were written. Nobody may be reading the buffer meanwhile, and
    after an error it holds anything.

    >>> pack_payloads(bytearray(60), bytes([0, 0, 0, 0, 2, 0, 0, 0]), b"hi", 0, seq=0,
    ...               timestamp_ns=0)
    (1, 28)
    """
    places, payloads, target = flat(offsets), flat(data), flat(into)
    rows, used = max(len(places) // 4 - 1, 0), 0
    check_seq(seq)
    check_timestamp(timestamp_ns)
    check_limits(seq, max_entry_bytes)
    if not 0 <= row <= rows:
        raise ValueError(f"there is no row {row} among {rows}")
    if target.readonly:
        raise BufferError("entries need a buffer that can be written")
    while row < rows:
        start, stop = _PLACE.unpack_from(places, 4 * row)
        if not 0 <= start <= stop <= len(payloads):
            raise InvalidInput(f"the offsets of payload {row} are not inside the data")
        size = ENTRY_OVERHEAD_BYTES + stop - start
        if size > max_entry_bytes:
            raise TooLarge(f"payload {row} makes an entry of more than {max_entry_bytes} bytes")
        if seq > MAX_SEQ:
            raise InvalidInput("no seq is left: the highest is 2^63 - 1")
        if size > len(target) - used:
            break
        entry = seal(seq, timestamp_ns, DATA, 0, bytes(payloads[start:stop]))
        target[used : used + size] = entry
        row, used, seq = row + 1, used + size, seq + 1
    return row, used
