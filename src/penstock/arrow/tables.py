"""The tables and their columns: names, Arrow types, and which ones are read by default.

Most of the cost of a read in Spark is turning columns into rows in the JVM. So the default columns
are few; others are read on request.
"""

from collections.abc import Sequence
from difflib import get_close_matches

import pyarrow as pa

from penstock.arrow.selection import Table
from penstock.errors import InvalidInput

# Limits of a record batch. For more than a few megabytes memory is fetched from the system anew.
BATCH_ROWS, BATCH_BYTES = 65536, 4 << 20
TIME = pa.timestamp("us", tz="UTC")
_TEXT, _INT32, _INT64 = pa.string(), pa.int32(), pa.int64()

_MESSAGES: dict[str, pa.DataType] = {
    "namespace": _TEXT,
    "queue": _TEXT,
    "seq": _INT64,
    "id": _TEXT,
    "timestamp": TIME,
    "timestamp_ns": _INT64,
    "priority": pa.int8(),
    "key": _TEXT,
    "headers": pa.map_(_TEXT, _TEXT),
    "payload": pa.binary(),
    "value": pa.binary(),
    "expires_at": TIME,
    "expires_at_ns": _INT64,
    "deliver_at": TIME,
    "deliver_at_ns": _INT64,
    "dedup": _TEXT,
    "attributes": pa.map_(_INT32, pa.binary()),
    "content_type": _TEXT,
    "max_attempts": _INT32,
    "tenant": _TEXT,
    "compression": _TEXT,
    "segment": _INT64,
    "offset": _INT64,
    "size": _INT32,
}
_STATE: dict[str, pa.DataType] = {
    **_MESSAGES,
    "group": _TEXT,
    "state": _TEXT,
    "attempts": _INT32,
    "reason": _TEXT,
    "due_at": TIME,
    "leased_until": TIME,
    "holder": _TEXT,
    "first_failure": TIME,
    "last_failure": TIME,
}
_EVENTS: dict[str, pa.DataType] = {
    "namespace": _TEXT,
    "queue": _TEXT,
    "event_seq": _INT64,
    "event": _TEXT,
    "group": _TEXT,
    "seq": _INT64,
    "timestamp": TIME,
    "timestamp_ns": _INT64,
    "attempt": _INT32,
    "reason": _TEXT,
    "holder": _TEXT,
    "retry_at": TIME,
    "deadline": TIME,
    "target_seq": _INT64,
    "segment": _INT64,
    "offset": _INT64,
}
COLUMNS: dict[Table, dict[str, pa.DataType]] = {
    "messages": _MESSAGES,
    "events": _EVENTS,
    "state": _STATE,
}
# Second names of columns, as Kafka's source has them. `*` leaves them out.
ALIASES = {"value": "payload"}
# Columns without nulls. Looking for nulls in a number costs Spark as much as taking its value.
_NEVER_NULL_IN_MESSAGES = (
    *("queue", "seq", "id", "timestamp", "timestamp_ns", "priority", "headers"),
    *("payload", "value", "attributes", "segment", "offset", "size"),
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


def schema_of(
    table: Table, columns: Sequence[str] | None, *, several_queues: bool, include_headers: bool
) -> pa.Schema:
    """Return the schema of the named columns, or of the default ones."""
    types = COLUMNS[table]
    if columns is None:
        columns = DEFAULT_COLUMNS[table]
        if several_queues:
            columns = ("namespace", "queue", *columns)
        if include_headers:
            columns = (*columns, "headers")
    elif tuple(columns) == ("*",):
        columns = tuple(name for name in types if name not in ALIASES)
    repeated = {name for name in columns if list(columns).count(name) > 1}
    if repeated:
        raise InvalidInput(f"the option 'columns' names {sorted(repeated)[0]!r} twice")
    for name in columns:
        if name not in types:
            raise InvalidInput(no_column(name, table))
    if include_headers and "headers" not in columns:
        raise InvalidInput(
            "includeHeaders is true, but 'columns' does not name 'headers'"
            if "headers" in types
            else f"the table {table!r} has no headers: leave includeHeaders out"
        )
    never_null = NEVER_NULL[table]
    return pa.schema([pa.field(name, types[name], name not in never_null) for name in columns])


def no_column(name: str, table: Table) -> str:
    """Return what is wrong with the name of a column, and what may be meant."""
    types = COLUMNS[table]
    near = get_close_matches(name, list(types), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(types)}"
    return f"the table {table!r} has no column {name!r}; {hint}"
