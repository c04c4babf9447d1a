"""Rounds of syncs of files: in the pool's threads, or in the loop while that is quick."""

import asyncio
import os
from pathlib import Path

import pytest

from penstock.broker.embedded.disk_committer import DiskCommitter, Pace
from penstock.clock import ManualClock
from penstock.ledger.files import OsFiles, new_sync_pool
from penstock.ledger.ledger import Ledger, PendingSync
from penstock.ledger.settings import LedgerSettings

MS = 1_000_000

needs_compiler = pytest.mark.skipif(
    os.environ.get("PENSTOCK_CODEC") == "python", reason="needs the compiled module"
)


def test_the_loop_waits_for_syncs_only_while_they_are_fast() -> None:
    pace = Pace()
    assert not pace.is_fast(0)  # nothing is known of the disk yet
    for _ in range(100):
        pace.in_thread(MS // 10)
    assert pace.is_fast(0)
    for _ in range(100):
        pace.in_loop(0, 2 * MS)
    assert not pace.is_fast(0)
    for _ in range(100):
        pace.in_thread(3 * MS // 4)  # not slow, and not fast enough to begin again
    assert not pace.is_fast(0)


def test_a_sync_that_blocks_the_loop_keeps_syncs_out_of_it_for_a_minute() -> None:
    pace = Pace()
    for _ in range(100):
        pace.in_thread(MS // 10)
    pace.in_loop(0, 500 * MS)
    for _ in range(1000):
        pace.in_thread(MS // 10)
    assert not pace.is_fast(60_000 * MS)
    assert pace.is_fast(61_000 * MS)


class Queue:
    """The part of an open queue that a committer uses."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.in_loop = self.in_pool = 0

    def syncs(self) -> list[object]:
        self.in_loop += 1
        return list(self.ledger.syncs())

    def start_sync(self, pool: object, pending: PendingSync) -> bool:
        self.in_pool += 1
        return self.ledger.start_sync(pool, pending)  # type: ignore[arg-type]


@needs_compiler
def test_few_calls_are_synced_in_the_loop_once_the_disk_is_known_to_be_fast(
    tmp_path: Path,
) -> None:
    class Fast(Pace):
        """A disk whose syncs take no time."""

        def in_thread(self, took_ns: int) -> None:
            super().in_thread(0)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        pool = new_sync_pool(OsFiles(), 2)
        assert pool is not None
        committer = DiskCommitter(loop, pool, ManualClock(), Fast())
        outcomes: asyncio.Queue[tuple[int, Exception | None]] = asyncio.Queue()
        with Ledger.open(str(tmp_path), settings=LedgerSettings(sync="always")) as ledger:
            queue = Queue(ledger)

            async def commit(*, few: bool) -> None:
                ledger.messages.append(b"one")
                refused = committer.start(
                    [queue],  # type: ignore[list-item]
                    lambda index, error: outcomes.put_nowait((index, error)),
                    few=few,
                )
                assert list(refused) == []
                assert await outcomes.get() == (0, None)
                assert ledger.messages.durable_next_seq == ledger.messages.next_seq

            for _ in range(100):
                await commit(few=True)
            assert queue.in_pool > 0 and queue.in_loop > 0
            assert queue.in_pool + queue.in_loop == 100
            before = queue.in_loop
            await commit(few=False)
            assert queue.in_loop == before
        committer.close()

    asyncio.run(story())
