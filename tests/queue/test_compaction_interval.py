"""Compaction at an interval, by a clock that moves only when told to."""

from threading import Condition, Event

from penstock.clock import ManualClock
from penstock.queue.compaction import BackgroundCompaction
from tests.harness.queue_store import QueueStore


class JumpingClock(ManualClock):
    """A clock that jumps to the end of each wait, for so many waits; then it waits for real."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self._left = waits
        self.at_rest = Event()

    def wait(self, condition: Condition, timeout_s: float | None) -> None:
        if self._left and timeout_s is not None:
            self._left -= 1
            self.advance(timeout_s)
        else:
            self.at_rest.set()
            condition.wait()


def test_a_compaction_runs_each_time_the_interval_is_over() -> None:
    clock = JumpingClock(waits=3)
    ran: list[float] = []
    background = BackgroundCompaction(
        lambda: ran.append(clock.monotonic_ns() / 1e9), "test", clock=clock, interval_s=60
    )
    assert clock.at_rest.wait(60)
    assert ran == [60, 120, 180]
    background.ask()
    background.end()
    assert ran in ([60, 120, 180], [60, 120, 180, 180])


def test_an_idle_queue_gives_its_space_back_at_the_interval() -> None:
    store = QueueStore({"compact_interval_s": 60, "segment_age_s": 10, "segment_entries": 10})
    store.queue.enqueue_batch([b"x"] * 10)
    store.queue.enqueue_batch([b"x"] * 3)
    store.queue.dequeue_batch(13)
    before = store.queue.stats()
    assert before.first_seq == 1
    background = store.queue.core.background_compaction
    assert background is not None
    compact, done = background.compact, Event()

    def compact_and_tell() -> None:
        compact()
        done.set()

    background.compact = compact_and_tell
    store.clock.advance(60)
    assert done.wait(60)
    assert store.queue.stats().first_seq == 14
    store.close()


def test_without_an_interval_nothing_compacts_by_itself() -> None:
    store = QueueStore({})
    assert store.queue.core.background_compaction is None
    store.close()


def test_a_reader_compacts_nothing() -> None:
    store = QueueStore({"compact_interval_s": 60})
    store.queue.enqueue(b"x")
    store.close()
    with store.look() as queue:
        assert queue.core.background_compaction is None
