"""A forked child must not touch its parent's queue, and must not hang on it either."""

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from penstock.queue.queue import Queue, open_queue
from tests.harness.queue_store import QUIET
from tests.ledger.forking import in_forked_child

CALLS: dict[str, Callable[[Queue], object]] = {
    "enqueue": lambda queue: queue.enqueue(b"from the child"),
    "enqueue with options": lambda queue: queue.enqueue(b"from the child", priority=9),
    "dequeue": lambda queue: queue.dequeue(),
    "lease": lambda queue: queue.lease(),
    "lease many": lambda queue: queue.lease(5),
    "stats": lambda queue: queue.stats(),
    "peek": lambda queue: queue.peek(),
    "browse": lambda queue: list(queue.browse()),
    "purge": lambda queue: queue.purge(),
}


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    queue = open_queue(str(tmp_path), QUIET)
    queue.enqueue_batch([b"a", b"b"])
    return queue


@pytest.mark.parametrize("call", CALLS)
def test_a_child_is_refused_and_the_parent_is_not_disturbed(queue: Queue, call: str) -> None:
    answer = in_forked_child(lambda: CALLS[call](queue))
    assert answer.startswith("LedgerForked")
    assert [m.payload for m in queue.dequeue_batch(9)] == [b"a", b"b"]


@pytest.mark.parametrize("call", CALLS)
def test_a_child_does_not_hang_where_a_thread_of_the_parent_was_at_work(
    queue: Queue, call: str
) -> None:
    held, done = Event(), Event()

    def work() -> None:
        with queue.core.lock:
            held.set()
            done.wait(60)

    thread = Thread(target=work)
    thread.start()
    held.wait(60)
    try:
        assert in_forked_child(lambda: CALLS[call](queue)).startswith("LedgerForked")
    finally:
        done.set()
        thread.join()


def test_a_child_that_closes_its_copy_leaves_the_parents_open(queue: Queue) -> None:
    assert in_forked_child(queue.close) == "None"
    queue.enqueue(b"c")
    assert queue.stats().ready == 3


def test_a_child_may_open_the_queue_for_reading(queue: Queue) -> None:
    def look() -> int:
        with open_queue(queue.path, {}, read_only=True) as reader:
            return reader.stats().ready

    assert in_forked_child(look) == "2"
