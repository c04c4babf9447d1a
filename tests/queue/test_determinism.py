"""The same logs give the same state, byte for byte, whenever and from wherever they are folded."""

from typing import Any

import pytest

from penstock.ledger.snapshots import Snapshot
from penstock.queue.fold import fold
from penstock.queue.queue import Queue
from penstock.queue.snapshot import dump_state, load_state
from penstock.queue.state import QueueState
from tests.harness.queue_life import Life
from tests.harness.queue_machine import QueueMachine
from tests.harness.queue_store import QueueStore

STEPS = 400
LOOK_EVERY = 20


class _SeenWith:
    """A ledger, but with another snapshot than its newest, or with none."""

    def __init__(self, ledger: Any, snapshot: Snapshot | None) -> None:
        self._ledger = ledger
        self._snapshot = snapshot

    def load_snapshot(self) -> Snapshot | None:
        return self._snapshot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)


def live_dump(queue: Queue) -> bytes:
    with queue.core.lock:
        queue.core.catch_up()
        return dump_state(queue.core.state)


def folded_dump(queue: Queue, snapshot: Snapshot | None) -> bytes:
    core = queue.core
    ledger: Any = _SeenWith(core.ledger, snapshot)
    return dump_state(fold(ledger, dedup_entries=core.settings.dedup_entries))


def snapshots_of(queue: Queue) -> list[Snapshot]:
    ledger = queue.core.ledger
    return [ledger.read_snapshot(event_seq) for event_seq in ledger.snapshot_seqs()]


class _Uncompacted(QueueMachine):
    """All events stay, so that everything can be folded from the beginning."""

    def compact(self) -> None:
        pass


def look(queue: Queue, starts: list[Snapshot | None]) -> None:
    live = live_dump(queue)
    for snapshot in starts:
        assert folded_dump(queue, snapshot) == live


@pytest.mark.parametrize("seed", range(4))
def test_live_state_is_the_fold_of_its_own_logs_from_the_beginning_and_from_snapshots(
    seed: int,
) -> None:
    machine = _Uncompacted()
    life = Life(machine, f"determinism {seed}")
    for _ in range(STEPS // LOOK_EVERY):
        life.live(LOOK_EVERY)
        look(machine.queue, [*snapshots_of(machine.queue), None])
    assert len(snapshots_of(machine.queue)) == 2
    machine.store.close()


@pytest.mark.parametrize("seed", range(2))
def test_live_state_is_the_fold_of_its_logs_also_after_compactions(seed: int) -> None:
    machine = QueueMachine()
    life = Life(machine, f"compacted {seed}")
    for _ in range(STEPS // LOOK_EVERY):
        life.live(LOOK_EVERY)
        look(machine.queue, list(snapshots_of(machine.queue)[-1:]))
    machine.store.close()


def test_folding_twice_gives_the_same_bytes() -> None:
    machine = _Uncompacted()
    Life(machine, "twice").live(200)
    assert folded_dump(machine.queue, None) == folded_dump(machine.queue, None)


def test_a_loaded_snapshot_dumps_to_the_same_bytes() -> None:
    machine = _Uncompacted()
    Life(machine, "loaded").live(200)
    blob = live_dump(machine.queue)
    state = QueueState(dedup_entries=machine.queue.settings.dedup_entries)
    load_state(state, blob)
    assert dump_state(state) == blob


def test_a_reason_that_is_cut_short_is_cut_live_as_well() -> None:
    queue = QueueStore().queue
    queue.enqueue_batch([b"a", b"b", b"c", b"d"])
    for reason in ("x" * 5000, "é" * 3000, "\ud800 alone", "\0"):
        queue.nack(queue.lease(holder=reason), reason)
    assert live_dump(queue) == folded_dump(queue, None)


def test_time_alone_does_not_change_the_state_that_is_dumped() -> None:
    store = QueueStore()
    store.queue.enqueue(b"delayed", delay=5)
    store.queue.enqueue(b"keyed", key="a", delay=5)
    before = live_dump(store.queue)
    store.clock.advance(10)
    assert store.queue.stats().ready == 2
    assert live_dump(store.queue) == before
