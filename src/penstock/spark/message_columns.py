"""Messages as Arrow columns, made from the codec's buffers without a step for each row."""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock import codec
from penstock.codec import Columns
from penstock.codec.layout import GZIP, ZSTD
from penstock.queue.attributes import CONTENT_TYPE, DEDUP, MAX_ATTEMPTS, unpack_dedup
from penstock.queue.compression import decompress
from penstock.spark.segments import QueueFacts

_MICROSECOND_NS = pa.scalar(1000, pa.int64())  # typed: else pyarrow asks pandas each time
_TIME = pa.timestamp("us", tz="UTC")
_TEXT = pa.string()
_METHODS = {GZIP: "gzip", ZSTD: "zstd"}

# What the codec must decode for a column; `seq` is always decoded, to see that none is missing.
NEEDS: dict[str, tuple[str, ...]] = {
    "id": ("timestamp_ns",),
    "timestamp": ("timestamp_ns",),
    "timestamp_ns": ("timestamp_ns",),
    "priority": ("priority",),
    "key": ("key",),
    "headers": ("headers",),
    "payload": ("payload", "compression"),
    "expires_at": ("expires_at_ns",),
    "expires_at_ns": ("expires_at_ns",),
    "deliver_at": ("deliver_at_ns",),
    "deliver_at_ns": ("deliver_at_ns",),
    "dedup": ("attributes",),
    "attributes": ("attributes",),
    "content_type": ("attributes",),
    "max_attempts": ("attributes",),
    "compression": ("compression",),
    "offset": ("offset",),
    "size": ("size",),
}


class MessageColumns:
    """Turns decoded entries of one segment into the wanted columns."""

    def __init__(
        self, facts: QueueFacts, segment: int, names: Sequence[str], *, unpack: bool
    ) -> None:
        self._facts = facts
        self._segment = segment
        self._names = names
        self._unpack = unpack
        self.needed = ["seq", *{need: None for name in names for need in NEEDS.get(name, ())}]

    def arrays(self, found: Columns) -> list[pa.Array]:
        """The columns, in the order they were asked for."""
        return [_MAKERS[name](self, found) for name in self._names]

    # -- one column each ---------------------------------------------------------------------------

    def _constant(self, value: object, type_: pa.DataType, found: Columns) -> pa.Array:
        if value is None:
            return pa.nulls(found.rows, type_)
        return pa.repeat(pa.scalar(value, type_), found.rows)

    def _ids(self, found: Columns) -> pa.Array:
        times = memoryview(found.buffers["timestamp_ns"]).cast("q")
        seqs = memoryview(found.buffers["seq"]).cast("q")
        identity, make_id = self._facts.identity, codec.make_id
        return pa.array(
            [make_id(at, identity, seq) for at, seq in zip(times, seqs, strict=True)], pa.string()
        )

    def _payload(self, found: Columns) -> pa.Array:
        payload = _variable(found, "payload", pa.binary())
        if not self._unpack or _is_zero(found.buffers["compression"]):
            return payload
        limit = self._facts.max_unpacked_bytes
        return pa.array(
            [
                decompress(data, method, max_bytes=limit)
                for data, method in zip(
                    payload.to_pylist(), found.buffers["compression"], strict=True
                )
            ],
            pa.binary(),
        )

    def _headers(self, found: Columns) -> pa.Array:
        return _map(
            found,
            "headers.offsets",
            _variable(found, "headers.keys", pa.string()),
            _variable(found, "headers.values", pa.string()),
            pa.map_(pa.string(), pa.string()),
        )

    def _attributes(self, found: Columns) -> pa.Array:
        tags = pa.Array.from_buffers(
            pa.uint8(),
            len(found.buffers["attributes.tags"]),
            [None, pa.py_buffer(found.buffers["attributes.tags"])],
        )
        return _map(
            found,
            "attributes.offsets",
            tags.cast(pa.int32()),
            _variable(found, "attributes.values", pa.binary()),
            pa.map_(pa.int32(), pa.binary()),
        )

    def _attribute(
        self,
        found: Columns,
        tag: int,
        read: Callable[[bytes], str | int],
        type_: pa.DataType = _TEXT,
    ) -> pa.Array:
        if tag not in found.buffers["attributes.tags"]:
            return pa.nulls(found.rows, type_)
        rows = self._attributes(found).to_pylist()
        values = [next((data for key, data in row if key == tag), None) for row in rows]
        return pa.array([None if v is None else read(v) for v in values], type_)


def _fixed(found: Columns, name: str, type_: pa.DataType) -> pa.Array:
    validity = found.buffers.get(f"{name}.validity")
    return pa.Array.from_buffers(
        type_,
        found.rows,
        [None if validity is None else pa.py_buffer(validity), pa.py_buffer(found.buffers[name])],
    )


def _is_zero(data: bytearray) -> bool:
    return codec.first_nonzero(data, 0, len(data)) < 0


def _is_empty(found: Columns, name: str) -> bool:
    """Has no row a value? So it is with most columns that are options."""
    validity = found.buffers.get(f"{name}.validity")
    return validity is not None and _is_zero(validity)


def _time(found: Columns, name: str) -> pa.Array:
    """Nanoseconds as Spark's microseconds, cut off."""
    if _is_empty(found, name):
        return pa.nulls(found.rows, _TIME)
    return pc.divide(_fixed(found, name, pa.int64()), _MICROSECOND_NS).view(_TIME)


def _variable(found: Columns, name: str, type_: pa.DataType) -> pa.Array:
    if _is_empty(found, name):
        return pa.nulls(found.rows, type_)
    offsets = found.buffers[f"{name}.offsets"]
    validity = found.buffers.get(f"{name}.validity")
    return pa.Array.from_buffers(
        type_,
        len(offsets) // 4 - 1,
        [
            None if validity is None else pa.py_buffer(validity),
            pa.py_buffer(offsets),
            pa.py_buffer(found.buffers[name]),
        ],
    )


def _map(
    found: Columns, offsets: str, keys: pa.Array, values: pa.Array, type_: pa.MapType
) -> pa.Array:
    places = pa.Array.from_buffers(
        pa.int32(), found.rows + 1, [None, pa.py_buffer(found.buffers[offsets])]
    )
    return pa.MapArray.from_arrays(places, keys, values, type=type_)


def _compression(found: Columns) -> pa.Array:
    numbers = found.buffers["compression"]
    if _is_zero(numbers):
        return pa.nulls(found.rows, pa.string())
    return pa.array([_METHODS.get(n, str(n)) if n else None for n in numbers], pa.string())


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _dedup(data: bytes) -> str:
    return unpack_dedup(data)[0].hex()


_MAKERS: dict[str, Callable[[MessageColumns, Columns], pa.Array]] = {
    "namespace": lambda it, found: it._constant(it._facts.queue.namespace, pa.string(), found),
    "queue": lambda it, found: it._constant(it._facts.queue.name, pa.string(), found),
    "seq": lambda _, found: _fixed(found, "seq", pa.int64()),
    "id": MessageColumns._ids,
    "timestamp": lambda _, found: _time(found, "timestamp_ns"),
    "timestamp_ns": lambda _, found: _fixed(found, "timestamp_ns", pa.int64()),
    "priority": lambda _, found: _fixed(found, "priority", pa.int8()),
    "key": lambda _, found: _variable(found, "key", pa.string()),
    "headers": MessageColumns._headers,
    "payload": MessageColumns._payload,
    "expires_at": lambda _, found: _time(found, "expires_at_ns"),
    "deliver_at": lambda _, found: _time(found, "deliver_at_ns"),
    "expires_at_ns": lambda _, found: _fixed(found, "expires_at_ns", pa.int64()),
    "deliver_at_ns": lambda _, found: _fixed(found, "deliver_at_ns", pa.int64()),
    "dedup": lambda it, found: it._attribute(found, DEDUP, _dedup),
    "attributes": MessageColumns._attributes,
    "content_type": lambda it, found: it._attribute(found, CONTENT_TYPE, bytes.decode),
    "max_attempts": lambda it, found: it._attribute(found, MAX_ATTEMPTS, _number, pa.int32()),
    "compression": lambda _, found: _compression(found),
    "segment": lambda it, found: it._constant(it._segment, pa.int64(), found),
    "offset": lambda _, found: _fixed(found, "offset", pa.int64()),
    "size": lambda _, found: _fixed(found, "size", pa.int32()),
}
