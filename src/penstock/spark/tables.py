"""The tables and their columns: names, Spark types, and which ones are read by default.

Most of the cost of a read is turning columns into rows in the JVM. So the default columns are few;
others are read on request (`columns`, or `.schema(…)`).
"""

from collections.abc import Sequence
from difflib import get_close_matches

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidInput
from penstock.spark.options import Table

_TEXT, _LONG, _TIME = StringType(), LongType(), TimestampType()

_MESSAGES: dict[str, DataType] = {
    "namespace": _TEXT,
    "queue": _TEXT,
    "seq": _LONG,
    "id": _TEXT,
    "timestamp": _TIME,
    "timestamp_ns": _LONG,
    "priority": ByteType(),
    "key": _TEXT,
    "headers": MapType(StringType(), StringType()),
    "payload": BinaryType(),
    "expires_at": _TIME,
    "expires_at_ns": _LONG,
    "deliver_at": _TIME,
    "deliver_at_ns": _LONG,
    "dedup": _TEXT,
    "attributes": MapType(IntegerType(), BinaryType()),
    "content_type": _TEXT,
    "max_attempts": IntegerType(),
    "compression": _TEXT,
    "segment": _LONG,
    "offset": _LONG,
    "size": IntegerType(),
}
_STATE: dict[str, DataType] = {
    **_MESSAGES,
    "group": _TEXT,
    "state": _TEXT,
    "attempts": IntegerType(),
    "reason": _TEXT,
    "due_at": _TIME,
    "leased_until": _TIME,
    "holder": _TEXT,
    "first_failure": _TIME,
    "last_failure": _TIME,
}
_EVENTS: dict[str, DataType] = {
    "namespace": _TEXT,
    "queue": _TEXT,
    "event_seq": _LONG,
    "event": _TEXT,
    "group": _TEXT,
    "seq": _LONG,
    "timestamp": _TIME,
    "timestamp_ns": _LONG,
    "attempt": IntegerType(),
    "reason": _TEXT,
    "holder": _TEXT,
    "retry_at": _TIME,
    "deadline": _TIME,
    "target_seq": _LONG,
    "segment": _LONG,
    "offset": _LONG,
}
COLUMNS: dict[Table, dict[str, DataType]] = {
    "messages": _MESSAGES,
    "events": _EVENTS,
    "state": _STATE,
}
# Columns without nulls. Looking for nulls in a number costs Spark as much as taking its value.
_NEVER_NULL_IN_MESSAGES = (
    *("queue", "seq", "id", "timestamp", "timestamp_ns", "priority", "headers"),
    *("payload", "attributes", "segment", "offset", "size"),
)
NEVER_NULL: dict[Table, frozenset[str]] = {
    "messages": frozenset(_NEVER_NULL_IN_MESSAGES),
    "events": frozenset(
        ("queue", "event_seq", "timestamp", "timestamp_ns", "attempt", "segment", "offset")
    ),
    "state": frozenset((*_NEVER_NULL_IN_MESSAGES, "group", "state")),
}
DEFAULT_COLUMNS: dict[Table, tuple[str, ...]] = {
    "messages": ("seq", "timestamp", "priority", "key", "payload"),
    "events": (
        *("event_seq", "event", "group", "seq", "timestamp"),
        *("attempt", "reason", "holder", "retry_at"),
    ),
    "state": ("seq", "timestamp", "priority", "key", "state", "attempts", "reason", "due_at"),
}

_ARROW: dict[DataType, pa.DataType] = {
    _TEXT: pa.string(),
    _LONG: pa.int64(),
    _TIME: pa.timestamp("us", tz="UTC"),
    ByteType(): pa.int8(),
    IntegerType(): pa.int32(),
    BinaryType(): pa.binary(),
    MapType(StringType(), StringType()): pa.map_(pa.string(), pa.string()),
    MapType(IntegerType(), BinaryType()): pa.map_(pa.int32(), pa.binary()),
}


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of a batch."""
    return pa.schema(
        [pa.field(f.name, _ARROW[f.dataType], nullable=f.nullable) for f in schema.fields]
    )


def schema_of(
    table: Table, columns: Sequence[str] | None, *, several_queues: bool, include_headers: bool
) -> StructType:
    """Return the schema of the named columns, or of the default ones."""
    types = COLUMNS[table]
    if columns is None:
        columns = DEFAULT_COLUMNS[table]
        if several_queues:
            columns = ("namespace", "queue", *columns)
        if include_headers:
            columns = (*columns, "headers")
    elif tuple(columns) == ("*",):
        columns = tuple(types)
    repeated = {name for name in columns if list(columns).count(name) > 1}
    if repeated:
        raise InvalidInput(f"the option 'columns' names {sorted(repeated)[0]!r} twice")
    for name in columns:
        if name not in types:
            raise InvalidInput(_no_column(name, table))
    if include_headers and "headers" not in columns:
        raise InvalidInput(
            "includeHeaders is true, but 'columns' does not name 'headers'"
            if "headers" in types
            else f"the table {table!r} has no headers: leave includeHeaders out"
        )
    fields = [StructField(name, types[name], name not in NEVER_NULL[table]) for name in columns]
    return StructType(fields)


def check_schema(table: Table, schema: StructType) -> None:
    """Raise InvalidInput for a schema that does not consist of the table's columns."""
    types = COLUMNS[table]
    for field in schema.fields:
        if field.name not in types:
            raise InvalidInput(_no_column(field.name, table))
        if field.dataType != types[field.name]:
            wanted = types[field.name].simpleString()
            raise InvalidInput(
                f"the column {field.name!r} of {table} is {wanted}, not "
                f"{field.dataType.simpleString()}: read it as {wanted} and cast it in the query"
            )
        if not field.nullable and field.name not in NEVER_NULL[table]:
            raise InvalidInput(
                f"the column {field.name!r} of {table} can be null: leave nullable=False out"
            )


def _no_column(name: str, table: Table) -> str:
    types = COLUMNS[table]
    near = get_close_matches(name, list(types), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(types)}"
    return f"the table {table!r} has no column {name!r}; {hint}"
