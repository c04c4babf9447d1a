"""A process whose threads work on one queue while exceptions are raised in them asynchronously.

    python -m tests.harness.interrupted_threads DIRECTORY SYNC SEED INTERRUPTS

Each thread notes what it is about to do, and what it was answered, by single appends to a list: so
its notes are true wherever it is interrupted. At the end the queue is held against all notes.
"""

import ctypes
import faulthandler
import logging
import sys
import time
from collections import Counter
from random import Random
from threading import Thread
from typing import Any

from penstock.model import LeasedMessage
from penstock.queue import NewMessage
from penstock.queue.queue import Queue, open_queue
from tests.harness.interrupted_life import difference, facts_of, fold_from_the_start
from tests.harness.interrupted_work import HANGS_AFTER_S, SETTINGS, Interrupted

_THREADS = 4
_MOST_PER_THREAD = 2000  # messages; then it only works them off


class Worker:
    """One thread, and its notes."""

    def __init__(self, queue: Queue, number: int) -> None:
        self.queue = queue
        self.number = number
        self.random = Random(number)
        self.notes: list[tuple[str, tuple[bytes, ...]]] = []
        self.stop = False
        self.may_be_interrupted = False  # set by the thread, cleared by who interrupts it
        self.steps = 0
        self._steps_at_interrupt = 0
        self.count = 0
        self.held: list[LeasedMessage] = []
        self.failure: BaseException | None = None
        self.thread = Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.stop:
            try:
                self.may_be_interrupted = True
                while not self.stop:
                    self.step()
                    self.steps += 1
            except Interrupted:
                pass
            except BaseException as error:  # a condition of Python's own may answer otherwise
                if not isinstance(error.__context__, Interrupted):
                    self.failure = error
                    return

    def interrupt(self) -> None:
        """Raise an exception in the thread. Call this once it works."""
        self.may_be_interrupted = False
        self._steps_at_interrupt = self.steps
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(Interrupted)
        )

    def wait_until_it_works(self) -> bool:
        """Wait until the last interrupt has come and the thread is inside the `try` again.

        Return False if the interrupt went elsewhere: into a thread that the worker was starting
        (until it runs, CPython knows it by the id of the worker), or into a weak reference's
        callback, which prints it. The worker then goes on; a step has many points for it to come.
        """
        while not self.may_be_interrupted and self.failure is None:
            if self.steps > self._steps_at_interrupt + 2:
                self.may_be_interrupted = True
                return False
            time.sleep(0.0001)
        return True

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.4 and self.count < _MOST_PER_THREAD:
            self.publish()
        elif choice < 0.7 or not self.held:
            self.held += self.lease(self.random.choice([1, 3]))
        else:
            self.settle(self.held.pop())

    def publish(self) -> None:
        self.count += 2
        payloads = tuple(b"%d.%d" % (self.number, self.count + n) for n in range(2))
        kinds: list[dict[str, Any]] = [{}, {}, {"key": "a"}, {"priority": 8}, {"delay": 0.001}]
        options = self.random.choice(kinds)
        self.notes.append(("publishes", payloads))
        if options:
            self.queue.publish([NewMessage(payload=one, **options) for one in payloads])
        else:
            self.queue.enqueue_batch(payloads)
        self.notes.append(("published", payloads))

    def lease(self, count: int) -> list[LeasedMessage]:
        jobs = self.queue.lease(count)
        if jobs:
            self.notes.append(("leased", tuple(job.payload for job in jobs)))
        return jobs

    def settle(self, job: LeasedMessage) -> None:
        if self.random.random() < 0.7:
            self.notes.append(("acks", (job.payload,)))
            self.queue.ack(job)
            self.notes.append(("acked", (job.payload,)))
        else:
            self.notes.append(("gives back", (job.payload,)))
            self.queue.release(job)


def interrupt(workers: list[Worker], random: Random, count: int) -> int:
    """Raise exceptions in the workers, then stop them. Return how many came to a worker."""
    for _ in range(count):
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        worker = random.choice(workers)
        count -= not worker.wait_until_it_works()
        worker.interrupt()
        time.sleep(random.uniform(0, 0.002))
    for worker in workers:
        count -= not worker.wait_until_it_works()
        worker.stop = True
    for worker in workers:
        worker.thread.join()
        if worker.failure is not None:
            raise worker.failure
    return count


def judge(queue: Queue, workers: list[Worker]) -> set[bytes]:
    """Nothing answered is lost, nothing settled is back, nothing was leased twice."""
    notes: dict[str, Counter[bytes]] = {}
    for kind, payloads in (note for worker in workers for note in worker.notes):
        notes.setdefault(kind, Counter()).update(payloads)
    there = {message.payload for message in queue.browse()}
    publishes, published, leased, acks, acked, given_back = (
        notes.get(kind, Counter())
        for kind in ("publishes", "published", "leased", "acks", "acked", "gives back")
    )
    lost = set(published) - set(acks) - there
    assert not lost, f"{lost} are lost"
    assert not there & set(acked), f"{there & set(acked)} are back"
    assert there <= set(publishes), f"nobody published {there - set(publishes)}"
    twice = [one for one, times in leased.items() if times > 1 + given_back[one]]
    assert not twice, f"{twice} were leased twice"
    core = queue.core
    with core.lock, core.change:
        core.catch_up()
        facts, folded = facts_of(core.state), facts_of(fold_from_the_start(core))
    assert facts == folded, difference(folded, facts)
    return there


def main(directory: str, sync: str, seed: str, interrupts: str) -> None:
    logging.disable(logging.CRITICAL)
    settings = {**SETTINGS, "sync": sync, "auto_compact": True}
    queue = open_queue(directory, settings)
    workers = [Worker(queue, number) for number in range(_THREADS)]
    came = interrupt(workers, Random(int(seed)), int(interrupts))
    there = judge(queue, workers)
    queue.close()
    queue = open_queue(directory, settings)
    assert judge(queue, workers) == there
    queue.close()
    faulthandler.cancel_dump_traceback_later()
    print(came, sum(len(worker.notes) for worker in workers))


if __name__ == "__main__":
    main(*sys.argv[1:])
