"""Rows of a DataFrame as messages: which columns the sink takes, and what each must hold.

A frame with nothing but a payload goes straight from Arrow's buffers into the segment, without a
step for each row in Python. With options, every row becomes a draft, checked as publishing checks.
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
from penstock.model import NS
from penstock.queue import QueueSettings
from penstock.queue.attributes import CONTENT_TYPE, MAX_ATTEMPTS
from penstock.queue.compression import compress
from penstock.queue.drafting import (
    MAX_CONTENT_TYPE_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
)
from penstock.queue.settings import MOST_ATTEMPTS

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
TAKES: dict[str, tuple[type[DataType], ...]] = {
    "payload": (BinaryType, StringType),
    "priority": _WHOLE,
    "key": (StringType, BinaryType),
    "headers": (MapType,),
    "deliver_at": (TimestampType,),
    "expires_at": (TimestampType,),
    "content_type": (StringType,),
    "max_attempts": _WHOLE,
}
_WANTED = {
    "payload": "binary or string",
    "priority": "a whole number",
    "key": "string or binary",
    "headers": "map<string,string>",
    "deliver_at": "timestamp",
    "expires_at": "timestamp",
    "content_type": "string",
    "max_attempts": "a whole number",
}


@dataclass(frozen=True, slots=True)
class Payloads:
    """Plain messages, as Arrow has them: payload n lies between the n-th and the next offset."""

    offsets: memoryview  # 32 bits each
    data: memoryview
    count: int


def check_sink_schema(schema: StructType) -> None:
    """Refuse a frame that cannot be messages, before anything is read of it."""
    if "payload" not in schema.fieldNames():
        raise InvalidInput(
            f"the sink needs a column 'payload' (binary or string); the frame has "
            f"{', '.join(schema.fieldNames()) or 'no column'}: rename one, or build it with "
            f"to_json(struct(*)) as payload"
        )
    for field in schema.fields:
        if field.name not in TAKES:
            near = get_close_matches(field.name, list(TAKES), n=2, cutoff=0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it takes {', '.join(TAKES)}"
            raise InvalidInput(f"the sink has no use for the column {field.name!r}; {hint}")
        if not isinstance(field.dataType, TAKES[field.name]):
            wanted = _WANTED[field.name]
            raise InvalidInput(
                f"the column {field.name!r} is {field.dataType.simpleString()}; the sink takes "
                f"{wanted}: cast it"
            )
        if isinstance(field.dataType, MapType) and not _is_of_texts(field.dataType):
            raise InvalidInput(
                f"the column 'headers' is {field.dataType.simpleString()}; the sink takes "
                f"map<string,string>: cast it"
            )


def _is_of_texts(type_: MapType) -> bool:
    """Of strings, whether or not Spark thinks that a value may be null: that is seen by row."""
    return isinstance(type_.keyType, StringType) and isinstance(type_.valueType, StringType)


class RowsToMessages:
    """Turns Arrow batches into what goes into a segment."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._plain = (
            settings.compression == "none"
            and settings.default_priority == DEFAULT_PRIORITY
            and not settings.default_ttl_s
        )

    def messages(self, batch: pa.RecordBatch, now_ns: int) -> Payloads | list[Draft]:
        """The messages of a batch, in order. InvalidInput says what is wrong with a row."""
        column = batch.column("payload")
        self._check_payloads(column)
        binary = column if pa.types.is_binary(column.type) else column.cast(pa.binary())
        if self._plain and batch.schema.names == ["payload"]:
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
                f"a payload has {longest} bytes; the most that the queue takes is "
                f"{self._settings.max_payload_bytes} (max_payload_bytes)"
            )

    def _drafts(
        self, batch: pa.RecordBatch, payloads: Sequence[bytes], now_ns: int
    ) -> Iterator[Draft]:
        settings, count = self._settings, len(payloads)
        columns = {name: self._values(batch, name, count) for name in TAKES if name != "payload"}
        for row, payload in enumerate(payloads):
            priority = columns["priority"][row]
            if priority is None:
                priority = settings.default_priority
            elif not 0 <= priority <= 9:
                raise InvalidInput(f"a priority is {priority}; it must be from 0 to 9")
            deliver_ns = columns["deliver_at"][row] or 0
            expires_ns = columns["expires_at"][row] or 0
            if not expires_ns and settings.default_ttl_s:
                expires_ns = max(now_ns, deliver_ns) + round(settings.default_ttl_s * NS)
            packed, method = compress(
                payload,
                settings.compression,
                level=settings.compression_level,
                min_bytes=settings.compression_min_bytes,
            )
            yield Draft(
                packed,
                priority=priority,
                expires_at_ns=expires_ns,
                deliver_at_ns=deliver_ns,
                key=_key(columns["key"][row]),
                headers=_headers(columns["headers"][row]),
                attributes=_attributes(columns["max_attempts"][row], columns["content_type"][row]),
                compression=method,
            )

    def _values(self, batch: pa.RecordBatch, name: str, count: int) -> Sequence[Any]:
        if name not in batch.schema.names:
            return [None] * count
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            return [None if at is None else at * 1000 for at in micros.to_pylist()]
        found: list[Any] = column.to_pylist()
        return found


def _payloads(column: pa.BinaryArray) -> Payloads:
    _, offsets, data = column.buffers()
    start, count = column.offset, len(column)
    places = memoryview(offsets)[4 * start : 4 * (start + count + 1)]
    return Payloads(places, memoryview(b"" if data is None else data), count)


def _key(key: str | bytes | None) -> bytes | None:
    if key is None:
        return None
    data = key.encode() if isinstance(key, str) else key
    if len(data) > MAX_KEY_BYTES:
        raise TooLarge(f"a key has {len(data)} bytes; the most is {MAX_KEY_BYTES}")
    if isinstance(key, bytes):
        try:
            key.decode()
        except UnicodeDecodeError:
            raise InvalidInput("a key is not text (UTF-8), which keys of messages are") from None
    return data


def _headers(headers: list[tuple[str, str]] | None) -> dict[str, str] | None:
    if not headers:
        return None
    pairs: dict[str, str] = dict(headers)
    if len(pairs) > MAX_HEADERS:
        raise TooLarge(f"a row has {len(pairs)} headers; the most is {MAX_HEADERS}")
    total = 0
    for name, value in pairs.items():
        if value is None:
            raise InvalidInput(f"the header {name!r} is null: leave it out of the map")
        total += len(name.encode()) + len(value.encode())
        if not name or any(bad in name for bad in "\r\n\0"):
            raise InvalidInput(f"header name {name!r} is empty or has a line break or NUL in it")
    if total > MAX_HEADERS_BYTES:
        raise TooLarge(f"the headers of a row have {total} bytes; the most is {MAX_HEADERS_BYTES}")
    return pairs


def _attributes(max_attempts: int | None, content_type: str | None) -> dict[int, bytes] | None:
    attributes = {}
    if max_attempts is not None:
        if not 1 <= max_attempts <= MOST_ATTEMPTS:
            raise InvalidInput(f"max_attempts is {max_attempts}; it must be 1 to {MOST_ATTEMPTS}")
        attributes[MAX_ATTEMPTS] = max_attempts.to_bytes(4, "little")
    if content_type is not None:
        attributes[CONTENT_TYPE] = content_type.encode()
        if len(attributes[CONTENT_TYPE]) > MAX_CONTENT_TYPE_BYTES:
            raise TooLarge(
                f"a content type has {len(attributes[CONTENT_TYPE])} bytes; the most is "
                f"{MAX_CONTENT_TYPE_BYTES}"
            )
    return attributes or None


def size_of(draft: Draft) -> int:
    """An upper bound for the bytes of a message's entry."""
    size = ENTRY_OVERHEAD_BYTES + len(draft.payload) + 32 + len(draft.key or b"")
    for name, value in (draft.headers or {}).items():
        size += 4 + len(name.encode()) + len(value.encode())
    return size + sum(3 + len(data) for data in (draft.attributes or {}).values())
