"""Decompress the payloads of a batch, in parts whose size is bounded.

A batch of a few megabytes can unpack to a thousand times as much, so it is split by the sizes of
its unpacked payloads. Zstd frames have their size in their header. Frames that lie next to each
other are one stream for the library: one call unpacks all of them, in a quarter of the time that
one call for each takes. Everything else is unpacked one by one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec import Columns
from penstock.codec.layout import ZSTD
from penstock.errors import PayloadUnreadable
from penstock.queue.compression import decompress

_Numbers = npt.NDArray[np.int64]
_MAGIC = np.frombuffer(b"\x28\xb5\x2f\xfd", np.uint8)
_DESCRIPTOR = len(_MAGIC)  # the byte after it says how long the header is, and what it has
_SINGLE_SEGMENT, _DICTIONARY = 0x20, 0x03
_UNKNOWN = -1


def unpacked_parts(
    found: Columns, *, queue: str, max_unpacked_bytes: int, max_part_bytes: int
) -> Iterator[Columns]:
    """Yield the rows with payloads as they were published, in parts of limited size.

    A part has at least one row. Raise PayloadUnreadable if a payload is damaged, or larger than
    `max_unpacked_bytes`; the error names the queue and the seq.
    """
    methods = np.frombuffer(found.buffers["compression"], np.uint8)
    if not methods.any():
        yield found
        return
    sizes = _unpacked_sizes(found, methods)
    at = 0
    if sizes.min() > _UNKNOWN and sizes.max() <= max_unpacked_bytes:
        ends = np.cumsum(sizes)
        while at < found.rows:
            before = ends[at - 1] if at else 0
            upto = int(np.searchsorted(ends, before + max_part_bytes, side="right"))
            upto = max(upto, at + 1)
            part = slice_rows(found, at, upto - at)
            payloads = _unpack_frames(part, methods[at:upto], sizes[at:upto])
            if payloads is None:
                break  # one by one, which finds the row and says what is wrong
            yield _with_payloads(part, payloads)
            at = upto
    if at < found.rows:
        rest = slice_rows(found, at, found.rows - at)
        yield from _unpack_rows(rest, queue, max_unpacked_bytes, max_part_bytes)


def slice_rows(found: Columns, at: int, count: int) -> Columns:
    """Return some of the rows, by slicing the buffers."""
    buffers: dict[str, bytearray] = {}
    for name, data in found.buffers.items():
        column, _, part = name.partition(".")
        if part == "validity":
            bits = int.from_bytes(data, "little") >> at & (1 << count) - 1
            buffers[name] = bytearray(bits.to_bytes(-(-count // 8), "little"))
        elif part == "offsets":
            width = len(data) // (found.rows + 1)
            buffers[name] = data[at * width : (at + count + 1) * width]
        elif not part and f"{column}.offsets" not in found.buffers:
            width = len(data) // found.rows
            buffers[name] = data[at * width : (at + count) * width]
        else:
            buffers[name] = data  # values, which offsets point into
    return Columns(count, found.next_offset, buffers)


# -- frames of zstd --------------------------------------------------------------------------------


def _unpacked_sizes(found: Columns, methods: npt.NDArray[np.uint8]) -> _Numbers:
    """Return the size of each payload after unpacking; `_UNKNOWN` if only unpacking can tell."""
    offsets = _offsets(found)
    sizes: _Numbers = np.diff(offsets).astype(np.int64)
    packed = np.flatnonzero(methods)
    sizes[packed] = _UNKNOWN
    # Padded, so that the longest header can be taken from the last payload.
    data = np.frombuffer(bytes(found.buffers["payload"]) + bytes(_MAX_HEADER_BYTES), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(data, _MAX_HEADER_BYTES)
    heads = windows[offsets[packed]]
    frames = (methods[packed] == ZSTD) & (heads[:, :_DESCRIPTOR] == _MAGIC).all(axis=1)
    for descriptor in np.unique(heads[frames, _DESCRIPTOR]):
        if not (field := _size_field(int(descriptor))):
            continue
        start, width, added = field
        of_kind = frames & (heads[:, _DESCRIPTOR] == descriptor)
        digits = heads[of_kind, start : start + width].astype(np.uint64)
        values = (digits << (np.arange(width, dtype=np.uint64) * np.uint64(8))).sum(axis=1)
        # A size of 2**63 and more is no size: it becomes negative, and so unknown.
        sizes[packed[of_kind]] = np.maximum(values.view(np.int64) + added, _UNKNOWN)
    return sizes


_MAX_HEADER_BYTES = 18  # magic, descriptor, window, dictionary id, size


def _size_field(descriptor: int) -> tuple[int, int, int] | None:
    """Return where a frame's header has the size, in how many bytes, and what to add to it."""
    single = descriptor & _SINGLE_SEGMENT
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    if not width or descriptor & _DICTIONARY:
        return None
    start = _DESCRIPTOR + 1 + (0 if single else 1)
    return start, width, 256 if width == 2 else 0


def _unpack_frames(
    part: Columns, methods: npt.NDArray[np.uint8], sizes: _Numbers
) -> pa.Array | None:
    """Return the payloads; None if the frames are not what their headers say."""
    packed = methods != 0
    payloads = _payloads(part)
    frames = payloads if packed.all() else payloads.filter(pa.array(packed))
    data = _unpack_stream(frames, int(sizes[packed].sum()))
    if data is None:
        return None
    offsets = np.zeros(len(frames) + 1, np.int32)
    np.cumsum(sizes[packed], out=offsets[1:])
    unpacked = pa.Array.from_buffers(
        pa.binary(), len(frames), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    if packed.all():
        return unpacked
    plain = payloads.filter(pa.array(~packed))
    order = np.empty(part.rows, np.int64)
    order[packed] = np.arange(len(frames))
    order[~packed] = len(frames) + np.arange(len(plain))
    return pa.concat_arrays([unpacked, plain]).take(pa.array(order))


def _unpack_stream(frames: pa.Array, size_bytes: int) -> bytearray | None:
    """Unpack frames that lie next to each other. Return None if they have another size."""
    offsets = np.frombuffer(frames.buffers()[1], np.int32)[frames.offset :]
    start, end = int(offsets[0]), int(offsets[len(frames)])
    data = bytearray(size_bytes)
    filled = 0
    try:
        packed = pa.BufferReader(frames.buffers()[2].slice(start, end - start))
        with pa.CompressedInputStream(packed, "zstd") as stream, memoryview(data) as view:
            while filled < size_bytes and (count := stream.readinto(view[filled:])):
                filled += count
            rest = stream.read(1)
    except (OSError, pa.ArrowInvalid):
        return None
    return data if filled == size_bytes and not rest else None


# -- one by one ------------------------------------------------------------------------------------


def _unpack_rows(
    found: Columns, queue: str, max_unpacked_bytes: int, max_part_bytes: int
) -> Iterator[Columns]:
    methods = found.buffers["compression"]
    unpacked: list[bytes] = []
    size, at = 0, 0
    for row, (data, method) in enumerate(zip(_payloads(found), methods, strict=True)):
        try:
            payload = decompress(data.as_py(), method, max_bytes=max_unpacked_bytes)
        except PayloadUnreadable as error:
            seq = memoryview(found.buffers["seq"]).cast("q")[row]
            raise PayloadUnreadable(
                f"queue {queue}, seq {seq}: {error}. To read the other messages, leave the column "
                f"payload out, leave this seq out of the range, or read payloads as stored (on "
                f"Spark: decompress=false)"
            ) from error
        if unpacked and size + len(payload) > max_part_bytes:
            yield _with_list(found, at, unpacked)
            unpacked, size, at = [], 0, row
        unpacked.append(payload)
        size += len(payload)
    yield _with_list(found, at, unpacked)


def _with_list(found: Columns, at: int, payloads: Sequence[bytes]) -> Columns:
    part = slice_rows(found, at, len(payloads))
    return _with_payloads(part, pa.array(payloads, pa.binary()))


# -- buffers ---------------------------------------------------------------------------------------


def _offsets(found: Columns) -> npt.NDArray[np.int32]:
    return np.frombuffer(found.buffers["payload.offsets"], np.int32)


def _payloads(found: Columns) -> pa.Array:
    buffers: list[Any] = [found.buffers[name] for name in ("payload.offsets", "payload")]
    return pa.Array.from_buffers(pa.binary(), found.rows, [None, *map(pa.py_buffer, buffers)])


def _with_payloads(part: Columns, payloads: pa.Array) -> Columns:
    _, offsets, data = payloads.buffers()
    buffers: dict[str, Any] = {
        **part.buffers,
        "payload.offsets": offsets,
        "payload": b"" if data is None else data,
    }
    return Columns(part.rows, part.next_offset, buffers)
