"""Waiting for a message: woken by its arrival or its due time, at once, and only then."""

from collections.abc import Callable
from threading import Thread

import pytest

from penstock.errors import InvalidInput, LedgerClosed, PenstockError
from penstock.queue import Queue
from tests.harness.queue_clock import SteppedClock
from tests.harness.queue_store import QueueStore


class Waiter:
    """A thread that leases with a wait, and what it got."""

    def __init__(self, queue: Queue, clock: SteppedClock, *, wait_s: float = 60) -> None:
        self.got: list[bytes] = []
        self.error: PenstockError | None = None
        self._queue, self._wait_s = queue, wait_s
        waits = clock.waits
        self._thread = Thread(target=self._run)
        self._thread.start()
        clock.until_waiting(waits + 1)

    def _run(self) -> None:
        try:
            leased = self._queue.lease(wait_s=self._wait_s, lease_s=1000)
            self.got = [one.payload for one in leased]
        except PenstockError as error:
            self.error = error

    def result(self) -> list[bytes]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.got

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def store(clock: SteppedClock) -> QueueStore:
    return QueueStore(clock=clock)


ARRIVALS: dict[str, Callable[[Queue], object]] = {
    "a plain message": lambda queue: queue.enqueue(b"x"),
    "one with options": lambda queue: queue.enqueue(b"x", priority=9),
    "a batch": lambda queue: queue.enqueue_batch([b"x", b"y"]),
}


@pytest.mark.parametrize("arrival", ARRIVALS)
def test_an_arrival_wakes_a_waiter(queue: Queue, clock: SteppedClock, arrival: str) -> None:
    waiter = Waiter(queue, clock)
    ARRIVALS[arrival](queue)
    assert waiter.result() == [b"x"]


@pytest.mark.parametrize("what", ["release", "nack", "redrive", "resume", "seek", "ack of a key"])
def test_whatever_makes_a_message_ready_wakes_a_waiter(
    queue: Queue, clock: SteppedClock, what: str
) -> None:
    queue.enqueue(b"x", max_attempts=1 if what == "redrive" else 5, key="k")
    if what == "ack of a key":
        queue.enqueue(b"x", key="k")
    if what == "resume":
        queue.pause()
    else:
        leased = queue.lease()
    if what == "redrive":
        queue.nack(leased)
    waiter = Waiter(queue, clock)
    ways: dict[str, Callable[[], object]] = {
        "release": lambda: queue.release(leased),
        "nack": lambda: queue.nack(leased, delay=0),
        "redrive": queue.redrive,
        "resume": queue.resume,
        "seek": lambda: queue.seek("beginning"),
        "ack of a key": lambda: queue.ack(leased),
    }
    ways[what]()
    assert waiter.result() == [b"x"]


def test_a_due_time_wakes_a_waiter(queue: Queue, clock: SteppedClock) -> None:
    queue.enqueue(b"x", delay=10)
    waiter = Waiter(queue, clock)
    clock.advance(9.999)
    assert waiter.is_waiting
    clock.advance(0.001)
    assert waiter.result() == [b"x"]


def test_the_end_of_a_lease_and_the_backoff_after_it_wake_a_waiter(
    queue: Queue, clock: SteppedClock
) -> None:
    queue.enqueue(b"x")
    queue.lease(lease_s=10)
    waiter = Waiter(queue, clock)
    clock.advance(10)
    clock.until_waiting(2)
    clock.advance(0.2)
    assert waiter.result() == [b"x"]


def test_a_waiter_gives_up_when_its_time_is_over(queue: Queue, clock: SteppedClock) -> None:
    waiter = Waiter(queue, clock, wait_s=5)
    clock.advance(4.999)
    assert waiter.is_waiting
    clock.advance(0.001)
    assert waiter.result() == []


def test_several_waiters_get_one_each(queue: Queue, clock: SteppedClock) -> None:
    waiters = [Waiter(queue, clock) for _ in range(5)]
    queue.enqueue_batch([b"%d" % number for number in range(5)])
    assert sorted(waiter.result()[0] for waiter in waiters) == [b"%d" % n for n in range(5)]


def test_one_message_serves_one_of_several_waiters(queue: Queue, clock: SteppedClock) -> None:
    waiters = [Waiter(queue, clock, wait_s=30) for _ in range(3)]
    queue.enqueue(b"x")
    clock.until_waiting(5)  # two of them wait again
    clock.advance(30)
    assert sorted(waiter.result() for waiter in waiters) == [[], [], [b"x"]]


def test_nothing_is_missed_between_a_look_and_the_wait(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that another thread publishes right after the look must be found at once."""
    core = queue.core
    next_wake_ns = core.next_wake_ns
    published: list[str] = []

    def publish_first() -> int | None:
        if not published:
            thread = Thread(target=lambda: published.append(queue.enqueue(b"just in time")))
            thread.start()
            while not published and core.ledger.messages.next_seq == 1:
                pass
        return next_wake_ns()

    monkeypatch.setattr(core, "next_wake_ns", publish_first)
    assert [one.payload for one in queue.lease(wait_s=1000)] == [b"just in time"]


def test_a_waiter_is_told_when_the_queue_is_closed(store: QueueStore, clock: SteppedClock) -> None:
    waiter = Waiter(store.queue, clock)
    store.close()
    waiter.result()
    assert isinstance(waiter.error, LedgerClosed)


def test_a_blocked_publisher_is_told_when_the_queue_is_closed(clock: SteppedClock) -> None:
    queue = QueueStore({"max_messages": 1, "when_full": "block"}, clock=clock).queue
    queue.enqueue(b"a")
    errors: list[PenstockError] = []

    def publish() -> None:
        try:
            queue.enqueue(b"b")
        except PenstockError as error:
            errors.append(error)

    thread = Thread(target=publish)
    thread.start()
    clock.until_waiting(1)
    queue.close()
    thread.join(60)
    assert isinstance(errors[0], LedgerClosed)


@pytest.mark.parametrize("wait_s", [-1, float("nan"), float("inf"), "1", True, None])
def test_a_wait_that_is_none_is_refused(queue: Queue, wait_s: float) -> None:
    queue.enqueue(b"x")
    for call in (queue.lease, queue.dequeue):
        with pytest.raises(InvalidInput):
            call(wait_s=wait_s)
    assert queue.stats().ready == 1


def test_a_hundred_years_are_a_wait(queue: Queue, clock: SteppedClock) -> None:
    waiter = Waiter(queue, clock, wait_s=100 * 365 * 86400.0)
    queue.enqueue(b"x")
    assert waiter.result() == [b"x"]
