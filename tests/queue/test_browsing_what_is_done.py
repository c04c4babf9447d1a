"""How a message ended is asked of the event log."""

from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.ledger import Ledger
from penstock.queue import history
from penstock.queue.history import all_events
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


def test_pages_of_what_is_done_read_each_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server begins a new listing for each page."""
    read: list[int] = []

    def counted(ledger: Ledger, first_seq: int = 1) -> Any:
        for event in all_events(ledger, first_seq):
            read.append(event.event_seq)
            yield event

    monkeypatch.setattr(history, "all_events", counted)
    with open_queue(str(tmp_path / "queue"), {"sync": "never"}) as queue:
        ids = [queue.enqueue(b"%d" % number) for number in range(10)]
        for id_ in ids[::2]:
            queue.cancel(id_)
        queue.ack(queue.lease(3))

        def found(state: str) -> list[str]:
            return [message.id for message in queue.browse(state)]

        assert found("cancelled") == ids[::2]
        assert found("done") == ids[1:6:2]
        queue.cancel(ids[9])
        assert found("cancelled") == [*ids[::2], ids[9]]
        assert found("expired") == []
        assert len(read) == len(set(read)) > 0


def test_a_message_that_ends_again_after_a_seek_ended_as_it_did_last(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queue(str(tmp_path / "queue"), {"sync": "never"}, clock=clock) as queue:
        queue.groups.create("other")
        id_ = queue.enqueue(b"x", ttl=1)
        clock.advance(2)
        assert queue.dequeue() is None
        assert [message.id for message in queue.browse("expired")] == [id_]
        queue.cancel(id_)
        assert [message.id for message in queue.browse("cancelled", group="other")] == [id_]
