"""Messages of one key: one in flight at a time, in the order of their publishing."""

from collections import deque

import pytest

from penstock.clock import ManualClock
from penstock.model import LeasedMessage
from penstock.queue import Queue
from penstock.queue.snapshot import dump_state, load_state
from penstock.queue.state import QueueState
from tests.harness.queue_store import QueueStore


def publish(queue: Queue, *names: str, key: str = "k", **options: object) -> list[str]:
    return [queue.enqueue(name, key=key, **options) for name in names]  # type: ignore[arg-type]


def leased(queue: Queue, count: int = 9) -> list[bytes]:
    return [one.payload for one in queue.lease(count)]


def test_one_of_a_key_is_in_flight_at_a_time_and_in_order(queue: Queue) -> None:
    publish(queue, "a1", "a2", "a3", key="a")
    publish(queue, "b1", key="b")
    queue.enqueue(b"no key")
    first = queue.lease(9)
    assert [one.payload for one in first] == [b"a1", b"b1", b"no key"]
    assert leased(queue) == []
    assert queue.stats().parked == 2
    queue.ack(first[0])
    assert leased(queue) == [b"a2"]


def test_a_dequeue_takes_one_of_each_key_at_a_time(queue: Queue) -> None:
    publish(queue, "a1", "a2", key="a")
    publish(queue, "b1", "b2", key="b")
    assert [m.payload for m in queue.dequeue_batch(9)] == [b"a1", b"b1"]
    assert [m.payload for m in queue.dequeue_batch(9)] == [b"a2", b"b2"]


def test_order_holds_against_priorities(queue: Queue) -> None:
    publish(queue, "low", priority=0)
    publish(queue, "high", priority=9)
    assert leased(queue) == [b"low"]


def test_order_holds_against_delays(queue: Queue, clock: ManualClock) -> None:
    publish(queue, "delayed", delay=10)
    publish(queue, "due")
    assert leased(queue) == []
    clock.advance(10)
    assert leased(queue) == [b"delayed"]


@pytest.mark.parametrize("how", ["nack", "timeout", "release"])
def test_a_failed_message_comes_again_before_the_next_of_its_key(
    queue: Queue, clock: ManualClock, how: str
) -> None:
    publish(queue, "first", "second")
    (one,) = queue.lease(lease_s=10)
    if how == "nack":
        queue.nack(one)
    elif how == "release":
        queue.release(one)
    clock.advance(10)
    queue.stats()
    clock.advance(10)
    assert leased(queue) == [b"first"]


def test_death_cancel_and_expiry_let_the_next_one_go(queue: Queue, clock: ManualClock) -> None:
    publish(queue, "dies", max_attempts=1)
    publish(queue, "expires", ttl=5)
    (cancelled, _) = publish(queue, "cancelled", "last")
    queue.nack(queue.lease())
    clock.advance(5)
    queue.cancel(cancelled)
    assert leased(queue) == [b"last"]


def test_cancelling_a_leased_one_lets_the_next_go(queue: Queue) -> None:
    first, _ = publish(queue, "first", "second")
    queue.lease()
    queue.cancel(first)
    assert leased(queue) == [b"second"]


def test_cancelling_a_parked_one_takes_it_out_of_the_line(queue: Queue) -> None:
    _, second, _ = publish(queue, "first", "second", "third")
    queue.cancel(second)
    queue.ack(queue.lease())
    assert leased(queue) == [b"third"]


def test_a_redriven_message_goes_before_the_later_ones_that_wait(queue: Queue) -> None:
    publish(queue, "first", max_attempts=1)
    publish(queue, "second", "third")
    queue.nack(queue.lease())
    queue.redrive()
    assert leased(queue) == [b"first"]


def test_a_redriven_message_waits_for_the_one_in_flight(queue: Queue) -> None:
    publish(queue, "first", max_attempts=1)
    publish(queue, "second", "third")
    queue.nack(queue.lease())
    (second,) = queue.lease()
    queue.redrive()
    assert leased(queue) == []
    queue.ack(second)
    assert leased(queue) == [b"first"]


@pytest.mark.parametrize("restart", ["reopen", "kill"])
def test_a_message_redriven_before_a_later_one_was_published_keeps_its_lease_over_a_restart(
    store: QueueStore, restart: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At recovery all messages are fed before any event: the order must be the same."""
    publish(store.queue, "first", max_attempts=1)
    store.queue.nack(store.queue.lease())
    store.queue.redrive()
    publish(store.queue, "second")
    (first,) = store.queue.lease()
    assert first.payload == b"first"
    monkeypatch.setattr(store.queue.core, "snapshot", lambda: None)  # fold it all
    store.reopen() if restart == "reopen" else store.kill()
    assert leased(store.queue) == []
    store.queue.ack(first.receipt)
    assert leased(store.queue) == [b"second"]


def test_keys_survive_restarts(store: QueueStore) -> None:
    publish(store.queue, "first", "second", "third")
    (first,) = store.queue.lease()
    for restart in (store.reopen, store.kill):
        queue = restart()
        assert queue.stats().parked == 2
        assert leased(queue) == []
    store.queue.ack(first.receipt)
    assert leased(store.reopen()) == [b"second"]


def test_purging_takes_whole_lines_but_not_what_is_in_flight(queue: Queue) -> None:
    publish(queue, "a1", "a2", "a3", key="a")
    (a1,) = queue.lease()
    publish(queue, "b1", "b2", "b3", key="b")
    publish(queue, "c1", "c2", key="c", delay=60)
    assert queue.purge() == 7
    stats = queue.stats()
    assert (stats.ready, stats.scheduled, stats.parked, stats.leased) == (0, 0, 0, 1)
    queue.ack(a1)
    publish(queue, "b4", key="b")
    assert leased(queue) == [b"b4"]


def test_groups_have_their_own_lines(queue: Queue) -> None:
    queue.groups.create("audit")
    publish(queue, "first", "second")
    queue.lease()
    assert [m.payload for m in queue.dequeue_batch(9, group="audit")] == [b"first"]
    assert [m.payload for m in queue.dequeue_batch(9, group="audit")] == [b"second"]
    assert leased(queue) == []


def test_an_empty_key_is_a_key(queue: Queue) -> None:
    publish(queue, "first", "second", key="")
    assert leased(queue) == [b"first"]
    assert queue.get(queue.enqueue(b"", key="")).key == ""


def test_a_late_ack_counts_even_if_an_earlier_one_was_redriven_since(
    queue: Queue, clock: ManualClock
) -> None:
    publish(queue, "first", max_attempts=1)
    publish(queue, "second")
    queue.nack(queue.lease())
    (second,) = queue.lease(lease_s=1)
    clock.advance(1)
    queue.redrive()
    assert queue.state(second.id) == "parked"
    queue.ack(second)
    assert leased(queue) == [b"first"]
    assert queue.stats().parked == 0


def mixed(queue: Queue) -> list[bytes]:
    """Publish messages with and without keys. Return them in the order of their delivery."""
    names = [f"{number}".encode() for number in range(40)]
    for number, name in enumerate(names):
        queue.enqueue(name, key=None if number % 4 == 0 else f"key {number}")
    return names


def test_keyed_messages_are_delivered_among_others_after_reopening() -> None:
    store = QueueStore()
    names = mixed(store.queue)
    publish(store.queue, "first of k", "second of k")
    store.reopen()
    assert leased(store.queue, 99) == [*names, b"first of k"]
    assert store.queue.stats().parked == 1
    store.close()


def test_a_snapshot_in_which_ready_messages_of_keys_have_due_times_is_read(queue: Queue) -> None:
    """As version 0.1 wrote them."""
    names = mixed(queue)
    state = queue.core.state
    waiting = state.groups[0].waiting
    for seq, delivery in state.groups[0].deliveries.items():
        assert waiting.take_delivery(seq, delivery)
        waiting.schedule(seq, delivery, queue.core.published_ns(seq))
    loaded = QueueState(dedup_entries=0)
    load_state(loaded, dump_state(state))
    queue.core.state, queue.core.main = loaded, loaded.groups[0]
    assert leased(queue, 99) == names


def test_a_purge_removes_ready_messages_of_keys_and_frees_their_keys(queue: Queue) -> None:
    mixed(queue)
    publish(queue, "a", "b", "c")
    assert queue.purge() == 43
    publish(queue, "d")
    assert leased(queue) == [b"d"]
    assert (queue.stats().parked, queue.stats().ready) == (0, 0)


def test_messages_of_keys_are_delivered_while_others_of_their_keys_are_leased(queue: Queue) -> None:
    """The order is that of the seqs, but for messages whose key is leased."""
    for number in range(600):
        queue.enqueue(b"x", key=f"{number * number % 7}")
    held = deque[LeasedMessage]()
    unsettled = list(range(1, 601))
    while unsettled:
        busy = {one.message.key for one in held}
        first_of = {(number - 1) ** 2 % 7: number for number in reversed(unsettled)}
        expected = min((n for key, n in first_of.items() if str(key) not in busy), default=None)
        one = queue.lease()
        assert [each.seq for each in one] == ([] if expected is None else [expected])
        held += one
        if len(held) == 3 or not one:
            queue.ack(held[0])
            unsettled.remove(held.popleft().seq)
    assert not held


def test_the_oldest_dropped_by_a_full_queue_may_have_keys() -> None:
    store = QueueStore({"max_messages": 3, "when_full": "drop_oldest"})
    publish(store.queue, "a", "b", key="k")
    publish(store.queue, "c", "d", "e", key="other")
    assert store.queue.stats().ready + store.queue.stats().parked == 3
    assert leased(store.queue) == [b"c"]
    store.close()


# -- expired messages ------------------------------------------------------------------------------


def expiring(queue: Queue) -> None:
    """Publish a message of low priority that expires after 5 s, one behind it, and another."""
    publish(queue, "expires", ttl=5, priority=0)
    publish(queue, "next", priority=9)
    queue.enqueue(b"other", priority=9)


@pytest.mark.parametrize("how", ["lease", "lease two", "dequeue", "group"])
def test_a_message_frees_its_key_when_it_expires(
    queue: Queue, clock: ManualClock, how: str
) -> None:
    """It need not be its turn: its priority may be low, and others may come before it."""
    queue.groups.create("audit")
    expiring(queue)
    clock.advance(4.999)
    assert (queue.stats().parked, queue.stats().expired) == (1, 0)
    clock.advance(0.001)
    if how == "dequeue":
        message = queue.dequeue()
        assert message is not None
        found = [message.payload]
    elif how == "group":
        found = [one.payload for one in queue.lease(1, group="audit")]
    else:
        found = leased(queue, 2 if how == "lease two" else 1)
    assert found == [b"next", b"other"][: len(found)]
    assert (queue.stats().parked, queue.stats().expired) == (0, 1)


def test_a_waiting_consumer_looks_again_when_the_first_of_a_key_expires(queue: Queue) -> None:
    publish(queue, "fails", ttl=5)
    publish(queue, "next")
    queue.nack(queue.lease(), delay=60)
    assert queue.core.next_wake_ns() == 5 * 10**9


def test_a_message_that_waits_for_its_retry_frees_its_key_when_it_expires(
    queue: Queue, clock: ManualClock
) -> None:
    publish(queue, "fails", ttl=5)
    publish(queue, "next")
    queue.nack(queue.lease(), delay=60)
    assert leased(queue) == []
    clock.advance(5)
    assert leased(queue) == [b"next"]


@pytest.mark.parametrize("how", ["ack", "nack", "release", "timeout"])
def test_a_leased_message_holds_its_key_until_it_is_settled_even_if_it_expires(
    queue: Queue, clock: ManualClock, how: str
) -> None:
    publish(queue, "worked on", ttl=5)
    publish(queue, "next")
    (one,) = queue.lease(lease_s=20)
    for _ in range(2):
        clock.advance(5)
        assert leased(queue) == []
    match how:
        case "ack":
            queue.ack(one)
        case "nack":
            queue.nack(one, delay=60)
        case "release":
            queue.release(one)
        case "timeout":
            clock.advance(10)
    assert leased(queue) == [b"next"]
    assert queue.stats().expired == (how != "ack")


def test_parked_messages_that_expired_are_removed_as_well(queue: Queue, clock: ManualClock) -> None:
    publish(queue, "first")
    publish(queue, "a", "b", "c", ttl=5)
    publish(queue, "last")
    clock.advance(5)
    stats = queue.stats()
    assert (stats.ready, stats.parked, stats.expired) == (1, 1, 3)
    queue.ack(queue.lease())
    assert leased(queue) == [b"last"]


def test_a_dead_letter_does_not_expire_but_a_redriven_one_does(
    queue: Queue, clock: ManualClock
) -> None:
    publish(queue, "dies", ttl=5, max_attempts=1)
    publish(queue, "next")
    queue.nack(queue.lease())
    clock.advance(5)
    assert (queue.stats().dead, queue.stats().expired) == (1, 0)
    assert queue.redrive() == 1
    assert (queue.stats().dead, queue.stats().expired) == (0, 1)
    assert leased(queue) == [b"next"]


@pytest.mark.parametrize("restart", ["reopen", "kill"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_key_of_an_expired_message_is_free_after_a_restart(
    store: QueueStore, restart: str, when: str
) -> None:
    expiring(store.queue)
    if when == "before":
        store.reopen() if restart == "reopen" else store.kill()
    store.clock.advance(5)
    store.queue.stats()
    if when == "after":
        store.reopen() if restart == "reopen" else store.kill()
    assert leased(store.queue, 1) == [b"next"]
    assert store.queue.stats().expired == 1


def test_a_snapshot_keeps_when_messages_of_keys_expire(queue: Queue) -> None:
    publish(queue, "leased", ttl=5)
    publish(queue, "dead", key="d", ttl=6, max_attempts=1)
    queue.lease(1)
    queue.nack(queue.lease(1))
    publish(queue, "parked", ttl=7)
    publish(queue, "scheduled", key="s", ttl=8, delay=1)
    queue.stats()
    state = queue.core.state
    loaded = QueueState(dedup_entries=0)
    load_state(loaded, dump_state(state))
    assert list(loaded.groups[0].expiries) == list(state.groups[0].expiries)
    assert len(loaded.groups[0].expiries) == 3
    assert loaded.groups[0].deliveries[2].expires_at_ns > 0


def test_a_snapshot_of_an_earlier_version_has_no_such_times_and_is_read(
    queue: Queue, clock: ManualClock
) -> None:
    """Those messages expire when it is their turn, as they did in that version."""
    publish(queue, "expires", ttl=5)
    publish(queue, "next")
    queue.stats()
    blob = dump_state(queue.core.state)
    for name in (b"expiries", b"dependencies"):
        blob = blob.replace(b'"has_' + name + b'":true', b'"had_' + name + b'":true')
    loaded = QueueState(dedup_entries=0)
    load_state(loaded, blob)
    queue.core.state, queue.core.main = loaded, loaded.groups[0]
    clock.advance(5)
    assert leased(queue) == [b"next"]
