"""The short ways write what the general ways write, and leave the same state behind."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from penstock.clock import ManualClock
from penstock.errors import ReceiptInvalid
from penstock.ledger import Cursor
from penstock.queue import Queue
from penstock.queue.delivering import Nonces
from penstock.queue.snapshot import dump_state
from tests.harness.queue_store import QueueStore


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Queue, Queue]]:
    """Two queues with the same past, and with the same nonces to come."""
    monkeypatch.setattr(Nonces, "next", lambda self: 4711)
    stores = QueueStore(clock=ManualClock()), QueueStore(clock=ManualClock())
    for store in stores:
        store.queue.enqueue_batch([b"a", b"b", b"c"])
        store.queue.enqueue(b"d", headers={"name": "value"})
    yield stores[0].queue, stores[1].queue
    for store in stores:
        store.close()


def written(queue: Queue) -> list[tuple[int, int, bytes]]:
    entries = Cursor(queue._core.ledger.events, 1).read(100)
    return [(entry.timestamp_ns, entry.type, entry.payload) for entry in entries]


def state(queue: Queue) -> bytes:
    queue._core.catch_up()
    return dump_state(queue._core.state)


def short_take(queue: Queue) -> None:
    assert queue._parts.short_ways.take() is not None


def general_take(queue: Queue) -> None:
    assert queue._parts.delivering.take(1, "main")


def short_lease(queue: Queue) -> None:
    assert queue._parts.short_ways.lease() is not None


def general_lease(queue: Queue) -> None:
    assert queue._parts.delivering.lease(1, None, "main", "")


def short_lease_and_ack(queue: Queue) -> None:
    (leased,) = queue._parts.delivering.lease(1, None, "main", "")
    assert queue._parts.short_ways.ack(leased)


def general_lease_and_ack(queue: Queue) -> None:
    queue._parts.settling.ack(queue._parts.delivering.lease(1, None, "main", ""))


@pytest.mark.parametrize(
    ("short", "general"),
    [
        (short_take, general_take),
        (short_lease, general_lease),
        (short_lease_and_ack, general_lease_and_ack),
    ],
)
def test_it_writes_the_same_event_and_makes_the_same_change(
    pair: tuple[Queue, Queue], short: Callable[[Queue], None], general: Callable[[Queue], None]
) -> None:
    for _ in range(4):
        short(pair[0])
        general(pair[1])
    assert written(pair[0]) == written(pair[1])
    assert state(pair[0]) == state(pair[1])
    assert pair[0].stats() == pair[1].stats()


def test_it_hands_out_the_same_message(pair: tuple[Queue, Queue]) -> None:
    for _ in range(2):
        taken, (other,) = pair[0]._parts.short_ways.take(), pair[1].dequeue_batch(1)
        assert taken is not None
        assert taken[1:] == other[1:]  # the id has the queue's identity in it
        leased, (held,) = pair[0]._parts.short_ways.lease(), pair[1].lease(1, holder="x")
        assert leased is not None
        assert leased.message[1:] == held.message[1:]
        assert leased.ticket[1:-1] == held.ticket[1:-1]


def test_it_is_not_gone_where_more_than_plain_messages_wait(queue: Queue) -> None:
    queue.enqueue(b"plain")
    queue.enqueue(b"urgent", priority=9)
    assert queue._parts.short_ways.take() is None
    assert queue._parts.short_ways.lease() is None
    first = queue.dequeue()
    assert first is not None
    assert first.payload == b"urgent"


def test_it_is_not_gone_where_a_message_may_have_expired(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"stale", ttl=1)
    queue.enqueue(b"fresh")
    clock.advance(2)
    assert queue._parts.short_ways.take() is None
    (leased,) = queue.lease()
    assert leased.payload == b"fresh"


def test_it_is_not_gone_where_something_has_become_due(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"later", delay=1)
    queue.enqueue(b"a")
    queue.enqueue(b"b")
    assert queue._parts.short_ways.take() is not None
    clock.advance(1)
    assert queue._parts.short_ways.take() is None
    assert [queue.dequeue(), queue.dequeue()] != [None, None]


def test_it_is_not_gone_where_a_lease_ran_out(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_batch([b"a", b"b", b"c"])
    (first,) = queue.lease()
    clock.advance(31)
    assert queue._parts.short_ways.lease() is None
    (second,) = queue.lease()  # by the general way, which puts the timeout on record
    assert second.payload == b"b"
    assert not queue._parts.short_ways.ack(first)  # late, and yet in time
    queue.ack(first)
    clock.advance(1)
    assert [job.payload for job in queue.lease(9)] == [b"c"]


def test_a_paused_queue_gives_nothing(queue: Queue) -> None:
    queue.enqueue(b"a")
    queue.pause()
    assert queue.dequeue() is None
    assert queue.lease() == []


def test_a_receipt_settles_once_by_whichever_way(queue: Queue) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease()
    queue.ack(leased)
    with pytest.raises(ReceiptInvalid):
        queue.ack(leased)


def test_a_write_that_fails_takes_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue_batch([b"a", b"b"])

    def fail(*_: object) -> int:
        raise OSError("no")

    with monkeypatch.context() as patch:
        broken = SimpleNamespace(append_event=fail, append_event_of_one=fail)
        patch.setattr(queue._ledger.events, "hot", broken)
        for call in (queue.dequeue, queue.lease):
            with pytest.raises(OSError, match="no"):
                call()
    taken = [queue.dequeue(), queue.dequeue()]
    assert [message.payload for message in taken if message] == [b"a", b"b"]


def test_ends_of_leases_that_were_acked_do_not_pile_up(queue: Queue) -> None:
    queue.enqueue_batch([b"x"] * 100)
    group = queue._core.state.groups[0]
    for _ in range(100):
        queue.ack(queue.lease()[0])
    assert group._lease_ends == []
    assert group.next_lease_end_ns() is None
