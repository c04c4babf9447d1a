"""Columnar decode: the rows of read_entries as Arrow-ready buffers."""

import random
import struct
from itertools import pairwise
from typing import Any

import pytest

from penstock.codec import codec_py
from penstock.codec.entry import COLUMN_NAMES, Columns, Draft, Entry
from penstock.codec.layout import DATA, FIRST_EVENT, TOMBSTONE
from penstock.errors import BadEntry, InvalidInput
from tests.codec.bodies import Body, compiled, each_body, needs_compiled
from tests.codec.damage import random_run
from tests.codec.test_unpack import sealed

FORMATS = {
    "seq": "<Q",
    "timestamp_ns": "<q",
    "type": "<B",
    "priority": "<B",
    "compression": "<B",
    "offset": "<Q",
    "size": "<I",
    "expires_at_ns": "<q",
    "deliver_at_ns": "<q",
}


def decode(body: Body, data: Any, names: Any = COLUMN_NAMES, **options: Any) -> Columns:
    found: Columns = body.decode_columns(data, 0, len(data), names, **options)
    return found


def numbers(columns: Columns, name: str) -> list[int]:
    return [value for (value,) in struct.iter_unpack(FORMATS[name], columns.buffers[name])]


def pieces(columns: Columns, name: str) -> list[bytes]:
    offsets = [v for (v,) in struct.iter_unpack("<i", columns.buffers[f"{name}.offsets"])]
    assert offsets[0] == 0
    assert offsets[-1] == len(columns.buffers[name])
    data = bytes(columns.buffers[name])
    return [data[a:b] for a, b in pairwise(offsets)]


def validity(columns: Columns, name: str) -> list[bool]:
    bitmap = columns.buffers[f"{name}.validity"]
    assert len(bitmap) == (columns.rows + 7) // 8
    return [bool(bitmap[row // 8] >> row % 8 & 1) for row in range(columns.rows)]


def rows_of(columns: Columns) -> list[Entry]:
    """The rows as the entries that read_entries would have built."""
    headers = _lists(columns, "headers", pieces(columns, "headers.keys"))
    values = _lists(columns, "headers", pieces(columns, "headers.values"))
    tags = _lists(columns, "attributes", list(columns.buffers["attributes.tags"]))
    contents = _lists(columns, "attributes", pieces(columns, "attributes.values"))
    keys = pieces(columns, "key")
    has_key = validity(columns, "key")
    fixed = {name: numbers(columns, name) for name in FORMATS}
    for name in ("expires_at_ns", "deliver_at_ns"):
        assert validity(columns, name) == [value != 0 for value in fixed[name]]
    texts = [
        {n.decode(): v.decode() for n, v in zip(*pair, strict=True)}
        for pair in zip(headers, values, strict=True)
    ]
    bytes_by_tag = [dict(zip(*pair, strict=True)) for pair in zip(tags, contents, strict=True)]
    return [
        Entry(
            payload=payload,
            key=keys[row] if has_key[row] else None,
            headers=texts[row] or None,
            attributes=bytes_by_tag[row] or None,
            **{name: values[row] for name, values in fixed.items()},
        )
        for row, payload in enumerate(pieces(columns, "payload"))
    ]


def _lists(columns: Columns, name: str, items: list[Any]) -> list[list[Any]]:
    offsets = [v for (v,) in struct.iter_unpack("<i", columns.buffers[f"{name}.offsets"])]
    assert offsets[-1] == len(items)
    return [items[a:b] for a, b in pairwise(offsets)]


@each_body
@pytest.mark.parametrize("events", [False, True])
def test_columns_hold_the_same_rows_as_entries(body: Body, events: bool) -> None:
    data = random_run(random.Random(5), 60)
    entries, after = body.read_entries(data, 0, len(data), max_count=1000, seq_base=10)
    columns = decode(body, data, events=events, seq_base=10)
    wanted = [e for e in entries if (e.type >= FIRST_EVENT if events else e.type == DATA)]
    assert len(wanted) > 10
    assert rows_of(columns) == wanted
    assert (columns.rows, columns.next_offset) == (len(wanted), after)


@each_body
def test_only_what_is_asked_for_is_built(body: Body) -> None:
    data = random_run(random.Random(6), 20)
    full = decode(body, data)
    for name in COLUMN_NAMES:
        one = decode(body, data, [name])
        assert one.rows == full.rows
        assert one.buffers.keys() == {
            key for key in full.buffers if key == name or key.startswith(f"{name}.")
        }
        for key, buffer in one.buffers.items():
            assert type(buffer) is bytearray
            assert buffer == full.buffers[key]
    assert decode(body, data, []) == Columns(full.rows, full.next_offset, {})
    assert decode(body, data, {"seq", "size"}).buffers.keys() == {"seq", "size"}
    for names in (["seq", "Seq"], ["payload.offsets"], [""]):
        with pytest.raises(InvalidInput, match="there is no column"):
            decode(body, data, names)


@each_body
def test_an_empty_run_has_empty_columns(body: Body) -> None:
    for data in (b"", bytes(100)):
        columns = decode(body, data)
        assert (columns.rows, columns.next_offset) == (0, 0)
        for name, buffer in columns.buffers.items():
            assert buffer == (bytes(4) if name.endswith(".offsets") else b"")


@each_body
def test_rows_are_cut_at_max_rows_and_max_bytes_but_one_is_always_taken(body: Body) -> None:
    data = b"".join(body.pack(seq, 1, Draft(b"x" * 74)) for seq in range(1, 11))
    assert decode(body, data, ["seq"], max_rows=3)[:2] == (3, 300)
    assert decode(body, data, ["seq"], max_rows=0)[:2] == (0, 0)
    assert decode(body, data, ["seq"], max_rows=1 << 60)[:2] == (10, 1000)
    assert decode(body, data, ["payload"], max_bytes=299)[:2] == (2, 200)
    assert decode(body, data, ["payload"], max_bytes=300)[:2] == (3, 300)
    for least in (1, 0, -5):
        assert decode(body, data, ["payload"], max_bytes=least)[:2] == (1, 100)
    assert decode(body, data, ["payload"], max_bytes=1 << 60)[:2] == (10, 1000)


@each_body
def test_what_is_not_a_row_is_passed_over_and_verified(body: Body) -> None:
    tombstone = body.pack(5, 1, Draft(bytes(8), type=TOMBSTONE))
    event = body.pack(6, 1, Draft(b"e", type=FIRST_EVENT))
    data = tombstone + event + body.pack(7, 1, Draft(b"d"))
    assert numbers(decode(body, data), "seq") == [7]
    assert numbers(decode(body, data, events=True), "seq") == [6]
    assert decode(body, data, events=True).next_offset == len(data)
    spoiled = bytearray(data)
    spoiled[len(tombstone) + 10] ^= 1
    assert decode(body, spoiled)[:2] == (0, len(tombstone))
    with pytest.raises(BadEntry):
        body.decode_columns(spoiled, len(tombstone), len(spoiled), ["seq"])


@each_body
def test_a_bad_first_entry_raises_and_a_later_one_ends_the_run(body: Body) -> None:
    good = body.pack(1, 1, Draft(b"x"))
    bad = sealed(body, b"\x0b", flags=0x08)
    assert decode(body, good + bad + good)[:2] == (1, len(good))
    with pytest.raises(BadEntry, match="priority 11"):
        decode(body, bad + good)


@each_body
def test_header_text_is_checked_only_if_it_is_asked_for(body: Body) -> None:
    good = body.pack(1, 1, Draft(b"x"))
    bad = sealed(body, b"\1\0\1\0\xff\0\0", flags=0x02)
    assert decode(body, bad, ["seq", "payload"]).rows == 1
    assert decode(body, good + bad, ["headers"])[:2] == (1, len(good))
    with pytest.raises(BadEntry, match="a header is not UTF-8"):
        decode(body, bad, ["headers"])


@each_body
def test_buffers_grow_with_what_they_hold(body: Body) -> None:
    drafts = [
        Draft(
            b"p" * (seq * 97 % 5000),
            key=b"k" * (seq * 31 % 900),
            headers={f"{i}" * (seq % 40): "v" * (i * 50) for i in range(seq % 20)},
            attributes=dict.fromkeys(range(seq % 255), b""),
        )
        for seq in range(300)
    ]
    data = b"".join(body.pack(seq, 1, draft) for seq, draft in enumerate(drafts))
    columns = decode(body, data)
    entries, _ = codec_py.read_entries(data, 0, len(data), max_count=1000)
    assert rows_of(columns) == entries
    large = body.pack(1, 1, Draft(b"x" * 100_000, headers={"n": "v" * 60_000}))
    assert rows_of(decode(body, large, max_bytes=10))[0].size == len(large)


@needs_compiled
def test_columns_survive_random_runs_alike() -> None:
    source = random.Random(7)
    for _ in range(150):
        data = random_run(source, source.randrange(1, 30))
        options = {
            "events": source.random() < 0.5,
            "max_rows": source.choice([1, 7, 8, 9, 65536]),
            "max_bytes": source.choice([1, 200, 8 << 20]),
        }
        names = source.sample(COLUMN_NAMES, source.randrange(len(COLUMN_NAMES) + 1))
        assert decode(compiled, data, names, **options) == decode(codec_py, data, names, **options)


@each_body
def test_arrow_takes_the_buffers_as_they_are(body: Body) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow comes with the spark extra")
    data = random_run(random.Random(8), 60)
    entries, _ = body.read_entries(data, 0, len(data), max_count=1000)
    rows = [e for e in entries if e.type == DATA]
    columns = decode(body, data)

    def array(kind: Any, *names: str, children: list[Any] | None = None, rows: int = -1) -> Any:
        buffers = [pa.py_buffer(columns.buffers[name]) if name else None for name in names]
        count = columns.rows if rows < 0 else rows
        found = pa.Array.from_buffers(kind, count, buffers, children=children)
        found.validate(full=True)
        return found

    def pairs(name: str, first: Any, second: Any) -> Any:
        kind = pa.list_(pa.struct([("first", first.type), ("second", second.type)]))
        struct_array = pa.StructArray.from_arrays([first, second], ["first", "second"])
        return array(kind, "", f"{name}.offsets", children=[struct_array]).to_pylist()

    for name, kind in (
        ("seq", pa.uint64()),
        ("timestamp_ns", pa.int64()),
        ("type", pa.uint8()),
        ("priority", pa.uint8()),
        ("compression", pa.uint8()),
        ("offset", pa.int64()),
        ("size", pa.uint32()),
    ):
        assert array(kind, "", name).to_pylist() == [getattr(e, name) for e in rows]
    for name in ("expires_at_ns", "deliver_at_ns"):
        found = array(pa.int64(), f"{name}.validity", name).to_pylist()
        assert found == [getattr(e, name) or None for e in rows]
    payload = array(pa.binary(), "", "payload.offsets", "payload")
    assert payload.to_pylist() == [e.payload for e in rows]
    key = array(pa.binary(), "key.validity", "key.offsets", "key")
    assert key.to_pylist() == [e.key for e in rows]

    headers = len(columns.buffers["headers.keys.offsets"]) // 4 - 1
    names = array(pa.string(), "", "headers.keys.offsets", "headers.keys", rows=headers)
    values = array(pa.string(), "", "headers.values.offsets", "headers.values", rows=headers)
    assert pairs("headers", names, values) == [
        [{"first": n, "second": v} for n, v in (e.headers or {}).items()] for e in rows
    ]
    count = len(columns.buffers["attributes.tags"])
    tags = array(pa.uint8(), "", "attributes.tags", rows=count)
    contents = array(pa.binary(), "", "attributes.values.offsets", "attributes.values", rows=count)
    assert pairs("attributes", tags, contents) == [
        [{"first": t, "second": v} for t, v in (e.attributes or {}).items()] for e in rows
    ]
