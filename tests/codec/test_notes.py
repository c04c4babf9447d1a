"""Notes: each message with options that was written is noted once, and no other."""

import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import codec_py
from penstock.codec.entry import Draft
from tests.codec.bodies import Body, compiled, each_body, needs_compiled

TAGS = 1 << 1 | 1 << 6


def noting(body: Body, **options: Any) -> tuple[Any, Any]:
    notes = body.Notes(TAGS)
    packer = body.Packer(bytearray(1 << 16), position=0, limit=1 << 16, next_seq=1, **options)
    packer.notes = notes
    return packer, notes


@each_body
def test_messages_with_options_are_noted_and_plain_ones_are_not(body: Body) -> None:
    packer, notes = noting(body)
    packer.append(b"plain", 10)
    packer.append_identified(Draft(b"p", priority=9), 11, 7)
    keyed = Draft(b"k", key=b"key", expires_at_ns=77)
    packer.append_batch([b"plain", keyed, Draft(b"d", deliver_at_ns=99)], 12)
    assert (len(notes), notes.upto) == (3, 6)
    assert notes.take() == (
        6,
        [
            (2, 11, 9, 0, None, None, 0),
            (4, 12, 5, 0, b"key", None, 77),
            (5, 12, 5, 99, None, None, 0),
        ],
    )
    assert (len(notes), notes.take()) == (0, (6, []))


@each_body
def test_only_attributes_that_were_asked_for_are_noted(body: Body) -> None:
    packer, notes = noting(body)
    for tag in (1, 2, 6, 63, 200):
        packer.append_batch([Draft(b"", attributes={tag: b"value"})], 1)
    packer.append_event(16, b"event", 1)
    packer.append_batch([Draft(b"gone", 2, priority=9)], 1)  # a tombstone
    assert [(note[0], note[5]) for note in notes.take()[1]] == [
        (1, {1: b"value"}),
        (3, {6: b"value"}),
    ]


@each_body
def test_what_is_not_written_is_not_noted(body: Body) -> None:
    packer, notes = noting(body)
    packer.limit = 0
    assert packer.append_identified(Draft(b"no room", priority=9), 1, 7) is None
    assert notes.take() == (1, [])
    packer.limit = 100
    packer.append(b"plain", 1)
    assert notes.take() == (2, [])


@each_body
def test_notes_follow_from_one_packer_to_the_next(body: Body) -> None:
    packer, notes = noting(body)
    packer.append_identified(Draft(b"", priority=1), 1, 7)
    following = body.Packer(bytearray(100), position=0, limit=100, next_seq=2)
    following.notes = notes
    following.append_identified(Draft(b"", priority=2), 1, 7)
    upto, noted = notes.take()
    assert (upto, [note[:3] for note in noted]) == (3, [(1, 1, 1), (2, 1, 2)])


@each_body
def test_threads_lose_no_note(body: Body) -> None:
    packer, notes = noting(body)
    taken: list[Any] = []
    go = threading.Barrier(4)

    def publish(priority: int) -> None:
        go.wait()
        for _ in range(100):
            packer.append_identified(Draft(b"", priority=priority), 1, 7)

    def take() -> None:
        go.wait()
        while len(taken) < 300:
            upto, noted = notes.take()
            assert all(note[0] < upto for note in noted)
            taken.extend(noted)

    threads = [threading.Thread(target=publish, args=(n,)) for n in (1, 2, 3)]
    threads.append(threading.Thread(target=take))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [note[0] for note in taken] == list(range(1, 301))


drafts = st.builds(
    Draft,
    st.binary(max_size=8),
    type=st.just(1),
    expires_at_ns=st.just(0),
    headers=st.none(),
    compression=st.just(0),
    priority=st.integers(0, 9),
    deliver_at_ns=st.integers(0, 9),
    key=st.none() | st.binary(max_size=4),
    attributes=st.none() | st.dictionaries(st.integers(0, 255), st.binary(max_size=4), max_size=3),
)


@needs_compiled
@given(st.lists(st.lists(st.binary(max_size=8) | drafts, min_size=1, max_size=4), max_size=8))
def test_both_codecs_note_the_same(calls: list[list[bytes | Draft]]) -> None:
    found = []
    for body in (codec_py, compiled):
        packer, notes = noting(body)
        for number, items in enumerate(calls):
            packer.append_batch(items, number)
        found.append(notes.take())
    assert found[0] == found[1]
