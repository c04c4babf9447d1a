"""Two bodies, one specification: the same value, or the same error at the same offset."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import codec_py
from penstock.codec.entry import COLUMN_NAMES, Draft
from tests.codec.bodies import assert_same, compiled, needs_compiled, outcome
from tests.codec.damage import TIME_NS, damaged, random_run, reseal
from tests.codec.drafts import drafts, payloads, rough_drafts, timestamps, tombstones

pytestmark = needs_compiled

ROOM = 1 << 16


@given(st.binary(max_size=5000), st.integers(0, 0xFFFFFFFF))
def test_checksums_are_the_same(data: bytes, value: int) -> None:
    _, checksum, _ = assert_same("crc32c", data, value)
    assert compiled is not None
    assert compiled.crc32c_portable(data, value) == checksum


@given(st.integers(-1, 1 << 64), st.integers(-1, 1 << 64), drafts | rough_drafts | tombstones)
def test_packing_is_the_same(seq: int, timestamp_ns: int, draft: Draft) -> None:
    assert_same("pack", seq, timestamp_ns, draft)


def judge_header(name: bytes) -> None:
    field = b"\1\0" + len(name).to_bytes(2, "little") + name + b"\0\0"
    head = (22 + len(field)).to_bytes(4, "little") + b"\1\2" + bytes(16)
    data = bytearray(head + field + bytes(4))
    reseal(data)
    kind, found, _ = assert_same("unpack", data, 0, len(data))
    assert_same("decode_columns", data, 0, len(data), ["headers"])
    if kind == "value":
        assert found.headers == {name.decode(): ""}
    else:
        assert not is_text(name)


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.binary(max_size=12))
def test_the_same_headers_are_text(name: bytes) -> None:
    judge_header(name)


def test_headers_at_the_edges_of_utf8_are_judged_alike() -> None:
    # Each first byte, with second bytes around its limits.
    for first in range(0x70, 0x100):
        for second in (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF):
            for rest in (b"", b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\xbf\x7f", b"\x7f"):
                judge_header(bytes([first, second]) + rest)


id_seqs = st.one_of(
    st.integers(-3, 50), st.integers((1 << 48) - 9, (1 << 48) + 3), st.just(1 << 70)
)


@given(timestamps, st.integers(0, 0xFFFFFFFF), id_seqs, st.integers(0, 8))
def test_ids_are_the_same(timestamp_ns: int, identity: int, seq: int, count: int) -> None:
    kind, text, _ = assert_same("make_id", timestamp_ns, identity, seq)
    if kind == "value":
        milliseconds = timestamp_ns // 1_000_000
        assert assert_same("parse_id", text)[1] == (milliseconds, identity, seq)
    assert_same("make_ids", timestamp_ns, identity, seq, count)


u16s = st.integers(0, 9) | st.integers(-1, 0x10000)
calls = st.one_of(
    st.tuples(st.just("append"), payloads, timestamps),
    st.tuples(st.just("append_event"), st.integers(-1, 300), payloads, timestamps),
    st.tuples(
        st.just("append_event_of_one"),
        st.integers(-1, 300),
        u16s,
        u16s,
        st.integers(-1, 1 << 63),
        timestamps,
    ),
    st.tuples(
        st.just("append_identified"),
        payloads | drafts | rough_drafts | payloads.map(bytearray),
        timestamps,
        st.integers(0, 0xFFFFFFFF),
    ),
    st.tuples(
        st.sampled_from(["append_batch", "append_batch_stamped"]),
        st.lists(payloads | drafts | payloads.map(bytearray) | tombstones, max_size=6),
        timestamps,
    ),
    st.tuples(st.just("append_batch"), st.lists(rough_drafts, max_size=3), timestamps),
    st.tuples(st.just("promise"), st.integers(-1, ROOM)),
    st.tuples(st.just("write_checkpoint"), st.integers(-1, 1 << 64)),
    st.tuples(st.just("take")),
)
settings = st.one_of(
    st.tuples(st.just("limit"), st.integers(-1, ROOM + 1)),
    st.tuples(st.just("position"), st.integers(-1, ROOM + 1)),
    st.tuples(st.just("seq_limit"), st.integers(-2, 60)),
    st.tuples(st.just("time_limit_ns"), st.integers(-2, 200)),
    st.tuples(st.just("next_seq"), st.integers(-2, 60)),
)


@given(
    st.lists(calls | settings, max_size=15),
    st.integers(0, 50),
    st.sampled_from([ROOM, 300, 100]),
    st.sampled_from([1 << 20, 80]),
)
def test_packers_do_the_same(
    steps: list[tuple[Any, ...]], next_seq: int, limit: int, max_entry_bytes: int
) -> None:
    assert compiled is not None
    buffers = bytearray(ROOM), bytearray(ROOM)
    packers = [
        body.Packer(
            buffer, position=0, limit=limit, next_seq=next_seq, max_entry_bytes=max_entry_bytes
        )
        for body, buffer in zip((codec_py, compiled), buffers, strict=True)
    ]
    for name, *arguments in steps:
        if callable(getattr(packers[0], name)):
            answers = [outcome(getattr(packer, name), *arguments) for packer in packers]
        else:
            answers = [outcome(setattr, packer, name, *arguments) for packer in packers]
        assert answers[0] == answers[1], name
        for number in ("position", "limit", "next_seq", "last_timestamp_ns"):
            assert getattr(packers[0], number) == getattr(packers[1], number), number
        assert buffers[0] == buffers[1], name


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    """What packers write, or something like it; about half of it damaged."""
    packer = codec_py.Packer(
        bytearray(ROOM), position=0, limit=ROOM, next_seq=draw(st.integers(0, 9))
    )
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            packer.promise(draw(st.integers(0, packer.position)))
        items = draw(st.lists(drafts | tombstones, min_size=1, max_size=4))
        packer.append_batch(items, draw(timestamps))
    data = packer.take() + draw(st.binary(max_size=30) | st.integers(0, 9).map(bytes))
    if draw(st.booleans()):
        data = damaged(random.Random(draw(st.integers(0, 1 << 32))), data)
    return data


@given(runs(), st.data())
def test_reading_is_the_same(data: bytes, more: st.DataObject) -> None:
    def draw(least: int, most: int) -> int:
        return more.draw(st.integers(least, most))

    start = draw(0, len(data)) if draw(0, 3) == 3 else 0
    end = draw(start, len(data)) if draw(0, 3) == 3 else len(data)
    common = {
        "seq_base": more.draw(st.sampled_from([0, 0, 1000, (1 << 63) - 5])),
        "max_entry_bytes": more.draw(st.sampled_from([32 << 20, 32 << 20, 200, 0])),
    }
    assert_same("unpack", data, start, end, **common)
    assert_same("read_entries", data, start, end, max_count=draw(0, 8), **common)
    assert_same("seek", data, start, end, seq=draw(0, 2000), timestamp_ns=draw(0, 50), **common)
    assert_same(
        "skim", data, start, end, whole_batches=draw(0, 1) == 1, index_from=draw(-1, 99), **common
    )
    assert_same("first_nonzero", data, start, end)
    assert_same("read_messages", data, start, end, max_count=draw(0, 8), identity=7, **common)
    wanted = [common["seq_base"] + seq for seq in sorted({draw(0, 12) for _ in range(draw(0, 6))})]
    assert_same(
        "read_messages",
        data,
        start,
        end,
        max_count=draw(0, 8),
        max_bytes=draw(0, 400),
        identity=7,
        wanted=wanted,
        **common,
    )
    assert_same("skip_plain", data, start, end, end_seq=draw(0, 2000), **common)
    assert_same(
        "resync",
        data,
        start,
        end,
        min_seq=draw(-1, 9),
        max_seq=more.draw(st.sampled_from([-1, 5, 100, 1 << 63, 1 << 64])),
        min_timestamp_ns=draw(-1, 9),
        max_entry_bytes=common["max_entry_bytes"],
    )
    assert_same(
        "decode_columns",
        data,
        start,
        end,
        more.draw(st.lists(st.sampled_from([*COLUMN_NAMES, "headers", "none"]), max_size=13)),
        max_rows=draw(-1, 10),
        max_bytes=more.draw(st.sampled_from([-1, 0, 60, 500, 8 << 20])),
        events=draw(0, 1) == 1,
        **common,
    )


@given(st.integers(0, 1 << 32), st.integers(1, 5))
def test_damage_is_judged_alike(seed: int, calls: int) -> None:
    source = random.Random(seed)
    data = damaged(source, random_run(source, calls))
    end = len(data)
    assert_same("skim", data, 0, end, index_from=0)
    assert_same("skim", data, 0, end, whole_batches=False)
    assert_same("read_entries", data, 0, end, max_count=100)
    assert_same("decode_columns", data, 0, end, COLUMN_NAMES, events=source.random() < 0.5)
    assert_same("resync", data, 0, end, min_seq=0, max_seq=200, min_timestamp_ns=TIME_NS)
    assert_same("resync", data, source.randrange(end + 1), end, min_seq=0, max_seq=1 << 63)
