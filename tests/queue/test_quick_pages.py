"""A page that is read in one piece is the page that a search finds."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.operations import Browse, Page
from penstock.queue import Queue
from penstock.queue.operation_handlers import browse
from tests.harness.queue_store import QueueStore


def quick(queue: Queue, *, max_bytes: int = 1 << 18, **asked: Any) -> Page | None:
    return queue.behaviours.quick_pages.page(Browse(**asked), max_bytes)


def searched(queue: Queue, **asked: Any) -> Page:
    return browse(queue.behaviours, Browse(**asked))


_STEPS = ["publish", "publish many", "lease", "lease many", "ack", "release", "dequeue", "compact"]
_RARE = ["nack", "delayed", "priority", "key", "ttl", "large", "compressed", "time"]


def _do(store: QueueStore, step: str) -> None:
    queue = store.queue
    leased = queue.behaviours.core.main.leases
    match step:
        case "publish many":
            queue.enqueue_batch([b"x" * size for size in range(7)])
        case "lease":
            queue.lease()
        case "lease many":
            queue.lease(3)
        case "ack" | "nack" | "release" if leased:
            for one in queue.lease(1)[:1]:
                getattr(queue, step)(one)
        case "dequeue":
            queue.dequeue()
        case "compact":
            queue.compact()
        case "delayed":
            queue.enqueue(b"later", delay=30)
        case "priority":
            queue.enqueue(b"first", priority=9)
        case "key":
            queue.enqueue(b"k", key="k")
        case "ttl":
            queue.enqueue(b"t", ttl=20)
        case "large":
            queue.enqueue(bytes(5000))
        case "compressed":
            queue.enqueue(bytes(5000), compression="gzip")
        case "time":
            store.clock.advance(10)
        case _:
            queue.enqueue(b"x", content_type="application/json")


@given(
    steps=st.lists(st.sampled_from(_STEPS * 3 + _RARE), max_size=25),
    limit=st.integers(1, 12),
    state=st.sampled_from([None, "ready"]),
)
@settings(deadline=None)
def test_quick_pages_are_those_of_a_search(steps: list[str], limit: int, state: str | None) -> None:
    store = QueueStore(clock=ManualClock())
    try:
        for step in steps:
            _do(store, step)
        after_seq = 0
        for _ in range(40):  # all pages, one after another
            asked: Any = {"state": state, "limit": limit, "after_seq": after_seq}
            page = searched(store.queue, **asked)
            found = quick(store.queue, **asked)
            assert found is None or found == page
            after_seq = page.next_seq
            if not after_seq:
                break
    finally:
        store.close()


def test_plain_messages_are_read_quickly(queue: Queue) -> None:
    queue.enqueue_batch([b"x"] * 30)
    queue.lease(2)
    page = quick(queue, limit=10)
    assert page is not None
    assert [row.state for row in page.rows] == ["leased"] * 2 + ["ready"] * 8
    assert [row.attempts for row in page.rows] == [1, 1, *[0] * 8]
    assert quick(queue, limit=10) == page  # from where the last page began
    rest = quick(queue, limit=20, after_seq=page.next_seq)
    assert rest is not None
    assert (len(rest.rows), rest.next_seq) == (20, 0)
    assert quick(queue, limit=10, after_seq=30) == Page([], 0, 0, False, 1, 31)


def test_a_page_of_many_bytes_is_searched_for(queue: Queue) -> None:
    queue.enqueue_batch([bytes(1000)] * 10)
    assert quick(queue, limit=10, max_bytes=5000) is None
    assert len(searched(queue, limit=10).rows) == 10


@pytest.mark.parametrize("state", ["leased", "dead", "scheduled", "done"])
def test_other_states_are_searched_for(queue: Queue, state: str) -> None:
    queue.enqueue(b"x")
    assert quick(queue, state=state) is None
