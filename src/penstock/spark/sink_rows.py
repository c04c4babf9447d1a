"""Rows of a DataFrame as messages: the columns that the sink takes, and the checks of their values.

A frame with only a payload goes from Arrow's buffers into the segment, without a step per row. With
other columns, every row becomes a draft, checked as publishing checks it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
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

from penstock.codec import ENTRY_OVERHEAD_BYTES, Draft
from penstock.codec.layout import DEFAULT_PRIORITY
from penstock.errors import InvalidInput, TooLarge
from penstock.model import NS, NewMessage
from penstock.queue import QueueSettings
from penstock.queue.drafting import draft_of

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
# The columns of the sink: accepted types, and their names for the error message.
SINK_COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "payload": ((BinaryType, StringType), "binary or string"),
    "priority": (_INTEGERS, "a whole number"),
    "key": ((StringType, BinaryType), "string or binary"),
    "headers": ((MapType,), "map<string,string>"),
    "deliver_at": ((TimestampType,), "timestamp"),
    "expires_at": ((TimestampType,), "timestamp"),
    "content_type": ((StringType,), "string"),
    "max_attempts": (_INTEGERS, "a whole number"),
}


@dataclass(frozen=True, slots=True)
class Payloads:
    """Messages with only a payload, as Arrow buffers: payload n is between offsets n and n + 1."""

    offsets: memoryview  # int32
    data: memoryview
    count: int


def check_sink_schema(schema: StructType) -> None:
    """Raise InvalidInput for a frame that cannot be written, before it is read."""
    if "payload" not in schema.fieldNames():
        raise InvalidInput(
            f"the sink needs a column 'payload' (binary or string); the frame has "
            f"{', '.join(schema.fieldNames()) or 'no column'}: rename one, or make it with "
            f"to_json(struct(*)) as payload"
        )
    known = ", ".join(SINK_COLUMNS)
    for field in schema.fields:
        name, type_ = field.name, field.dataType
        if name not in SINK_COLUMNS:
            near = get_close_matches(name, list(SINK_COLUMNS), n=2, cutoff=0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it takes {known}"
            raise InvalidInput(f"the sink does not take the column {name!r}; {hint}")
        if schema.fieldNames().count(name) > 1:
            raise InvalidInput(f"the frame has two columns {name!r}: drop or rename one")
        accepted, wanted = SINK_COLUMNS[name]
        if not isinstance(type_, accepted) or not _is_of_strings(type_):
            raise InvalidInput(
                f"the column {name!r} is {type_.simpleString()}; the sink takes {wanted}: cast it"
            )


def _is_of_strings(type_: DataType) -> bool:
    """Return False for a map of other types. Null values are found row by row."""
    if not isinstance(type_, MapType):
        return True
    return isinstance(type_.keyType, StringType) and isinstance(type_.valueType, StringType)


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
        column = batch.column("payload")
        self._check_payloads(column)
        binary = column if pa.types.is_binary(column.type) else column.cast(pa.binary())
        if self._has_no_defaults and batch.schema.names == ["payload"]:
            return _payloads(binary)
        return list(self._drafts(batch, binary.to_pylist(), now_ns))

    def _check_payloads(self, column: pa.Array) -> None:
        if column.null_count:
            raise InvalidInput(
                "a payload is null: filter such rows out, or give them an empty payload"
            )
        longest = pc.max(pc.binary_length(column)).as_py() or 0
        if longest > self._settings.max_payload_bytes:
            raise TooLarge(
                f"a payload has {longest} bytes; the queue takes at most "
                f"{self._settings.max_payload_bytes} (max_payload_bytes)"
            )

    def _drafts(
        self, batch: pa.RecordBatch, payloads: Sequence[bytes], now_ns: int
    ) -> Iterator[Draft]:
        settings = self._settings
        columns = {name: _values(batch, name) for name in SINK_COLUMNS if name != "payload"}
        for row, payload in enumerate(payloads):
            message = NewMessage(
                payload=payload,
                priority=columns["priority"][row],
                key=_key(columns["key"][row]),
                headers=_headers(columns["headers"][row]),
                content_type=columns["content_type"][row],
                max_attempts=columns["max_attempts"][row],
            )
            draft = draft_of(message, settings, now_ns, 0)
            deliver_ns, expires_ns = columns["deliver_at"][row], columns["expires_at"][row]
            if expires_ns is not None:
                draft = draft._replace(expires_at_ns=expires_ns or 1)  # 0 means never
            elif deliver_ns and settings.default_ttl_s:
                later_ns = max(now_ns, deliver_ns) + round(settings.default_ttl_s * NS)
                draft = draft._replace(expires_at_ns=later_ns)
            yield draft._replace(deliver_at_ns=deliver_ns) if deliver_ns else draft


def _values(batch: pa.RecordBatch, name: str) -> Sequence[Any]:
    """Return the values of a column; times in nanoseconds."""
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return [None if at is None else at * 1000 for at in micros.to_pylist()]


def _payloads(column: pa.BinaryArray) -> Payloads:
    _, offsets, data = column.buffers()
    start, count, width = column.offset, len(column), pa.int32().byte_width
    used = memoryview(offsets)[width * start : width * (start + count + 1)]
    return Payloads(used, memoryview(b"" if data is None else data), count)


def _key(key: str | bytes | None) -> str | None:
    if not isinstance(key, bytes):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise InvalidInput("a key is not valid UTF-8, which keys of messages are") from None


def _headers(headers: list[tuple[str, str | None]] | None) -> dict[str, str] | None:
    if headers is None:
        return None
    pairs = {}
    for name, value in headers:
        if value is None:
            raise InvalidInput(f"the header {name!r} is null: leave it out of the map")
        pairs[name] = value
    return pairs


def max_entry_size(draft: Draft) -> int:
    """Return an upper bound for the bytes of a message's entry."""
    size = ENTRY_OVERHEAD_BYTES + len(draft.payload) + 32 + len(draft.key or b"")
    for name, value in (draft.headers or {}).items():
        size += 4 + len(name.encode()) + len(value.encode())
    return size + sum(3 + len(data) for data in (draft.attributes or {}).values())
