"""Another time for entries that are there: nothing else changes, and no damage is hidden."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.entry import Draft
from penstock.codec.layout import MAX_TIMESTAMP_NS
from penstock.errors import BadEntry, InvalidInput
from tests.codec.bodies import Body, compiled, each_body, needs_compiled, outcome
from tests.codec.damage import damaged, random_run
from tests.codec.drafts import drafts


@each_body
@given(st.lists(drafts, min_size=1, max_size=4), st.integers(0, MAX_TIMESTAMP_NS))
def test_only_the_time_is_another(body: Body, made: list[Draft], timestamp_ns: int) -> None:
    data = bytearray(b"".join(body.pack(n, 9, draft) for n, draft in enumerate(made)))
    wanted = b"".join(body.pack(n, timestamp_ns, draft) for n, draft in enumerate(made))
    body.restamp(data, 0, len(data), timestamp_ns)
    assert data == wanted


@each_body
def test_what_is_outside_of_the_range_is_left(body: Body) -> None:
    one = body.pack(1, 9, Draft(b"one"))
    data = bytearray(one * 3)
    body.restamp(data, len(one), 2 * len(one), 10)
    assert data == one + body.pack(1, 10, Draft(b"one")) + one


@each_body
def test_a_frame_is_still_whole(body: Body) -> None:
    held = bytearray(500)
    packer = body.Packer(held, position=0, limit=500, next_seq=0)
    packer.append_batch([b"a", b"bc", b""], 9)
    end = packer.position
    packer.release()
    body.restamp(held, 0, end, 12)
    found = body.skim(held, 0, end)
    assert (found.problem, found.entries, found.last_timestamp_ns) == (None, 3, 12)


@each_body
def test_damage_is_not_given_a_right_checksum(body: Body) -> None:
    one = body.pack(1, 9, Draft(b"one"))
    for at in range(len(one)):
        data = bytearray(one + one)
        data[len(one) + at] ^= 1
        before = data[len(one) :]
        with pytest.raises(BadEntry):
            body.restamp(data, 0, len(data), 10)
        assert data[len(one) :] == before


@each_body
@pytest.mark.parametrize("behind", [b"\0" * 8, b"\0", b"\x16\0\0\0", b"\1"])
def test_what_is_no_entry_is_refused(body: Body, behind: bytes) -> None:
    data = bytearray(body.pack(1, 9, Draft(b"one")) + behind)
    with pytest.raises(BadEntry):
        body.restamp(data, 0, len(data), 10)


@each_body
def test_limits_hold(body: Body) -> None:
    data = bytearray(body.pack(1, 9, Draft(b"one")))
    for bad in (-1, MAX_TIMESTAMP_NS + 1):
        with pytest.raises(InvalidInput):
            body.restamp(data, 0, len(data), bad)
    for start, end in ((0, len(data) + 1), (-1, 3), (5, 4)):
        with pytest.raises(ValueError, match="not inside"):
            body.restamp(data, start, end, 10)
    with pytest.raises(BadEntry, match="limit"):
        body.restamp(data, 0, len(data), 10, max_entry_bytes=len(data) - 1)
    with pytest.raises(BufferError):
        body.restamp(bytes(data), 0, len(data), 10)
    assert data == body.pack(1, 9, Draft(b"one"))
    body.restamp(data, 4, 4, 10)


@needs_compiled
@given(st.integers(0, 1 << 32), st.sampled_from([0, 7, MAX_TIMESTAMP_NS]), st.integers(0, 400))
def test_both_bodies_do_the_same_with_damage(seed: int, timestamp_ns: int, limit: int) -> None:
    from penstock.codec import codec_py

    source = random.Random(seed)
    data = random_run(source, 3)
    data = damaged(source, data) if seed % 3 else data
    found: list[Any] = []
    bodies: list[Body] = [codec_py, compiled]
    for body in bodies:
        held = bytearray(data)
        answer = outcome(body.restamp, held, 0, len(held), timestamp_ns, max_entry_bytes=limit)
        found.append((answer, held))
    assert found[0] == found[1]
