"""Failed messages are tried again: later each time, capped, with a jitter that can be repeated."""

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.queue import Queue
from penstock.queue.retry import Backoff, FailedAttempt
from penstock.queue.settings import QueueSettings
from tests.harness.queue_store import QueueStore


def delay_after(settings: QueueSettings, failures: int, *, seq: int = 1) -> float:
    failed = FailedAttempt(seq, "main", failures, 99, "", timed_out=False)
    return Backoff(settings, identity=1).delay_s(failed)


def test_the_backoff_doubles_from_a_second_up_to_ten_minutes() -> None:
    plain = QueueSettings(backoff_jitter=0)
    delays = [delay_after(plain, failures) for failures in range(1, 13)]
    assert delays[:5] == [1, 2, 4, 8, 16]
    assert delays[-3:] == [512, 600, 600]
    assert delay_after(plain, 60_000) == 600


def test_default_attempts_outlive_an_outage_of_an_hour_and_a_half() -> None:
    default = QueueSettings()
    for seq in range(1, 100):
        waits = [delay_after(default, n, seq=seq) for n in range(1, default.max_attempts)]
        assert 5400 < sum(waits) < 7200


def test_jitter_is_at_most_a_tenth_either_way_and_spread() -> None:
    default = QueueSettings()
    delays = [delay_after(default, 1, seq=seq) for seq in range(1, 500)]
    assert 0.9 <= min(delays) < 0.92
    assert 1.08 < max(delays) <= 1.1
    assert len(set(delays)) > 490


def test_jitter_is_the_same_whenever_it_is_asked_for() -> None:
    default = QueueSettings()
    assert delay_after(default, 3, seq=7) == delay_after(default, 3, seq=7)
    assert delay_after(default, 3, seq=7) != delay_after(default, 3, seq=8)


def test_base_factor_and_cap_are_settings() -> None:
    own = QueueSettings(
        backoff_base_s=1, backoff_factor=3, backoff_max_s=20, backoff_jitter=0, max_attempts=9
    )
    assert [delay_after(own, failures) for failures in (1, 2, 3, 4)] == [1, 3, 9, 20]


def test_a_nacked_message_waits_out_its_backoff(queue: Queue, clock: ManualClock) -> None:
    id_ = queue.enqueue(b"a")
    queue.nack(queue.lease(), "it failed")
    due_ns = queue.history(id_)[-1].retry_at_ns
    assert 0.09e9 <= due_ns - clock.now_ns() <= 0.11e9
    clock.advance(0.0899)
    assert queue.lease() == []
    clock.advance(0.0202)
    assert queue.lease()[0].attempt == 2


def test_a_nack_may_bring_its_own_delay(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"a")
    queue.nack(queue.lease(), delay=3600)
    clock.advance(3599)
    assert queue.lease() == []
    clock.advance(1)
    (leased,) = queue.lease()
    queue.nack(leased, delay=0)
    assert queue.lease()[0].attempt == 3


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e308, "1", True])
def test_a_delay_that_is_none_is_refused_and_nothing_happens(queue: Queue, delay: float) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease()
    with pytest.raises(InvalidInput):
        queue.nack(leased, delay=delay)
    assert queue.stats().leased == 1


def test_a_backing_off_message_blocks_no_other(queue: Queue) -> None:
    queue.enqueue_batch([b"fails", b"next"])
    queue.nack(queue.lease(), delay=60)
    assert queue.lease()[0].payload == b"next"


def test_attempts_end_with_the_queues_limit_or_the_messages_own() -> None:
    store = QueueStore({"max_attempts": 2})
    store.queue.enqueue(b"queue's")
    store.queue.enqueue(b"own", max_attempts=4)
    deliveries = []
    while leased := store.queue.lease(9):
        deliveries += [one.payload for one in leased]
        store.queue.nack(leased, delay=0)
    assert (deliveries.count(b"queue's"), deliveries.count(b"own")) == (2, 4)


def test_a_raised_limit_counts_for_messages_that_wait(store: QueueStore) -> None:
    store.open(max_attempts=1)
    store.queue.enqueue(b"a")
    (leased,) = store.queue.lease()
    store.reopen(max_attempts=2).nack(leased.receipt, delay=0)
    assert store.queue.lease()[0].attempt == 2


def test_timeouts_spend_attempts_as_nacks_do(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"a", max_attempts=2)
    queue.lease(lease_s=1)
    clock.advance(1)
    queue.stats()
    clock.advance(1)
    queue.nack(queue.lease(), "the second")
    (letter,) = queue.dead()
    assert (letter.attempts, letter.cause, letter.reason) == (2, "nack", "the second")


def test_the_backoff_is_the_same_after_a_restart(store: QueueStore) -> None:
    store.queue.enqueue(b"a")
    store.queue.nack(store.queue.lease())
    before = store.queue.why(store.queue.get(next(store.queue.browse()).id).id)
    store.kill()
    after = store.queue.why(before.id)
    assert before == after
