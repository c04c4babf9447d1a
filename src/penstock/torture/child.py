"""A process that works on a queue with threads until it is killed, and says what was acknowledged.

It prints a small letter before a call and the capital after its answer: a kill between the two may
leave either result.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from threading import Thread

from penstock.errors import ReceiptInvalid
from penstock.queue import Queue
from penstock.queue.queue import open_queue
from penstock.torture.children import ChildFailed, fork_children, say

PUBLISHERS = 2
WORKERS = 2
SETTINGS = {
    "segment_bytes": 16384,
    "snapshot_every": 300,
    "min_free_bytes": 0,
    "lease_s": 600,
    "auto_compact": False,
}


@dataclass
class Told:
    """What the children of one directory have said, over all their lives: the oracle."""

    attempted: set[str] = field(default_factory=set)
    published: dict[str, str] = field(default_factory=dict)  # id -> payload
    acking: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    nacked: dict[str, int] = field(default_factory=dict)  # id -> its newest attempt that failed
    cancelling: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    answers: int = 0

    def hear(self, line: str) -> None:
        word, *rest = line.split()
        self.answers += word.isupper()
        match word:
            case "p":
                self.attempted.update(rest)
            case "P":
                half = len(rest) // 2
                self.published.update(zip(rest[half:], rest[:half], strict=True))
            case "a":
                self.acking.add(rest[0])
            case "A":
                self.acked.add(rest[0])
            case "N":
                self.nacked[rest[0]] = int(rest[1])
            case "c":
                self.cancelling.add(rest[0])
            case "C":
                self.cancelled.add(rest[0])
            case "failed":
                raise ChildFailed(line.removeprefix("failed ").strip())


def work(path: str, sync: str, seed: str) -> None:
    """Publish and settle until killed."""
    try:
        queue = open_queue(path, {**SETTINGS, "sync": sync})
    except Exception as error:
        say("failed", "to open the queue:", repr(error))
        os._exit(1)
    jobs = [publish] * PUBLISHERS + [settle] * WORKERS
    threads = [
        Thread(target=_guarded, args=(job, queue, f"{seed}/{number}"))
        for number, job in enumerate(jobs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def publish(queue: Queue, name: str) -> None:
    random = Random(name)
    number = 0
    while True:
        payloads = []
        for _ in range(random.choice((1, 1, 5))):
            number += 1
            payloads.append(f"{name}/{number}")
        say("p", *payloads)
        if len(payloads) > 1:
            ids = queue.enqueue_batch([payload.encode() for payload in payloads])
        elif random.random() < 0.5:
            ids = [queue.enqueue(payloads[0].encode())]
        else:
            key = random.choice((None, "a", "b"))
            ids = [queue.enqueue(payloads[0], priority=random.randint(0, 9), key=key)]
        say("P", *payloads, *ids)
        if random.random() < 0.05:
            say("c", ids[0])
            queue.cancel(ids[0])
            say("C", ids[0])


def settle(queue: Queue, name: str) -> None:
    random = Random(name)
    while True:
        for leased in queue.lease(random.choice((1, 4)), wait_s=1):
            fate = random.random()
            try:
                if fate < 0.6:
                    say("a", leased.id)
                    queue.ack(leased)
                    say("A", leased.id)
                elif fate < 0.8:
                    queue.nack(leased, "it failed", delay=600)
                    say("N", leased.id, leased.attempt)
            except ReceiptInvalid:
                say("refused", leased.id)  # it was cancelled meanwhile


def _guarded(job: Callable[[Queue, str], None], queue: Queue, name: str) -> None:
    try:
        job(queue, name)
    except BaseException as error:
        say("failed", repr(error))
        os._exit(1)


def main() -> None:
    """Fork a child for each line of input: a directory, a sync policy, a seed."""
    fork_children(lambda line: work(*line.split()))
