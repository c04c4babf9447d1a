"""Looking through a read-only handle: time goes on in it, and nothing is written."""

from pathlib import Path

from penstock.clock import ManualClock
from penstock.queue.queue import open_queue


def test_what_is_due_by_now_counts_as_ready(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queue(str(tmp_path), {}, clock=clock) as queue:
        queue.enqueue(b"later", delay=10)
        queue.enqueue(b"keyed", key="k")
    clock.advance(11)
    with open_queue(str(tmp_path), {}, clock=clock, read_only=True) as queue:
        assert (queue.stats().ready, queue.stats().scheduled) == (2, 0)


def test_a_lease_that_ran_out_is_left_to_the_writer(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queue(str(tmp_path), {"max_attempts": 1}, clock=clock) as queue:
        queue.enqueue_batch([b"dead", b"leased"])
        queue.nack(queue.lease(), "no")
        queue.lease(lease_s=5)
    clock.advance(6)
    with open_queue(str(tmp_path), {}, clock=clock, read_only=True) as queue:
        assert [letter.payload for letter in queue.dead()] == [b"dead"]
        assert queue.stats().leased == 1
