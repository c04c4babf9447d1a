"""Why a message is not being delivered now, and everything that happened to it."""

from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.errors import NoSuchMessage, PenstockError
from penstock.queue import Event, EventType, Queue, history
from penstock.queue.history import all_events
from penstock.queue.queue import open_queue
from tests.harness.queue_store import QueueStore


def events(queue: Queue, id_: str, group: str | None = None) -> list[str]:
    return [event.event for event in queue.history(id_, group=group)]


def test_why_of_the_next_and_of_those_behind_it(queue: Queue) -> None:
    first, second = queue.enqueue_batch([b"a", b"b"])
    high = queue.enqueue(b"c", priority=9)
    assert queue.why(high).code == "next"
    why = queue.why(second)
    assert (why.state, why.code) == ("ready", "behind_others")
    assert why.details == {"higher_priority": 1, "same_priority": 1}
    assert "1 of a higher priority and 1 of its own" in why.sentence
    assert queue.why(first).group == "main"


def test_why_of_a_paused_queue(queue: Queue) -> None:
    id_ = queue.enqueue(b"a")
    queue.pause()
    assert queue.why(id_).code == "paused"


def test_why_of_a_delayed_message(queue: Queue, clock: ManualClock) -> None:
    id_ = queue.enqueue(b"a", delay=90)
    clock.advance(30)
    why = queue.why(id_)
    assert (why.state, why.code, why.sentence) == ("scheduled", "delayed", "It is due in 60.0 s.")
    assert why.details["left_s"] == 60


def test_why_of_a_message_that_backs_off(queue: Queue) -> None:
    id_ = queue.enqueue(b"a")
    queue.nack(queue.lease(), "the bank is closed", delay=30)
    why = queue.why(id_)
    assert (why.state, why.code) == ("scheduled", "backing_off")
    assert why.details == {"attempt": 1, "left_s": 30.0, "reason": "the bank is closed"}
    assert "the bank is closed" in why.sentence


def test_why_of_a_leased_message(queue: Queue, clock: ManualClock) -> None:
    id_ = queue.enqueue(b"a")
    queue.lease(lease_s=30, holder="worker 7")
    clock.advance(10)
    why = queue.why(id_)
    assert (why.state, why.code) == ("leased", "leased")
    assert why.details == {"attempt": 1, "left_s": 20.0, "holder": "worker 7"}
    assert "worker 7" in why.sentence


def test_why_of_a_message_whose_key_is_busy(queue: Queue) -> None:
    queue.enqueue(b"a", key="k")
    queue.enqueue(b"b", key="k")
    id_ = queue.enqueue(b"c", key="k")
    why = queue.why(id_)
    assert (why.state, why.code) == ("parked", "key_busy")
    assert why.details == {"key": "k", "ahead": 2, "holder_seq": 1}
    assert "key 'k'" in why.sentence


def test_why_of_dead_expired_and_done_messages(queue: Queue, clock: ManualClock) -> None:
    dead = queue.enqueue(b"a", max_attempts=1)
    queue.nack(queue.lease(), "bad input")
    expired = queue.enqueue(b"b", ttl=1)
    done = queue.enqueue(b"c", priority=9)
    queue.dequeue()
    cancelled = queue.enqueue(b"d")
    queue.cancel(cancelled)
    clock.advance(1)
    assert queue.why(dead).code == "dead"
    assert queue.why(dead).details == {"attempts": 1, "reason": "bad input"}
    assert queue.why(expired).code == "expired"
    assert queue.why(done).details == {"last_event": "taken"}
    assert queue.why(cancelled).details == {"last_event": "cancelled"}
    assert queue.why(done).code == queue.why(cancelled).code == "done"


def test_why_differs_by_group(queue: Queue) -> None:
    id_ = queue.enqueue(b"a")
    queue.groups.create("late", to="end")
    queue.groups.create("audit")
    queue.lease(group="audit")
    assert queue.why(id_).code == "next"
    assert queue.why(id_, group="audit").code == "leased"
    assert queue.why(id_, group="late").code == "done"


def test_why_is_the_same_after_a_restart(store: QueueStore) -> None:
    ids = [store.queue.enqueue(b"a", key="k") for _ in range(2)]
    ids.append(store.queue.enqueue(b"b", delay=50))
    before = [store.queue.why(id_) for id_ in ids]
    assert [store.kill().why(id_) for id_ in ids] == before


def test_why_of_what_is_not_here(queue: Queue) -> None:
    with pytest.raises(NoSuchMessage):
        queue.why(QueueStore().queue.enqueue(b""))


def test_history_tells_everything_in_order(queue: Queue, clock: ManualClock) -> None:
    id_ = queue.enqueue(b"a", max_attempts=3)
    (leased,) = queue.lease(lease_s=10, holder="worker 1")
    queue.extend(leased, 20)
    queue.release(leased)
    queue.nack(queue.lease(), "first failure", delay=1)
    clock.advance(1)
    queue.lease(lease_s=5)
    clock.advance(5)
    queue.stats()
    clock.advance(1)
    queue.nack(queue.lease(), "last failure")
    queue.redrive()
    queue.ack(queue.lease())
    assert events(queue, id_) == [
        "published",
        "leased",
        "extended",
        "released",
        "leased",
        "nacked",
        "leased",
        "timed_out",
        "leased",
        "dead",
        "redriven",
        "leased",
        "acked",
    ]
    history = queue.history(id_)
    assert history[1].holder == "worker 1"
    assert (history[5].reason, history[5].attempt) == ("first failure", 1)
    assert history[5].retry_at_ns == 1_700_000_001 * 10**9
    assert (history[9].reason, history[9].attempt) == ("last failure", 3)
    assert [event.at for event in history] == sorted(event.at for event in history)


def test_history_is_of_one_message(queue: Queue) -> None:
    a, b, c = queue.enqueue_batch([b"a", b"b", b"c"])
    queue.ack(queue.lease(2))
    queue.cancel(c)
    assert events(queue, a) == events(queue, b) == ["published", "leased", "acked"]
    assert events(queue, c) == ["published", "cancelled"]


def test_history_by_group(queue: Queue) -> None:
    queue.groups.create("audit")
    id_ = queue.enqueue(b"a")
    queue.dequeue(group="audit")
    queue.ack(queue.lease(), emit=[b"follow-up"])
    assert events(queue, id_, "audit") == ["published", "taken"]
    assert events(queue, id_, "main") == ["published", "leased", "acked"]
    assert [event.group for event in queue.history(id_)] == [None, "audit", "main", "main"]


def test_history_tells_an_ack_with_follow_ups_once_and_in_its_place(store: QueueStore) -> None:
    id_ = store.queue.enqueue(b"a")
    store.queue.ack(store.queue.lease(), emit=[b"x"])
    store.queue.seek("beginning")
    store.queue.dequeue()
    expected = ["published", "leased", "acked", "sought", "taken"]
    assert events(store.queue, id_) == expected
    assert events(store.kill(), id_) == expected


def test_history_tells_of_a_purge_only_those_it_took(queue: Queue) -> None:
    done, leased, waiting = queue.enqueue_batch([b"done", b"leased", b"waiting"])
    queue.dequeue()
    queue.lease()
    queue.purge()
    after = queue.enqueue(b"after")
    assert events(queue, done) == ["published", "taken"]
    assert events(queue, leased) == ["published", "leased"]
    assert events(queue, waiting) == ["published", "purged"]
    assert events(queue, after) == ["published"]


def test_history_tells_of_a_seek_that_brought_a_message_back(queue: Queue) -> None:
    first, second = queue.enqueue_batch([b"a", b"b"])
    queue.dequeue_batch(2)
    queue.seek(seq=2)
    assert events(queue, first) == ["published", "taken"]
    assert events(queue, second) == ["published", "taken", "sought"]


def test_history_survives_restarts_and_compaction() -> None:
    store = QueueStore({"segment_bytes": 512, "snapshot_every": 20})
    id_ = store.queue.enqueue(b"old", delay=10_000)
    for _ in range(200):
        store.queue.enqueue(b"x")
        store.queue.ack(store.queue.lease())
    store.reopen().compact()
    store.kill().compact()
    store.queue.cancel(id_)
    assert events(store.queue, id_) == ["published", "cancelled"]


def test_why_of_one_that_waited_so_long_that_it_is_next(store: QueueStore) -> None:
    id_ = store.queue.enqueue(b"old", priority=4)
    store.clock.advance(130)  # two levels
    store.queue.enqueue(b"new", priority=5)
    assert store.queue.peek()[0].id == id_
    assert store.queue.why(id_).code == "next"


def test_why_of_a_done_message_holds_nobody_up(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the event log, which may be long."""
    id_ = store.queue.enqueue(b"a")
    store.queue.dequeue()
    published: list[str] = []

    def read_slowly(*args: Any) -> Iterator[Event]:
        other = Thread(target=lambda: published.append(store.queue.enqueue(b"b", priority=1)))
        other.start()
        other.join(60)
        yield from all_events(*args)

    monkeypatch.setattr(history, "all_events", read_slowly)
    assert store.queue.why(id_).details == {"last_event": "taken"}
    assert published


def test_history_passes_over_what_cannot_be_read(store: QueueStore) -> None:
    id_ = store.queue.enqueue(b"a")
    store.queue.nack(store.queue.lease())
    store.queue.core.ledger.events.append_event(EventType.ACKED, b"cut")
    store.clock.advance(1)
    store.queue.ack(store.queue.lease())
    for queue in (store.queue, store.kill()):
        events = [event.event for event in queue.history(id_)]
        assert events == ["published", "leased", "nacked", "leased", "acked"]
        assert [message.id for message in queue.browse("done")] == [id_]
    assert len(store.damage) == 1


_VERBS = ("publish", "dequeue", "lease", "ack", "nack", "cancel", "purge", "seek", "expire")


@given(st.lists(st.tuples(st.sampled_from(_VERBS), st.integers(0, 7)), max_size=30))
def test_why_of_a_done_message_agrees_with_its_history(steps: list[tuple[str, int]]) -> None:
    """What is kept of the events says the same as reading them all, after seeks and purges too."""
    clock = ManualClock()
    with open_queue("memory:", {"max_attempts": 2, "backoff_base_s": 0}, clock=clock) as queue:
        ids: list[str] = []
        leased: list[Any] = []
        for verb, number in steps:
            clock.advance(1)
            match verb:
                case "publish":
                    ids.append(queue.enqueue(b"x", ttl=5 if number == 0 else None))
                case "dequeue":
                    queue.dequeue()
                case "lease":
                    leased += queue.lease(1)
                case "ack" | "nack" if leased:
                    message = leased.pop()
                    with suppress(PenstockError):
                        queue.ack([message]) if verb == "ack" else queue.nack([message])
                case "cancel" if number < len(ids):
                    queue.cancel(ids[number])
                case "purge":
                    queue.purge()
                case "seek" if number < len(ids):
                    queue.seek(id=ids[number])
                case "expire":
                    clock.advance(10)
            for id_ in ids:
                if queue.state(id_) == "done":
                    told = [event.event for event in queue.history(id_)][-1]
                    assert queue.why(id_).details["last_event"] == told
