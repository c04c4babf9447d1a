"""A compaction that is interrupted or fails: memory shows no entry that the disk gave up."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.ledger import Compactor, Retention
from penstock.ledger.memory_files import MemoryFiles
from penstock.torture.damage_store import Live
from tests.harness.faults import FAILS_WITH, Fault, FaultyFiles
from tests.harness.interrupts import Interrupter
from tests.ledger.store import SMALL, Store, seqs

# Nothing of the first segment is live, one entry of the second, and the third is being written.
LIVE = frozenset({5, 9})


def full_store(files: FaultyFiles) -> Store:
    store = Store(Path("/queue"), replace(SMALL, segment_entries=4), files=files)
    store.fill(9)
    return store


def compactor(store: Store) -> Compactor:
    return Compactor(store.ledger, store.messages, Live(LIVE), Retention(), store.clock)


def assert_that_all_seen_is_on_disk(store: Store, where: str) -> None:
    """What this handle shows can be needed again (`seek`), so a reopening must show it too."""
    seen = seqs(store.messages)
    assert set(seen) >= LIVE, where
    store.reopen_after_death()
    assert seqs(store.messages) == seen, where
    store.close()


# An interrupt that falls into a callback of Python's own weak references is printed, not raised.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_compaction_shows_nothing_that_is_gone_after_reopening() -> None:
    at, points = 1, 1
    while at <= points:
        store = full_store(FaultyFiles(MemoryFiles()))
        interrupter = Interrupter(at)
        try:
            interrupter.run(compactor(store).run)
        except KeyboardInterrupt:
            pass
        assert_that_all_seen_is_on_disk(store, interrupter.where)
        at, points = at + 1, max(points, interrupter.points + 1)
    assert at > 300


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_compaction_shows_nothing_that_is_gone_after_reopening(error: int) -> None:
    for nth in range(1, 1_000):
        files = FaultyFiles(MemoryFiles())
        store = full_store(files)
        files.fault = Fault(nth, error, methods=FAILS_WITH[error])
        try:
            compactor(store).run()
        except PenstockError:
            pass
        files.heal()
        if not files.failures:
            break
        assert_that_all_seen_is_on_disk(store, str(files.failures))
    assert nth > 10
