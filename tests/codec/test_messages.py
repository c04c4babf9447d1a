"""Plain messages in a row, and where their short way ends."""

import struct
from typing import Any

import pytest

from penstock.codec.entry import Draft
from penstock.codec.layout import (
    CONTENT_TYPE_TAG,
    DATA,
    EVENT_OF_ONE_FORMAT,
    FIRST_EVENT,
    MAX_ATTEMPTS_TAG,
    TOMBSTONE,
)
from penstock.errors import InvalidInput
from penstock.model import NO_HEADERS, Message
from tests.codec.bodies import Body, each_body

IDENTITY = 0xCAFE


def run_of(body: Body, *items: bytes | Draft) -> bytes:
    packer = body.Packer(bytearray(4096), position=0, limit=4096, next_seq=5)
    packer.append_batch(items, 1_000_000)
    taken: bytes = packer.take()
    return taken


def read(body: Body, data: bytes | bytearray, **options: Any) -> tuple[list[Message], int]:
    options = {"max_count": 99, "identity": IDENTITY} | options
    found: tuple[list[Message], int] = body.read_messages(data, 0, len(data), **options)
    return found


@each_body
def test_messages_are_read_as_they_were_published(body: Body) -> None:
    data = run_of(body, b"one", Draft(b"two", headers={"a": "b"}))
    messages, after = read(body, data, seq_base=100)
    first, second = body.make_ids(1_000_000, IDENTITY, 105, 2)
    assert messages == [
        Message(first, 105, b"one", 5, 1_000_000, 0, 0, None, NO_HEADERS, None, 0),
        Message(second, 106, b"two", 5, 1_000_000, 0, 0, None, {"a": "b"}, None, 0),
    ]
    assert after == len(data)
    assert all(type(message) is Message for message in messages)
    assert len(read(body, data, max_count=1)[0]) == 1
    assert read(body, data + bytes(50))[1] == len(data)


@each_body
@pytest.mark.parametrize(
    ("draft", "stops_skip"),
    [
        (Draft(b"x", key=b"\xff"), True),
        (Draft(b"x", attributes={1: b"a"}), True),
        (Draft(bytes(8), type=TOMBSTONE), True),
        (Draft(b"x", type=FIRST_EVENT), True),
        (Draft(b"x", compression=1), False),
    ],
    ids=str,
)
def test_the_short_way_ends_before_what_needs_a_look(
    body: Body, draft: Draft, stops_skip: bool
) -> None:
    data = run_of(body, b"plain", draft, b"plain")
    messages, after = read(body, data)
    assert [message.seq for message in messages] == [5]
    assert body.unpack(data, after, len(data)).seq == 6
    skipped = body.skip_plain(data, 0, len(data), end_seq=99)
    assert skipped == ((5, 6, after) if stops_skip else (5, 8, len(data)))


@each_body
@pytest.mark.parametrize(
    ("draft", "options"),
    [
        (Draft(b"x", priority=9), {"priority": 9}),
        (Draft(b"x", deliver_at_ns=5), {"deliver_at_ns": 5}),
        (Draft(b"x", key="größe".encode()), {"key": "größe"}),
        (Draft(b"x", key=b"k", priority=0), {"key": "k", "priority": 0}),
    ],
    ids=str,
)
def test_options_that_affect_the_order_are_read_and_end_a_plain_run(
    body: Body, draft: Draft, options: dict[str, Any]
) -> None:
    data = run_of(body, b"plain", draft, b"plain")
    messages, after = read(body, data)
    assert after == len(data)
    plain = messages[0]._replace(id=messages[1].id, seq=6, payload=b"x")
    assert messages[1] == plain._replace(**options)
    assert [message.seq for message in messages] == [5, 6, 7]
    assert body.skip_plain(data, 0, len(data), end_seq=99)[:2] == (5, 6)


@each_body
def test_only_wanted_messages_are_read(body: Body) -> None:
    other = Draft(b"x", compression=1)  # cannot be read this way, and need not be
    data = run_of(body, b"5", other, b"7", b"8", other, b"10")
    of_one = read(body, data, max_count=1)[1]

    def seqs(*wanted: int, **options: Any) -> tuple[list[int], int]:
        messages, after = read(body, data, wanted=wanted, **options)
        return [message.seq for message in messages], after

    assert seqs(5) == ([5], of_one)
    assert seqs(7, 10) == ([7, 10], len(data))
    assert seqs(1, 5, 8, 99)[0] == [5, 8]
    assert seqs(5, 7, 8, max_count=2)[0] == [5, 7]
    assert seqs(5, 6, 7)[0] == [5]
    assert seqs(5, 10, max_bytes=1)[0] == [5]
    assert seqs() == ([], 0)


@each_body
def test_the_short_way_ends_before_damage_and_gaps(body: Body) -> None:
    data = bytearray(b"".join(body.pack(seq, 1, Draft(b"x")) for seq in (1, 2, 4)))
    assert body.skip_plain(data, 0, 81, end_seq=99) == (1, 3, 54)
    assert body.skip_plain(data, 0, 81, end_seq=2) == (1, 2, 27)
    assert body.skip_plain(data, 54, 81, end_seq=99) == (4, 5, 81)
    assert body.skip_plain(data, 81, 81, end_seq=99) == (0, 0, 81)
    data[40] ^= 1
    assert body.skip_plain(data, 0, 81, end_seq=99) == (1, 2, 27)
    assert [message.seq for message in read(body, data)[0]] == [1]
    data[10] ^= 1
    assert read(body, data) == ([], 0)


@each_body
def test_the_last_seq_that_fits_into_an_id_is_taken(body: Body) -> None:
    last = (1 << 48) - 1
    assert body.make_ids(0, IDENTITY, last, 1) == [body.make_id(0, IDENTITY, last)]
    data = body.pack(last, 1, Draft(b"x")) + body.pack(last + 1, 1, Draft(b"x"))
    assert [message.seq for message in read(body, data)[0]] == [last]


@each_body
def test_stamps_are_the_times_that_were_stored(body: Body) -> None:
    buffer = bytearray(4096)
    packer = body.Packer(buffer, position=0, limit=400, next_seq=1, last_timestamp_ns=50)
    assert packer.append_batch_stamped([b"a"], 10) == (1, 50)
    assert packer.append_batch_stamped([Draft(b"b", key=b"k")], 60) == (2, 60)
    assert packer.append_batch_stamped([b"c", b"d"], 55) == (3, 60)
    assert packer.append_event(FIRST_EVENT, b"e", 61) == 5
    assert packer.append_event_of_one(FIRST_EVENT, 2, 3, 4, 60) == 6
    assert packer.append_identified(b"f", 60, IDENTITY) == body.make_id(61, IDENTITY, 7)
    packer.limit = 0
    for items in ([b"c"], [Draft(b"b")], [b"c", b"d"]):
        assert packer.append_batch_stamped(items, 60) is None
    assert packer.append_event(FIRST_EVENT, b"e", 61) == -1
    assert packer.append_event_of_one(FIRST_EVENT, 2, 3, 4, 60) == -1
    assert packer.append_identified(b"f", 60, IDENTITY) is None
    entries, _ = body.read_entries(buffer, 0, 4096, max_count=9)
    assert [e.timestamp_ns for e in entries] == [50, 60, 60, 60, 61, 61, 61]
    assert [e.type for e in entries[4:]] == [FIRST_EVENT, FIRST_EVENT, DATA]
    assert entries[5].payload == struct.pack(EVENT_OF_ONE_FORMAT, 2, 3, 1, 4, 1)
    packer = body.Packer(buffer, position=0, limit=300, next_seq=1 << 48)
    with pytest.raises(InvalidInput, match="does not fit into an id"):
        packer.append_identified(b"f", 60, IDENTITY)
    assert packer.position == 0


@each_body
def test_options_that_do_not_affect_the_order_go_the_short_way_and_no_others(body: Body) -> None:
    kind = {CONTENT_TYPE_TAG: "text/größe".encode()}
    tries = {MAX_ATTEMPTS_TAG: b"\x01\x02\x00\x00"}
    drafts = [
        Draft(b"a", attributes=kind),
        Draft(b"b"),
        Draft(b"c", attributes=tries),
        Draft(b"d", attributes={**tries, **kind}),
        Draft(b"e", expires_at_ns=7),
    ]
    data = b"".join(body.pack(seq, 1, draft) for seq, draft in enumerate(drafts, 1))
    messages, end = read(body, data)
    assert [(m.seq, m.content_type, m.max_attempts, m.expires_at_ns) for m in messages] == [
        (1, "text/größe", 0, 0),
        (2, None, 0, 0),
        (3, None, 513, 0),
        (4, "text/größe", 513, 0),
        (5, None, 0, 7),
    ]
    assert body.skip_plain(data, 0, end, end_seq=99) == (1, 6, end)
    for attributes in (
        {CONTENT_TYPE_TAG: b"\xff"},
        {**kind, 1: b""},
        {MAX_ATTEMPTS_TAG: b"12345"},
        {5: b"a"},
    ):
        data = body.pack(1, 1, Draft(b"x", attributes=attributes))
        assert read(body, data) == ([], 0)
        assert body.skip_plain(data, 0, len(data), end_seq=99) == (0, 0, 0)
