"""Taking messages out, and stopping for a while."""

import pytest

from penstock import FailedAttempt
from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NoSuchMessage, ReceiptInvalid
from penstock.ledger.memory_files import MemoryFiles
from penstock.queue import Queue
from penstock.queue.queue import open_queue
from tests.harness.queue_store import QUIET, QueueStore


@pytest.mark.parametrize("state", ["ready", "scheduled", "leased", "parked", "dead"])
def test_a_message_in_any_state_can_be_cancelled(store: QueueStore, state: str) -> None:
    queue = store.queue
    if state == "parked":
        queue.enqueue(b"before", key="k")
    id_ = queue.enqueue(
        b"a",
        key="k" if state == "parked" else None,
        delay=60 if state == "scheduled" else None,
        max_attempts=1,
    )
    if state in ("leased", "dead"):
        leased = queue.lease()
    if state == "dead":
        queue.nack(leased)
    assert queue.state(id_) == state
    assert queue.cancel(id_) is True
    assert queue.cancel(id_) is False
    assert queue.state(id_) == "done"
    assert queue.stats().cancelled == 1
    assert store.kill().state(id_) == "done"
    store.clock.advance(100)
    assert [m.payload for m in store.queue.dequeue_batch(9)] in ([], [b"before"])


def test_a_done_message_cannot_be_cancelled(queue: Queue) -> None:
    id_ = queue.enqueue(b"a")
    queue.dequeue()
    assert queue.cancel(id_) is False


def test_the_holder_of_a_cancelled_message_is_told(queue: Queue) -> None:
    id_ = queue.enqueue(b"a")
    (leased,) = queue.lease()
    queue.cancel(id_)
    with pytest.raises(ReceiptInvalid, match="cancelled"):
        queue.ack(leased)


def test_a_cancelled_message_is_cancelled_in_every_group(queue: Queue) -> None:
    queue.groups.create("audit")
    id_ = queue.enqueue(b"a")
    queue.dequeue()
    assert queue.cancel(id_) is True
    assert queue.dequeue(group="audit") is None


def test_ids_that_are_none_are_refused(queue: Queue) -> None:
    id_ = queue.enqueue(b"a")
    for bad in ("", "x", id_[:-1], id_ + "0", "ä" * 26, 5, None):
        with pytest.raises(InvalidInput):
            queue.cancel(bad)  # type: ignore[arg-type]
    with pytest.raises(NoSuchMessage):
        queue.cancel(QueueStore().queue.enqueue(b""))
    assert queue.stats().ready == 1


def test_purging_throws_away_what_waits_and_nothing_else(queue: Queue) -> None:
    queue.enqueue(b"leased")
    (leased,) = queue.lease()
    queue.enqueue(b"dead", max_attempts=1)
    queue.nack(queue.lease())
    queue.enqueue(b"ready")
    queue.enqueue(b"high", priority=9)
    queue.enqueue(b"delayed", delay=60)
    assert queue.purge() == 3
    stats = queue.stats()
    assert (stats.ready, stats.scheduled, stats.leased, stats.dead) == (0, 0, 1, 1)
    queue.ack(leased)


def test_purging_one_group_leaves_the_others(store: QueueStore) -> None:
    store.queue.groups.create("audit")
    store.queue.enqueue_batch([b"a", b"b"])
    assert store.queue.purge(group="audit") == 2
    assert store.kill().stats().groups["audit"].ready == 0
    assert store.queue.stats().ready == 2
    assert store.queue.purge() == 2


def test_what_is_published_after_a_purge_is_there(store: QueueStore) -> None:
    store.queue.enqueue_batch([b"old", b"older"])
    store.queue.purge()
    store.queue.enqueue(b"new")
    assert [m.payload for m in store.kill().dequeue_batch(9)] == [b"new"]


def test_a_message_published_during_a_purge_survives_it_and_a_restart() -> None:
    """The retry policy publishes: it is asked within the purge, after the state was fed."""
    files, clock = MemoryFiles(), ManualClock()

    class PublishOnce:
        published = False

        def delay_s(self, failed: FailedAttempt) -> float:
            if not self.published:
                self.published = True
                queue.enqueue(b"during")
            return 1.0

    queue = open_queue("/q", QUIET, files=files, clock=clock, retry_policy=PublishOnce())
    queue.enqueue_batch([b"leased", b"old"])
    queue.lease(lease_s=5)
    clock.advance(5)
    assert queue.purge() == 2  # "old", and "leased" again, whose lease ran out
    assert [message.payload for message in queue.browse()] == [b"during"]
    reopened = open_queue("/q", QUIET, files=MemoryFiles(files.image()), clock=clock)
    assert [message.payload for message in reopened.browse()] == [b"during"]
    reopened.close()
    queue.close()


def test_a_paused_queue_hands_out_nothing_and_takes_everything(
    store: QueueStore, clock: ManualClock
) -> None:
    store.queue.enqueue_batch([b"a", b"b"])
    (leased,) = store.queue.lease()
    store.queue.pause()
    store.queue.pause()
    assert store.queue.lease() == []
    assert store.queue.dequeue() is None
    store.queue.enqueue(b"c")
    store.queue.ack(leased)
    assert store.queue.stats().paused
    assert store.kill().stats().paused
    assert store.queue.lease() == []
    store.queue.resume()
    assert [m.payload for m in store.kill().dequeue_batch(9)] == [b"b", b"c"]
