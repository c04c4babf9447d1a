"""What one call costs does not depend on how many others wait."""

from collections.abc import Callable

import pytest

from penstock.queue import NewMessage, Queue
from penstock.queue.snapshot import dump_state
from tests.harness.queue_store import QueueStore
from tests.queue.costs import allocated_by, instructions_of

FEW, MANY = 100, 3_000

Call = Callable[[], object]
Prepare = Callable[[QueueStore], Call]


def delayed(count: int, priority: int = 5) -> list[NewMessage]:
    return [NewMessage(payload=b"", delay=10 + n, priority=priority) for n in range(count)]


def cancel_one(store: QueueStore) -> Call:
    ids = [published.id for published in store.queue.publish(delayed(10))]
    return lambda: store.queue.cancel(ids[5])


def cancel_one_that_is_due(store: QueueStore) -> Call:
    cancel = cancel_one(store)
    store.clock.advance(1_000_000)
    store.queue.stats()
    return cancel


def lease_of_the_highest(store: QueueStore) -> Call:
    store.queue.publish(delayed(10, priority=9))
    store.clock.advance(1_000_000)
    store.queue.stats()
    return lambda: store.queue.lease()


def lease_of_a_retried(store: QueueStore) -> Call:
    store.queue.enqueue(b"", priority=9)
    store.queue.nack(store.queue.lease(), delay=0)
    return lambda: store.queue.lease()


def state_of_one(store: QueueStore) -> Call:
    id_ = store.queue.enqueue(b"", delay=5_000)
    return lambda: store.queue.state(id_)


def why_of_one(store: QueueStore) -> Call:
    id_ = store.queue.enqueue(b"", delay=5_000)
    return lambda: store.queue.why(id_)


CALLS = [
    cancel_one,
    cancel_one_that_is_due,
    lease_of_the_highest,
    lease_of_a_retried,
    state_of_one,
    why_of_one,
]


def among(count: int, prepare: Callable[[QueueStore], Callable[[], object]]) -> Call:
    # Without ageing: else the lanes of other priorities have to be looked at too.
    store = QueueStore({"starvation_after_s": 0})
    store.queue.publish(delayed(count, priority=0))
    return prepare(store)


@pytest.mark.parametrize("prepare", CALLS, ids=lambda prepare: prepare.__name__)
def test_a_call_among_many_delayed_messages_costs_as_much_as_among_few(
    prepare: Prepare,
) -> None:
    few = instructions_of(among(FEW, prepare))
    assert instructions_of(among(MANY, prepare)) < 1.5 * few + 200


def test_a_lease_of_one_does_not_copy_all_that_are_due() -> None:
    store = QueueStore()
    store.queue.publish(delayed(20_000))
    store.clock.advance(1_000_000)
    store.queue.lease()
    assert allocated_by(lambda: store.queue.lease()) < 100_000


def test_dropping_the_oldest_of_many_delayed_costs_as_much_as_of_few() -> None:
    def one_more(bound: int) -> int:
        queue = QueueStore({"max_messages": bound, "when_full": "drop_oldest"}).queue
        queue.publish(delayed(bound))
        return instructions_of(lambda: queue.publish(delayed(1)))

    assert one_more(MANY) < 1.5 * one_more(FEW) + 200


def test_dropping_the_oldest_of_many_with_keys_costs_as_much_as_of_few() -> None:
    def one_more(bound: int) -> int:
        queue = QueueStore({"max_messages": bound, "when_full": "drop_oldest"}).queue
        queue.publish([NewMessage(payload=b"", key=f"k{n % 50}") for n in range(bound)])
        queue.enqueue(b"", key="k0")
        return instructions_of(lambda: queue.enqueue(b"", key="k1"))

    assert one_more(MANY) < 1.5 * one_more(FEW) + 200


def test_saving_the_state_costs_as_much_for_one_large_lease_as_for_many_small_ones() -> None:
    def saved(queue: Queue) -> int:
        return instructions_of(lambda: dump_state(queue.core.state))

    together, apart = QueueStore().queue, QueueStore().queue
    for queue in (together, apart):
        queue.enqueue_batch([b""] * 500)
    together.lease(500)
    for _ in range(500):
        apart.lease(1, holder="")
    assert saved(together) < 2 * saved(apart)
