"""Bad input: a typed error that says what is wrong, and nothing has changed."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from penstock.errors import InvalidInput, LedgerClosed, PenstockError, TooLarge
from penstock.model import PublishOptions, Receipt
from penstock.queue import NewMessage, Queue
from penstock.queue.snapshot import dump_state
from tests.harness.queue_store import QueueStore

NAN, INF = float("nan"), float("inf")

BAD_MESSAGES: list[dict[str, Any]] = [
    {"payload": None},
    {"payload": 5},
    {"payload": (1, 2)},
    {"payload": "\ud800"},
    {"payload": b"x", "priority": -1},
    {"payload": b"x", "priority": 10},
    {"payload": b"x", "priority": 5.0},
    {"payload": b"x", "priority": True},
    {"payload": b"x", "priority": "high"},
    {"payload": b"x", "delay": -1},
    {"payload": b"x", "delay": NAN},
    {"payload": b"x", "delay": INF},
    {"payload": b"x", "delay": 1e308},
    {"payload": b"x", "delay": "5"},
    {"payload": b"x", "delay": 101 * 365 * 86400},
    {"payload": b"x", "deliver_at": -1},
    {"payload": b"x", "deliver_at": NAN},
    {"payload": b"x", "deliver_at": 1e300},
    {"payload": b"x", "delay": 1, "deliver_at": 1},
    {"payload": b"x", "ttl": -0.001},
    {"payload": b"x", "ttl": NAN},
    {"payload": b"x", "ttl": "1"},
    {"payload": b"x", "headers": {"a": 5}},
    {"payload": b"x", "headers": {5: "a"}},
    {"payload": b"x", "headers": {"": "a"}},
    {"payload": b"x", "headers": {"line\nbreak": "a"}},
    {"payload": b"x", "headers": {"a\r": "b"}},
    {"payload": b"x", "headers": {"\0": "a"}},
    {"payload": b"x", "headers": {"a": "\udfff"}},
    {"payload": b"x", "headers": {str(n): "" for n in range(257)}},
    {"payload": b"x", "headers": {"a": "x" * 65536}},
    {"payload": b"x", "headers": {str(n): "x" * 10_000 for n in range(7)}},
    {"payload": b"x", "headers": ["a"]},
    {"payload": b"x", "key": 5},
    {"payload": b"x", "key": b"bytes"},
    {"payload": b"x", "key": "x" * 1025},
    {"payload": b"x", "max_attempts": 0},
    {"payload": b"x", "max_attempts": 1.5},
    {"payload": b"x", "max_attempts": 65_536},
    {"payload": b"x", "content_type": 5},
    {"payload": b"x", "content_type": "x" * 257},
    {"payload": b"x", "dedup_id": 5},
    {"payload": b"x", "dedup_id": "x", "dedup_window_s": -1},
    {"payload": b"x", "compression": "rar"},
    {"payload": b"x", "compression": 5},
]


def untouched(queue: Queue) -> tuple[bytes, int, int]:
    core = queue.core
    core.catch_up()
    return dump_state(core.state), core.ledger.messages.next_seq, core.ledger.events.next_seq


@pytest.fixture
def used(queue: Queue) -> Queue:
    """A queue with a message in each state."""
    queue.enqueue(b"dead", max_attempts=1)
    queue.nack(queue.lease())
    queue.enqueue(b"leased", key="k")
    queue.lease()
    queue.enqueue(b"parked", key="k")
    queue.enqueue(b"scheduled", delay=60)
    queue.enqueue(b"ready")
    return queue


@pytest.mark.parametrize("bad", BAD_MESSAGES, ids=lambda bad: repr(bad)[:60])
def test_a_bad_message_is_refused_alone_and_with_its_whole_batch(
    used: Queue, bad: dict[str, Any]
) -> None:
    before = untouched(used)
    with pytest.raises(InvalidInput):
        used.enqueue(**bad)
    good = NewMessage(payload=b"good", dedup_id="good")
    with pytest.raises(InvalidInput, match="message 1 of the batch"):
        used.enqueue_batch([good, NewMessage(**bad), good])
    with pytest.raises(InvalidInput):
        used.ack(used.lease(), emit=[good, NewMessage(**bad)])
    used.seek("end")
    assert used.stats().published == 5
    assert untouched(used)[1] == before[1]


BAD_CALLS: dict[str, Callable[[Queue], object]] = {
    "lease 0": lambda q: q.lease(0),
    "lease -1": lambda q: q.lease(-1),
    "lease many": lambda q: q.lease(10_001),
    "lease 1.5": lambda q: q.lease(1.5),  # type: ignore[arg-type]
    "lease for 0": lambda q: q.lease(lease_s=0),
    "lease for nan": lambda q: q.lease(lease_s=NAN),
    "lease for a month": lambda q: q.lease(lease_s=30 * 86400),
    "lease for text": lambda q: q.lease(lease_s="30"),  # type: ignore[arg-type]
    "lease by a number": lambda q: q.lease(holder=5),  # type: ignore[arg-type]
    "dequeue 0": lambda q: q.dequeue_batch(0),
    "dequeue text": lambda q: q.dequeue_batch("1"),  # type: ignore[arg-type]
    "peek 0": lambda q: q.peek(0),
    "peek -1": lambda q: q.peek(-1),
    "peek text": lambda q: q.peek("1"),  # type: ignore[arg-type]
    "publish nothing": lambda q: q.publish([]),
    "enqueue nothing": lambda q: q.enqueue_batch([]),
    "enqueue a text as a batch": lambda q: q.enqueue_batch("abc"),
    "enqueue bytes as a batch": lambda q: q.enqueue_batch(b"abc"),  # type: ignore[arg-type]
    "ack nothing": lambda q: q.ack([]),
    "ack a number": lambda q: q.ack(5),  # type: ignore[arg-type]
    "ack a list of numbers": lambda q: q.ack([5]),  # type: ignore[list-item]
    "ack nonsense": lambda q: q.ack("nonsense"),
    "ack None": lambda q: q.ack(None),  # type: ignore[arg-type]
    "nack for a number": lambda q: q.nack(_held(q), 5),  # type: ignore[arg-type]
    "extend by 0": lambda q: q.extend(_held(q), 0),
    "extend by nan": lambda q: q.extend(_held(q), NAN),
    "extend by a year": lambda q: q.extend(_held(q), 365 * 86400),
    "browse an unknown state": lambda q: q.browse("lost"),
    "get nonsense": lambda q: q.get("nonsense"),
    "get a number": lambda q: q.get(5),  # type: ignore[arg-type]
    "why nonsense": lambda q: q.why("nonsense"),
    "history nonsense": lambda q: q.history("nonsense"),
    "state nonsense": lambda q: q.state("nonsense"),
    "cancel nonsense": lambda q: q.cancel("nonsense"),
    "redrive nonsense": lambda q: q.redrive("nonsense"),
    "redrive since text": lambda q: q.redrive(since="now"),  # type: ignore[arg-type]
    "redrive for a number": lambda q: q.redrive(reason=5),  # type: ignore[arg-type]
    "discard until nan": lambda q: q.discard(until=NAN),
    "lease dead 0": lambda q: q.lease_dead(0),
}


def _held(queue: Queue) -> str:
    """The receipt of the leased message."""
    group = queue.core.state.groups[0]
    ((seq, lease),) = group.leases.items()
    return Receipt(queue.core.identity, 0, lease.attempt, seq, lease.nonce).pack()


@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_bad_call_is_refused_and_changes_nothing(used: Queue, call: str) -> None:
    before, metrics = untouched(used), used.metrics()
    with pytest.raises(PenstockError):
        BAD_CALLS[call](used)
    assert untouched(used) == before
    assert used.metrics() == metrics


def test_a_payload_over_its_limit_is_refused() -> None:
    queue = QueueStore({"max_payload_bytes": 1000}).queue
    queue.enqueue(b"x" * 1000)
    for payload in (b"x" * 1001, "ä" * 501, bytearray(1001)):
        with pytest.raises(TooLarge, match="max_payload_bytes"):
            queue.enqueue(payload)
        with pytest.raises(TooLarge):
            queue.enqueue_batch([b"small", payload])
    assert queue.stats().published == 1


def test_a_batch_over_its_limit_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="100000"):
        queue.enqueue_batch([b""] * 100_001)
    with pytest.raises(InvalidInput, match="100000"):
        queue.enqueue_batch(["text"] * 100_001)
    assert queue.stats().published == 0


def test_what_was_read_cannot_be_used_to_change_what_is_stored(queue: Queue) -> None:
    headers = {"a": "b"}
    payload = bytearray(b"abc")
    queue.enqueue(payload, headers=headers)
    headers["a"] = "changed"
    payload[0] = 0
    (message,) = queue.peek()
    assert (message.payload, message.headers["a"]) == (b"abc", "b")


def test_everything_is_refused_after_closing(store: QueueStore) -> None:
    queue = store.queue
    id_ = queue.enqueue(b"a", key="k")
    (leased,) = queue.lease()
    store.close()
    for call in (
        lambda: queue.enqueue(b"b"),
        lambda: queue.enqueue(b"b", priority=9),
        lambda: queue.enqueue_batch([b"b"]),
        lambda: queue.lease(),
        lambda: queue.lease(5),
        lambda: queue.dequeue(),
        lambda: queue.dequeue_batch(5),
        lambda: queue.ack(leased),
        lambda: queue.nack(leased),
        lambda: queue.get(id_),
        lambda: queue.cancel(id_),
        lambda: queue.seek("end"),
        lambda: queue.purge(),
        lambda: queue.groups.create("a"),
        lambda: queue.pause(),
        lambda: queue.sync(),
        lambda: queue.compact(),
        lambda: queue.peek(),
        lambda: list(queue.browse()),
    ):
        with pytest.raises(LedgerClosed):
            call()
    queue.close()


def test_enqueue_takes_the_options_of_a_message_and_no_others(queue: Queue) -> None:
    names = [field.name for field in fields(NewMessage) if field.name != "payload"]
    assert list(PublishOptions.__annotations__) == names
    with pytest.raises(TypeError, match="no option 'prio'; did you mean priority"):
        queue.enqueue(b"x", prio=1)  # type: ignore[call-arg]
    assert queue.stats().published == 0
