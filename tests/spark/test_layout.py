"""Spark's columns follow the layout of entries, events, attributes and index files."""

import struct

import pyarrow as pa
import pytest

from penstock import codec
from penstock.arrow.event_columns import EventColumns
from penstock.arrow.locations import QueueLocation
from penstock.arrow.message_columns import MessageColumns
from penstock.arrow.segments import QueueInfo
from penstock.arrow.tables import COLUMNS, schema_of
from penstock.arrow.unpacking import slice_rows
from penstock.codec import Columns, Draft
from penstock.codec.entry import COLUMN_NAMES
from penstock.ledger.index import Point, SparseIndex, points_in
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.model import NewMessage
from penstock.queue import QueueSettings
from penstock.queue.attributes import MAX_ATTEMPTS
from penstock.queue.drafting import check
from penstock.queue.events import (
    EXTRA_FIELDS,
    FIELD_FORMATS,
    LONG_TEXT,
    OPTIONAL_FIELD,
    TEXT,
    Event,
    EventType,
    decode,
    encode,
)

INFO = QueueInfo(QueueLocation("shop", "orders", "/x"), 7, 1 << 20, 1 << 20)
NS = 1_700_000_000_123_456_789
MESSAGES = [
    Draft(
        b"payload %d" % n,
        priority=n,
        expires_at_ns=NS + n,
        deliver_at_ns=NS + 2 * n,
        key=b"key %d" % n,
        headers={"name": f"value {n}"},
        attributes={MAX_ATTEMPTS: (258 + n).to_bytes(4, "little")},
    )
    for n in range(1, 6)
]


def decoded(drafts: list[Draft], *, events: bool = False) -> Columns:
    packed = b"".join(codec.pack(n, NS + n, draft) for n, draft in enumerate(drafts, start=1))
    return codec.decode_columns(packed, 0, len(packed), COLUMN_NAMES, events=events)


def messages(found: Columns) -> list[dict[str, object]]:
    names = [name for name in COLUMNS["messages"] if name != "dedup"]
    (arrays,) = MessageColumns(INFO, 1, names, unpack=True).batches(found)
    schema = schema_of("messages", names, several_queues=False, include_headers=False)
    rows: list[dict[str, object]] = pa.RecordBatch.from_arrays(arrays, schema=schema).to_pylist()
    return rows


def test_every_field_of_a_message_is_in_its_column() -> None:
    for n, (row, draft) in enumerate(zip(messages(decoded(MESSAGES)), MESSAGES, strict=True), 1):
        assert (row["seq"], row["timestamp_ns"], row["priority"]) == (n, NS + n, draft.priority)
        assert (row["expires_at_ns"], row["deliver_at_ns"]) == (
            draft.expires_at_ns,
            draft.deliver_at_ns,
        )
        assert (row["payload"], row["key"]) == (draft.payload, f"key {n}")
        assert (row["headers"], row["max_attempts"]) == ([("name", f"value {n}")], 258 + n)
        assert row["id"] == codec.make_id(NS + n, INFO.identity, n)


@pytest.mark.parametrize(("at", "count"), [(0, 5), (1, 3), (4, 1), (2, 0)])
def test_sliced_rows_are_those_of_the_whole(at: int, count: int) -> None:
    whole = decoded(MESSAGES)
    assert messages(slice_rows(whole, at, count)) == messages(whole)[at : at + count]


@pytest.mark.parametrize("kind", EventType)
@pytest.mark.parametrize("runs", [((5, 1),), ((5, 3),), ((5, 1), (9, 2)), ()])
def test_every_field_of_an_event_is_in_its_column(
    kind: EventType, runs: tuple[tuple[int, int], ...]
) -> None:
    fields: dict[str, object] = {}
    for number, name in enumerate(EXTRA_FIELDS.get(kind, ()), start=1):
        fields[name] = (
            f"text {number}" if FIELD_FORMATS[name] in (TEXT, LONG_TEXT) else 1000 * number
        )
    if "cause" in fields:
        fields["cause"] = 1
    if kind in OPTIONAL_FIELD:
        fields[OPTIONAL_FIELD[kind]] = 77
    event = Event(kind, group=3, attempt=2, runs=runs, **fields)  # type: ignore[arg-type]
    body = encode(event)
    event = decode(kind, body, timestamp_ns=0, event_seq=0)
    names = ["group", "attempt", "seq", "reason", "holder", "retry_at", "deadline", "target_seq"]
    table = EventColumns(INFO, 1, names, {3: "workers"})
    (arrays,) = table.batches(decoded([Draft(body, kind)], events=True))
    found = [array.to_pylist() for array in arrays]
    rows = list(zip(*found, strict=True))
    seqs: list[int | None] = [*event.seqs]
    assert [row[2] for row in rows] == (seqs or [None])
    for group, attempt, _, reason, holder, retry_at, deadline, target in rows:
        assert (group, attempt) == ("workers", event.attempt)
        assert (reason, holder) == (event.reason or None, event.holder or None)
        for time, time_ns in ((retry_at, event.retry_at_ns), (deadline, event.deadline_ns)):
            assert (None if time is None else time.microsecond) == (time_ns // 1000 or None)
        # An ack's optional field is no position: the column is null, however many runs there are.
        assert target == (None if kind in OPTIONAL_FIELD else event.target_seq or None)


def test_max_attempts_is_stored_as_restore_reads_it() -> None:
    """In SQL, `restore` turns four little-endian bytes into a number."""
    draft = check(NewMessage(payload=b"", max_attempts=258), QueueSettings(), NS)
    assert draft.attributes is not None
    assert draft.attributes[MAX_ATTEMPTS] == struct.pack("<I", 258)


def test_an_index_file_has_three_numbers_for_each_point() -> None:
    points = [Point(1, NS, HEADER_BYTES), Point(9, NS + 8, HEADER_BYTES + 5000)]
    packed = b"".join(struct.pack("<3Q", *point) for point in points)
    data = SparseIndex(packed, covered=HEADER_BYTES + 9000).pack()
    found = points_in(data)
    assert found is not None
    numbers = found.cast("Q").tolist()
    assert numbers[Point._fields.index("seq") :: 3] == [1, 9]
    assert numbers[Point._fields.index("offset") :: 3] == [HEADER_BYTES, HEADER_BYTES + 5000]
    assert points_in(data[:-1]) is None
    assert points_in(b"no index at all") is None
