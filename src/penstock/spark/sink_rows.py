"""Rows of a DataFrame as messages: the columns that the sink takes, and the checks of their values.

A frame with only a payload goes from Arrow's buffers into the segment, without a step per row. With
other columns, every row becomes a draft. Limits are those of publishing; a column is checked as a
whole, which takes a third less time than checking each message.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.arrow.tables import ALIASES
from penstock.codec import ENTRY_OVERHEAD_BYTES, Draft
from penstock.codec.layout import DEFAULT_PRIORITY, MAX_PRIORITY, MAX_TIMESTAMP_NS
from penstock.errors import InvalidInput, TooLarge
from penstock.model import NS
from penstock.queue import QueueSettings
from penstock.queue.attributes import CONTENT_TYPE, MAX_ATTEMPTS, TENANT
from penstock.queue.compression import compress
from penstock.queue.drafting import (
    MAX_CONTENT_TYPE_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_TENANT_BYTES,
)
from penstock.queue.settings import MOST_ATTEMPTS, YEARS_S

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
# The columns of the sink: accepted types, and their names for the error message.
SINK_COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "payload": ((BinaryType, StringType), "binary or string"),
    "priority": (_INTEGERS, "a whole number"),
    "key": ((StringType, BinaryType), "string or binary"),
    "headers": (
        (MapType, ArrayType),
        "map<string,string>, or array<struct<key:string,value:binary>> as in Kafka's source",
    ),
    "deliver_at": ((TimestampType,), "timestamp"),
    "expires_at": ((TimestampType,), "timestamp"),
    "deliver_at_ns": ((LongType,), "bigint, nanoseconds since 1970"),
    "expires_at_ns": ((LongType,), "bigint, nanoseconds since 1970"),
    "content_type": ((StringType,), "string"),
    "max_attempts": (_INTEGERS, "a whole number"),
    "tenant": ((StringType,), "string"),
}
# The exact form of a time, and the column that it stands for: Spark's timestamps have microseconds.
EXACT_TIMES = {"deliver_at_ns": "deliver_at", "expires_at_ns": "expires_at"}

# Columns of Kafka's source and sink that have no place here: what to do about them.
_OF_KAFKA = {
    "topic": "name the queue with the option 'queue', and drop the column",
    **dict.fromkeys(("partition", "offset", "timestamp", "timestampType"), "drop it"),
}

_OPTIONS = (  # in the order in which drafts are made of them
    *("priority", "key", "headers", "deliver_at", "expires_at"),
    *("content_type", "max_attempts", "tenant"),
)
_MAX_BYTES = {
    "key": MAX_KEY_BYTES,
    "content_type": MAX_CONTENT_TYPE_BYTES,
    "tenant": MAX_TENANT_BYTES,
}
_NUMBERS = {
    "priority": (0, MAX_PRIORITY),
    "max_attempts": (1, MOST_ATTEMPTS),
}
# Seconds from now to the latest time that publishing gives a message: a delay, and a time to live
# that begins after it. Copies of messages, and redrives without the delay, are within them.
_LATEST_S = {"deliver_at": YEARS_S, "expires_at": 2 * YEARS_S}


@dataclass(frozen=True, slots=True)
class Payloads:
    """Messages with only a payload, as Arrow buffers: payload n is between offsets n and n + 1."""

    offsets: memoryview  # int32
    data: memoryview
    count: int


def check_sink_schema(schema: StructType) -> None:
    """Raise InvalidInput for a frame that cannot be written, before it is read."""
    names = [ALIASES.get(name, name) for name in schema.fieldNames()]
    if "payload" not in names:
        raise InvalidInput(
            f"the sink needs a column 'payload' (binary or string); the frame has "
            f"{', '.join(schema.fieldNames()) or 'no column'}: rename one, or make it with "
            f"to_json(struct(*)) as payload"
        )
    for alias, name in ALIASES.items():
        if {alias, name} <= set(schema.fieldNames()):
            raise InvalidInput(f"the frame has {name!r} and {alias!r}, its other name: drop one")
    for name, field in zip(names, schema.fields, strict=True):
        if name not in SINK_COLUMNS:
            raise InvalidInput(f"the sink does not take the column {name!r}; {_hint(name)}")
        if names.count(name) > 1:
            raise InvalidInput(f"the frame has two columns {name!r}: drop or rename one")
        if EXACT_TIMES.get(name) in names:
            raise InvalidInput(f"the frame has both {EXACT_TIMES[name]!r} and {name!r}: drop one")
        accepted, wanted = SINK_COLUMNS[name]
        type_ = field.dataType
        if not isinstance(type_, accepted) or not _is_of_headers(type_):
            raise InvalidInput(
                f"the column {field.name!r} is {type_.simpleString()}; the sink takes {wanted}: "
                f"cast it"
            )


def _hint(name: str) -> str:
    if name in _OF_KAFKA:
        return _OF_KAFKA[name]
    near = get_close_matches(name, list(SINK_COLUMNS), n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"it takes {', '.join(SINK_COLUMNS)}"


def _is_of_headers(type_: DataType) -> bool:
    """Return False for a map or an array that cannot be headers. Null values are found by row."""
    if isinstance(type_, MapType):
        return isinstance(type_.keyType, StringType) and isinstance(type_.valueType, StringType)
    if isinstance(type_, ArrayType):
        pair = type_.elementType
        return (
            isinstance(pair, StructType)
            and pair.fieldNames() == ["key", "value"]
            and isinstance(pair["key"].dataType, StringType)
            and isinstance(pair["value"].dataType, StringType | BinaryType)
        )
    return True


class RowsToMessages:
    """Turns Arrow batches into messages for a queue with these settings."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._has_no_defaults = (
            settings.compression == "none"
            and settings.default_priority == DEFAULT_PRIORITY
            and not settings.default_ttl_s
        )

    def messages(self, batch: pa.RecordBatch, now_ns: int) -> Payloads | list[Draft]:
        """Return the messages of a batch, in order. Raise InvalidInput for a bad row."""
        if not ALIASES.keys().isdisjoint(batch.schema.names):
            batch = batch.rename_columns([ALIASES.get(n, n) for n in batch.schema.names])
        column = batch.column("payload")
        if column.null_count:
            raise InvalidInput(
                "a payload is null: filter such rows out, or give them an empty payload"
            )
        _check_bytes("payload", column, self._settings.max_payload_bytes, " (max_payload_bytes)")
        binary = column if pa.types.is_binary(column.type) else column.cast(pa.binary())
        if self._has_no_defaults and batch.schema.names == ["payload"]:
            return _payloads(binary)
        return list(self._drafts(batch, binary.to_pylist(), now_ns))

    def _drafts(
        self, batch: pa.RecordBatch, payloads: Sequence[bytes], now_ns: int
    ) -> Iterator[Draft]:
        settings = self._settings
        options = (_values(batch, name, now_ns) for name in _OPTIONS)
        rows = zip(payloads, *options, strict=True)
        for payload, priority, key, headers, deliver_ns, expires_ns, *others in rows:
            if expires_ns is not None:
                expires_ns = expires_ns or 1  # 0 means never
            elif settings.default_ttl_s:
                expires_ns = max(now_ns, deliver_ns or 0) + round(settings.default_ttl_s * NS)
            packed, method = compress(
                payload,
                settings.compression,
                level=settings.compression_level,
                min_bytes=settings.compression_min_bytes,
            )
            yield Draft(
                packed,
                priority=settings.default_priority if priority is None else priority,
                expires_at_ns=expires_ns or 0,
                deliver_at_ns=deliver_ns or 0,
                key=None if key is None else key.encode(),
                headers=_headers(headers) if headers else None,
                attributes=_attributes(*others),
                compression=method,
            )


def _check_bytes(name: str, column: pa.Array, max_bytes: int, setting: str = "") -> None:
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if longest > max_bytes:
        raise TooLarge(
            f"a row's {name} has {longest} bytes; the queue takes at most {max_bytes}{setting}"
        )


def _values(batch: pa.RecordBatch, name: str, now_ns: int) -> Sequence[Any]:
    """Return the values of a column, checked as a whole; times in nanoseconds."""
    if name in _LATEST_S:
        return _times(batch, name, now_ns)
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    if name in _MAX_BYTES:
        _check_bytes(name, column, _MAX_BYTES[name])
        try:
            column = column.cast(pa.string())
        except pa.ArrowInvalid:
            raise InvalidInput(f"a row's {name} is not valid UTF-8") from None
    elif name in _NUMBERS:
        low, high = _NUMBERS[name]
        bad = _out_of_range(column, low, high)
        if bad is not None:
            raise InvalidInput(f"a row's {name} is {bad}; it must be from {low} to {high}")
    elif pa.types.is_list(column.type):
        return _header_pairs(column)
    return list(column.to_pylist())


def _out_of_range(column: pa.Array, low: int, high: int) -> int | None:
    found: dict[str, int | None] = pc.min_max(column).as_py()
    least, most = found["min"], found["max"]
    if least is None or most is None or low <= least <= most <= high:
        return None
    return least if least < low else most


def _times(batch: pa.RecordBatch, name: str, now_ns: int) -> Sequence[int | None]:
    """Return the times of a column, or of its exact form, in nanoseconds. Limits: of publishing."""
    latest_ns = min(now_ns + round(_LATEST_S[name] * NS), MAX_TIMESTAMP_NS)
    exact = f"{name}_ns"
    if exact in batch.schema.names:
        column = batch.column(exact)
        bad = _out_of_range(column, 0, latest_ns)
        if bad is not None:
            raise InvalidInput(
                f"a row's {exact} is {bad}; it must be from 0 to {latest_ns} ({_shown(latest_ns)})"
            )
        return list(column.to_pylist())
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    micros = batch.column(name).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    bad = _out_of_range(micros, 0, latest_ns // 1000)
    if bad is not None:
        raise InvalidInput(
            f"a row's {name} is {_shown(bad * 1000)}; it must be from {_shown(0)} to "
            f"{_shown(latest_ns)}"
        )
    return [None if at is None else at * 1000 for at in micros.to_pylist()]


def _shown(time_ns: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=time_ns // 1000)).isoformat()
    except OverflowError:  # beyond the years 1 to 9999
        return f"{time_ns} ns since 1970"


def _header_pairs(column: pa.ListArray) -> Sequence[Any]:
    """Return headers as Kafka has them: a list of names and values, which are UTF-8 here."""
    text = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    try:
        rows = column.cast(text).to_pylist()
    except pa.ArrowInvalid:
        rows = column.to_pylist()  # with the value that is not UTF-8
    return [row and [_header_pair(pair) for pair in row] for row in rows]


def _header_pair(pair: Mapping[str, Any] | None) -> tuple[str, str | None]:
    if pair is None:
        raise InvalidInput("an element of the array headers is null: leave it out")
    name, value = pair["key"], pair["value"]
    if name is None:
        raise InvalidInput("the key of a header is null: give it a name, or leave it out")
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"the value of the header {name!r} is not valid UTF-8 (byte {error.start}): leave "
                f"it out, or encode it, such as with base64"
            ) from None
    return name, value


def _payloads(column: pa.BinaryArray) -> Payloads:
    _, offsets, data = column.buffers()
    start, count, width = column.offset, len(column), pa.int32().byte_width
    used = memoryview(offsets)[width * start : width * (start + count + 1)]
    return Payloads(used, memoryview(b"" if data is None else data), count)


def _headers(headers: list[tuple[str, str | None]]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    total = 0
    for name, value in headers:
        if value is None:
            raise InvalidInput(f"the header {name!r} is null: leave it out")
        if not name or any(bad in name for bad in "\r\n\0"):
            raise InvalidInput(f"header name {name!r} is empty or has a line break or NUL in it")
        if name in pairs:
            raise InvalidInput(f"a row has the header {name!r} twice: give each name one value")
        total += len(name.encode()) + len(value.encode())
        pairs[name] = value
    if len(pairs) > MAX_HEADERS or total > MAX_HEADERS_BYTES:
        raise TooLarge(
            f"a row has {len(pairs)} headers of {total} bytes; the maximum is {MAX_HEADERS} "
            f"headers of {MAX_HEADERS_BYTES} bytes"
        )
    return pairs


@lru_cache(maxsize=256)
def _attributes(
    content_type: str | None, max_attempts: int | None, tenant: str | None
) -> Mapping[int, bytes] | None:
    """Return the attributes of a message. Shared by messages: do not change them."""
    attributes = {}
    if max_attempts is not None:
        attributes[MAX_ATTEMPTS] = max_attempts.to_bytes(4, "little")
    if content_type is not None:
        attributes[CONTENT_TYPE] = content_type.encode()
    if tenant is not None:
        if not tenant:
            raise InvalidInput("a row's tenant is empty: give a name, or null")
        attributes[TENANT] = tenant.encode()
    return attributes or None


def max_entry_size(draft: Draft) -> int:
    """Return an upper bound for the bytes of a message's entry."""
    size = ENTRY_OVERHEAD_BYTES + len(draft.payload) + 32 + len(draft.key or b"")
    for name, value in (draft.headers or {}).items():
        size += 4 + _max_utf8_bytes(name) + _max_utf8_bytes(value)
    return size + sum(3 + len(data) for data in (draft.attributes or {}).values())


def _max_utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)
