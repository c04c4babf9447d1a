"""Many threads on one queue: what it is then is the fold of what they wrote; nothing is missing."""

from collections.abc import Callable
from random import Random
from threading import Thread

import pytest

from penstock.errors import NoSuchGroup, NoSuchMessage, PenstockError, ReceiptInvalid
from penstock.queue import NewMessage, Queue
from tests.harness.queue_store import QueueStore
from tests.queue.test_determinism import folded_dump, live_dump

THREADS = 4
STEPS = 150


class Worker:
    """One thread's share of the work, drawn by a seed."""

    def __init__(self, queue: Queue, seed: str, *, compacts: bool) -> None:
        self.queue = queue
        self.random = Random(seed)
        self.compacts = compacts
        self.ids: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(STEPS):
                self.step()
        except BaseException as error:
            self.failure = error

    def step(self) -> None:
        queue, random = self.queue, self.random
        group = random.choice(("main", "main", "audit"))
        acts: list[tuple[int, Callable[[], object]]] = [
            (6, lambda: self.ids.append(queue.enqueue(b"plain"))),
            (3, lambda: self.ids.extend(queue.enqueue_batch([b"a", b"b", b"c"]))),
            (5, lambda: self.ids.extend(p.id for p in queue.publish([self.new()]))),
            (3, lambda: queue.dequeue(group=group)),
            (8, lambda: self.work(group)),
            (2, lambda: self.cancel()),
            (1, lambda: queue.redrive(group=group)),
            (1, lambda: queue.stats()),
            (1, lambda: queue.peek(3, group=group)),
            (1, lambda: list(queue.browse(group=group))),
        ]
        if self.compacts:
            acts += [(1, queue.compact), (1, lambda: queue.seek("beginning", group="audit"))]
        ((_, act),) = random.choices(acts, [weight for weight, _ in acts])
        act()

    def new(self) -> NewMessage:
        choose = self.random.choice
        return NewMessage(
            payload=b"options",
            priority=choose((None, 0, 9)),
            delay=choose((None, None, 3600)),
            key=choose((None, "a", "b")),
            dedup_id=choose((None, None, "x", "y")),
            max_attempts=choose((None, 1)),
        )

    def work(self, group: str) -> None:
        queue, random = self.queue, self.random
        for leased in queue.lease(random.choice((1, 1, 4)), group=group):
            try:
                random.choice(
                    (
                        lambda one: queue.ack(one),
                        lambda one: queue.ack(one.receipt),
                        lambda one: queue.ack(one, emit=[b"follow-up"]),
                        lambda one: queue.nack(one, "it failed", delay=0),
                        lambda one: queue.release(one),
                    )
                )(leased)
            except ReceiptInvalid:
                pass  # cancelled, or sought back, by another thread

    def cancel(self) -> None:
        if self.ids:
            try:
                self.queue.cancel(self.random.choice(self.ids))
            except NoSuchMessage:
                pass  # compacted away


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("compacts", [False, True])
def test_what_threads_leave_behind_is_the_fold_of_their_logs(seed: int, compacts: bool) -> None:
    store = QueueStore({"segment_bytes": 4096, "snapshot_every": 400, "max_attempts": 2})
    store.queue.groups.create("audit")
    workers = [
        Worker(store.queue, f"{seed} {number}", compacts=compacts) for number in range(THREADS)
    ]
    threads = [Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [worker.failure for worker in workers] == [None] * THREADS
    live = live_dump(store.queue)
    if not compacts:
        assert folded_dump(store.queue, None) == live
    stats = store.queue.stats()
    for group in stats.groups.values():
        settled = group.acked + group.cancelled
        waiting = group.ready + group.scheduled + group.leased + group.parked + group.dead
        if not compacts:  # a seek delivers again
            assert stats.published == settled + waiting
    assert live_dump(store.kill()) == live


def test_groups_made_and_deleted_beside_traffic_disturb_nobody(store: QueueStore) -> None:
    queue = store.queue
    failures: list[BaseException] = []

    def guarded(act: Callable[[], object]) -> None:
        try:
            for _ in range(100):
                act()
        except BaseException as error:
            failures.append(error)

    def make_and_delete() -> None:
        queue.groups.create("late", to="end")
        queue.groups.delete("late")

    def read_from_it() -> None:
        try:
            queue.ack(queue.lease(group="late"))
        except (NoSuchGroup, ReceiptInvalid):
            pass
        except PenstockError as error:
            assert "nothing to settle" in str(error)

    acts = [make_and_delete, read_from_it, lambda: queue.enqueue(b""), queue.dequeue]
    threads = [Thread(target=guarded, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(queue.groups) == ["main"]
    assert live_dump(store.kill()) == live_dump(queue)
