"""Many plain messages at once: what an append of each would write, and nothing outside the room."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.entry import Draft
from penstock.codec.layout import ENTRY_OVERHEAD_BYTES, MAX_SEQ
from penstock.errors import InvalidInput, TooLarge
from tests.codec.bodies import Body, compiled, each_body, needs_compiled, outcome

PAYLOADS = [b"one", b"", b"three" * 30]


def laid_out(payloads: list[bytes], before: bytes = b"") -> tuple[bytes, bytes]:
    """Offsets and data, as Arrow has them."""
    offsets = [len(before)]
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    return struct.pack(f"<{len(offsets)}i", *offsets), before + b"".join(payloads)


def run(body: Body, into: Any, offsets: Any, data: Any, row: int = 0, **options: Any) -> Any:
    return body.pack_payloads(into, offsets, data, row, **{"seq": 5, "timestamp_ns": 9} | options)


@each_body
def test_the_entries_are_those_of_plain_messages(body: Body) -> None:
    into = bytearray(1000)
    offsets, data = laid_out(PAYLOADS, before=b"not ours")
    wanted = b"".join(body.pack(5 + n, 9, Draft(payload)) for n, payload in enumerate(PAYLOADS))
    assert run(body, into, offsets, data) == (3, len(wanted))
    assert into == wanted + bytes(1000 - len(wanted))


@each_body
def test_it_goes_on_where_there_was_no_more_room(body: Body) -> None:
    offsets, data = laid_out(PAYLOADS)
    small = bytearray(2 * ENTRY_OVERHEAD_BYTES + 3 + 20)
    assert run(body, small, offsets, data) == (2, 2 * ENTRY_OVERHEAD_BYTES + 3)
    assert not any(small[-20:])
    rest = bytearray(200)
    assert run(body, rest, offsets, data, 2, seq=7) == (3, ENTRY_OVERHEAD_BYTES + 150)
    assert (
        body.unpack(rest, 0, 200)[:2]
        == body.unpack(body.pack(7, 9, Draft(PAYLOADS[2])), 0, 176)[:2]
    )
    assert run(body, bytearray(10), offsets, data) == (0, 0)
    assert run(body, bytearray(200), offsets, data, 3) == (3, 0)


@each_body
def test_no_payload_is_nothing_to_write(body: Body) -> None:
    for offsets in (b"", b"\0\0", bytes(4)):
        assert run(body, bytearray(100), offsets, b"") == (0, 0)


@each_body
@pytest.mark.parametrize("offsets", [(0, 4), (-1, 2), (3, 2), (0, -1), (0, 1, 0)])
def test_offsets_that_leave_the_data_are_refused(body: Body, offsets: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="not inside the data"):
        run(body, bytearray(100), struct.pack(f"<{len(offsets)}i", *offsets), b"abc")


@each_body
def test_limits_hold(body: Body) -> None:
    offsets, data = laid_out([b"a", b"bc"])
    with pytest.raises(TooLarge):
        run(body, bytearray(100), offsets, data, max_entry_bytes=ENTRY_OVERHEAD_BYTES + 1)
    with pytest.raises(InvalidInput):
        run(body, bytearray(100), offsets, data, seq=MAX_SEQ)
    for bad in (-1, 3):
        with pytest.raises(ValueError, match="no row"):
            run(body, bytearray(100), offsets, data, bad)
    with pytest.raises(BufferError):
        run(body, bytes(100), offsets, data)


@needs_compiled
@given(
    st.lists(st.integers(-2, 60), max_size=8)
    | st.lists(st.integers(0, 50), max_size=8).map(sorted),
    st.binary(min_size=40, max_size=50),
    st.integers(-1, 8),
    st.integers(-1, 300),
    st.sampled_from([0, 7, MAX_SEQ - 2, MAX_SEQ, MAX_SEQ + 1, -1]),
    st.sampled_from([0, 1 << 62, 1 << 63, -1]),
    st.sampled_from([0, 50, 1 << 20, 1 << 40]),
)
def test_both_bodies_write_the_same(
    offsets: list[int],
    data: bytes,
    row: int,
    room: int,
    seq: int,
    timestamp_ns: int,
    max_entry_bytes: int,
) -> None:
    from penstock.codec import codec_py

    places = struct.pack(f"<{len(offsets)}i", *offsets)
    found = []
    for body in (codec_py, compiled):
        into = bytearray(max(room, 0))
        answer = outcome(
            run,
            body,
            into,
            places,
            data,
            row,
            seq=seq,
            timestamp_ns=timestamp_ns,
            max_entry_bytes=max_entry_bytes,
        )
        found.append((answer, into))
    assert found[0] == found[1]
