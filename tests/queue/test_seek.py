"""Seeking: deliver from there on, forward and again."""

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NoSuchMessage
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore


@pytest.fixture
def ids(queue: Queue, clock: ManualClock) -> list[str]:
    """Ten messages, ten seconds apart."""
    ids = []
    for number in range(10):
        ids.append(queue.enqueue(b"%d" % number))
        clock.advance(10)
    return ids


def rest(queue: Queue, group: str = "main") -> bytes:
    return b"".join(message.payload for message in queue.dequeue_batch(99, group=group))


def test_seeking_back_delivers_again(queue: Queue, ids: list[str]) -> None:
    rest(queue)
    assert queue.seek(seq=6) == 6
    assert rest(queue) == b"56789"
    queue.seek(id=ids[2])
    assert rest(queue) == b"23456789"
    queue.seek("beginning")
    assert rest(queue) == b"0123456789"
    queue.seek(time=queue.get(ids[7]).published_at)
    assert rest(queue) == b"789"


def test_seeking_forward_skips(queue: Queue, ids: list[str]) -> None:
    queue.seek(id=ids[8])
    assert rest(queue) == b"89"
    queue.seek("end")
    assert rest(queue) == b""
    queue.enqueue(b"new")
    assert rest(queue) == b"new"


def test_the_place_found_by_time_is_the_first_at_or_after_it(queue: Queue, ids: list[str]) -> None:
    assert queue.seek(time=0) == 1
    assert queue.seek(time=queue.get(ids[3]).published_at + 0.001) == 5
    assert queue.seek(time=5e9) == 11


def test_leases_end_and_attempts_begin_anew(queue: Queue, ids: list[str]) -> None:
    queue.nack(queue.lease(), delay=0)
    queue.lease(3)
    queue.seek("beginning")
    assert queue.stats().leased == 0
    assert [one.attempt for one in queue.lease(10)] == [1] * 10


def test_the_dead_before_the_place_stay_dead_and_those_behind_it_live_again(queue: Queue) -> None:
    for name in (b"a", b"b"):
        queue.enqueue(name, max_attempts=1)
    queue.nack(queue.lease(2))
    queue.seek(seq=2)
    assert [letter.payload for letter in queue.dead()] == [b"a"]
    assert rest(queue) == b"b"


def test_delays_priorities_and_keys_count_at_a_replay_too(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"2", key="k")
    queue.enqueue(b"3", key="k")
    queue.enqueue(b"1", priority=9)
    queue.enqueue(b"later", delay=100)
    for _ in range(2):
        queue.seek("beginning")
        assert rest(queue) == b"12"
        assert rest(queue) == b"3"
        assert queue.stats().scheduled == 1


def test_a_seek_moves_one_group_only(queue: Queue, ids: list[str]) -> None:
    queue.groups.create("audit")
    queue.seek(seq=9)
    assert rest(queue) == b"89"
    assert rest(queue, "audit") == b"0123456789"


def test_the_place_survives_a_restart(store: QueueStore, ids: list[str]) -> None:
    rest(store.queue)
    store.queue.seek(seq=4)
    assert rest(store.kill()) == b"3456789"
    assert rest(store.kill()) == b""


def test_a_replay_reaches_only_what_compaction_left() -> None:
    store = QueueStore({"segment_bytes": 512})
    for number in range(100):
        store.queue.enqueue(b"%d" % number)
    store.queue.dequeue_batch(90)
    store.queue.compact()
    assert store.queue.seek("beginning") == store.queue.stats().first_seq > 1
    found = store.queue.dequeue_batch(100)
    assert found[-1].payload == b"99"
    assert len(found) >= 10
    assert store.queue.seek(seq=1) == store.queue.stats().first_seq


@pytest.mark.parametrize(
    "place",
    [{}, {"seq": 0}, {"seq": 12}, {"seq": True}, {"time": -1}, {"time": 1e300}, {"to": "there"}],
)
def test_a_place_that_is_none_is_refused_and_nothing_moves(
    queue: Queue, ids: list[str], place: dict[str, object]
) -> None:
    with pytest.raises(InvalidInput):
        queue.seek(**place)  # type: ignore[arg-type]
    assert rest(queue) == b"0123456789"


def test_an_id_of_another_queue_is_refused(queue: Queue, ids: list[str]) -> None:
    other = QueueStore().queue
    with pytest.raises(NoSuchMessage):
        queue.seek(id=other.enqueue(b""))
