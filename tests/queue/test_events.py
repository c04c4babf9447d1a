"""One table gives the layout of event bodies: all readers and writers of them agree with it."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.layout import EVENT_OF_ONE_BYTES
from penstock.errors import BadEntry
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
    format_of_one,
    offsets_in_one,
)
from tests.codec.bodies import Body, each_body

U16, U64 = st.integers(0, 0xFFFF), st.integers(0, (1 << 63) - 1)
SEQ = st.integers(1, (1 << 63) - 1)
RUNS = st.lists(st.tuples(SEQ, st.integers(1, 0xFFFFFFFF)), max_size=4).map(tuple)
NUMBERS = {"Q": U64, "I": st.integers(0, 0xFFFFFFFF), "B": st.integers(0, 255)}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
KINDS = st.sampled_from(EventType)
IS_TEXT = (TEXT, LONG_TEXT)


@st.composite
def events(draw: st.DrawFn) -> Event:
    kind = draw(KINDS)
    names = [
        *EXTRA_FIELDS.get(kind, ()),
        *([OPTIONAL_FIELD[kind]] if kind in OPTIONAL_FIELD else []),
    ]
    fields: dict[str, Any] = {
        name: draw(TEXTS if FIELD_FORMATS[name] in IS_TEXT else NUMBERS[FIELD_FORMATS[name]])
        for name in names
    }
    return Event(kind, 7, 9, draw(U16), draw(U16), draw(RUNS), **fields)


@given(events())
def test_an_event_is_decoded_as_it_was_encoded(event: Event) -> None:
    assert decode(event.type, encode(event), timestamp_ns=7, event_seq=9) == event


@given(events(), st.integers(0, 17))
def test_a_body_that_is_cut_off_in_its_head_is_refused(event: Event, size: int) -> None:
    body = encode(event._replace(runs=((1, 1),)))[:size]
    with pytest.raises(BadEntry):
        decode(event.type, body, timestamp_ns=7, event_seq=9)


@each_body
@given(kind=KINDS, group=U16, attempt=U16, seq=SEQ)
def test_the_packer_writes_what_encode_writes(
    body: Body, kind: EventType, group: int, attempt: int, seq: int
) -> None:
    packer = body.Packer(bytearray(200), position=0, limit=200, next_seq=1)
    packer.append_event_of_one(int(kind), group, attempt, seq, 1)
    ((entry,), _) = body.read_entries(packer.take(), 0, 44, max_count=1)
    plain = Event(kind, group=group, attempt=attempt, runs=((seq, 1),))
    assert entry.payload == encode(plain)[:EVENT_OF_ONE_BYTES]
    if kind not in EXTRA_FIELDS:
        assert entry.payload == encode(plain)


@given(events(), SEQ)
def test_the_format_of_one_is_that_of_a_body_with_empty_texts(event: Event, seq: int) -> None:
    texts: dict[str, Any] = {name: "" for name, code in FIELD_FORMATS.items() if code in IS_TEXT}
    event = event._replace(runs=((seq, 1),), target_seq=0, **texts)
    names = EXTRA_FIELDS.get(event.type, ())
    values = [0 if FIELD_FORMATS[name] in IS_TEXT else getattr(event, name) for name in names]
    packed = struct.pack(format_of_one(event.type), event.group, event.attempt, 1, seq, 1, *values)
    assert packed == encode(event)


@given(events(), SEQ)
def test_fields_are_at_their_offsets(event: Event, seq: int) -> None:
    event = event._replace(runs=((seq, 1),))
    body = encode(event)
    for name in EXTRA_FIELDS.get(event.type, ()):
        start = offsets_in_one(name)[event.type]
        if FIELD_FORMATS[name] in IS_TEXT:
            assert body[start:].decode() == getattr(event, name)
        else:
            assert struct.unpack_from("<" + FIELD_FORMATS[name], body, start)[0] == getattr(
                event, name
            )


def test_no_text_is_followed_by_another_field() -> None:
    for names in EXTRA_FIELDS.values():
        assert all(FIELD_FORMATS[name] not in IS_TEXT for name in names[:-1])


def test_a_long_text_is_not_cut() -> None:
    event = Event(EventType.SCHEDULE_PUT, 7, 9, definition="x" * 100_000)
    assert decode(event.type, encode(event), timestamp_ns=7, event_seq=9) == event
