"""How a message ended is asked of the event log."""

from pathlib import Path

from penstock.clock import ManualClock
from penstock.queue.queue import open_queue


def test_done_expired_and_cancelled_messages_are_told_apart(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queue(str(tmp_path / "queue"), {"sync": "never"}, clock=clock) as queue:
        done = queue.enqueue(b"done")
        queue.ack(queue.lease(1))
        expired = queue.enqueue(b"expired", ttl=1)
        cancelled = queue.enqueue(b"cancelled")
        waiting = queue.enqueue(b"waiting", delay=60)
        queue.cancel(cancelled)
        clock.advance(2)
        assert queue.dequeue() is None
        assert [message.id for message in queue.browse("done")] == [done]
        assert [message.id for message in queue.browse("expired")] == [expired]
        assert [message.id for message in queue.browse("cancelled")] == [cancelled]
        assert [message.id for message in queue.browse()] == [waiting]
