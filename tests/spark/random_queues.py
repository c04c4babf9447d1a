"""Queues with a bit of everything in them, and what their own reader says is there."""

from pathlib import Path
from random import Random
from typing import Any

from penstock.arrow.locations import QueueLocation
from penstock.arrow.logs import ledger_reader
from penstock.clock import ManualClock
from penstock.queue import NewMessage, Queue
from penstock.queue.messages import to_message
from penstock.queue.queue import open_queue

SMALL = {
    "segment_bytes": 4096,
    "min_free_bytes": 0,
    "auto_compact": False,
    "sync": "never",
    "backoff_base_s": 0,  # what timed out is due at once, whatever the time of a look
}


def open_small(path: Path | str, clock: ManualClock | None = None) -> Queue:
    """A queue whose segments are small, so that it soon has many."""
    return open_queue(str(path), SMALL, clock=clock)


def fill(queue: Queue, random: Random, count: int) -> None:
    """Messages of every kind, one by one and in batches."""
    while count > 0:
        if random.random() < 0.3:
            many = min(random.randint(2, 20), count)
            queue.enqueue_batch([message(random) for _ in range(many)])
            count -= many
        elif random.random() < 0.5:
            queue.enqueue(random.randbytes(random.choice((0, 1, 30, 100))))
            count -= 1
        else:
            queue.publish([message(random)])
            count -= 1


def message(random: Random) -> NewMessage:
    return NewMessage(
        payload=random.choice((b"", b"x" * 20, b"abc" * 700)),
        priority=random.choice((None, 0, 9)),
        delay=random.choice((None, None, 60)),
        ttl=random.choice((None, 3600)),
        headers=random.choice((None, {"a": "1"}, {"tenant": "acme", "größe": "µ"})),
        key=random.choice((None, "k", "other")),
        content_type=random.choice((None, "text/plain")),
        max_attempts=random.choice((None, 3)),
        compression=random.choice((None, "gzip")),
    )


def work(queue: Queue, random: Random, count: int) -> None:
    """Deliveries, with every outcome."""
    for _ in range(count):
        match random.randrange(5):
            case 0:
                queue.dequeue_batch(random.randint(1, 5))
            case 1:
                for leased in queue.lease(random.randint(1, 5)):
                    queue.ack(leased)
            case 2:
                for leased in queue.lease(random.randint(1, 3), holder="worker"):
                    queue.nack(leased, random.choice(("", "no luck", "schade, größe µ")))
            case 3:
                queue.lease(1)
            case _:
                for leased in queue.lease(2):
                    queue.release(leased)


def expected(path: Path | str, identity: int) -> list[dict[str, Any]]:
    """All messages, as the queue's own reader gives them."""
    with ledger_reader(QueueLocation(None, "queue", str(path)), "messages") as reader:
        found = [
            to_message(entry, identity, 1 << 30)
            for entries in reader.entries(1, 1 << 62)
            for entry in entries
        ]
    return [
        {
            "seq": one.seq,
            "id": one.id,
            "timestamp_ns": one.published_ns,
            "priority": one.priority,
            "key": one.key,
            "headers": dict(one.headers),
            "payload": one.payload,
            "content_type": one.content_type,
        }
        for one in found
    ]


COLUMNS = "seq,id,timestamp_ns,priority,key,headers,payload,content_type"
