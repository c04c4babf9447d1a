"""Syncs the files of a round in threads that do not need the interpreter lock.

With Python's threads (`commit_loop.SyncThreads`), a hand-over takes about 15 µs of CPU for each of
64 calls that share a sync, because the thread and the event loop wait for each other's interpreter
lock. Here it takes that for all of them: a futex and an eventfd.

Waking a thread, and then the loop, takes as long as a sync on a fast disk. So while hardly any
calls wait and the disk is fast, the loop itself syncs.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.broker.embedded.open_queue import OpenQueue
from penstock.clock import Clock
from penstock.ledger.files import os_error
from penstock.ledger.ledger import PendingSync

if TYPE_CHECKING:
    from penstock.ledger import sync_pool

Done = Callable[[int, Exception | None], None]

# The average sync, to begin and to end waiting in the loop.
_FAST_NS, _SLOW_NS = 500_000, 1_000_000
_AVERAGE_OF = 16  # syncs
_STALL_NS = 20_000_000  # a sync that takes longer than this in the loop …
_AFTER_STALL_NS = 60_000_000_000  # … keeps syncs out of it for this long


class _QueueSync(PendingSync):
    """The syncs of one queue in a round."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.done: Done | None = None
        self.left = 0  # syncs that have not ended
        self.error = 0


class Pace:
    """Decides whether the loop may wait for a sync: while syncs are fast.

    A sync that blocks the loop for long keeps syncs out of it for a time.
    """

    def __init__(self) -> None:
        self._average_ns = 2.0 * _SLOW_NS
        self._is_fast = False
        self._not_before_ns = 0

    def is_fast(self, now_ns: int) -> bool:
        return self._is_fast and now_ns >= self._not_before_ns

    def in_thread(self, took_ns: int) -> None:
        """Note the duration of a sync."""
        self._average_ns += (took_ns - self._average_ns) / _AVERAGE_OF
        self._is_fast = self._average_ns < (_SLOW_NS if self._is_fast else _FAST_NS)

    def in_loop(self, began_ns: int, ended_ns: int) -> None:
        """Note a sync for which the loop waited."""
        self.in_thread(ended_ns - began_ns)
        if ended_ns - began_ns > _STALL_NS:
            self._not_before_ns = ended_ns + _AFTER_STALL_NS


class DiskCommitter:
    """Rounds of syncs by a pool of threads; see `commit_loop.Committer`. Used in the event loop."""

    max_rounds = 1

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: "sync_pool.SyncPool",
        clock: Clock,
        pace: Pace | None = None,
    ) -> None:
        self._loop = loop
        self._pool = pool
        self._clock = clock
        self._pace = pace or Pace()
        loop.add_reader(pool.fileno(), self._ended)

    def start(self, queues: Sequence[OpenQueue], done: Done, *, few: bool) -> Sequence[int]:
        if few and self._pace.is_fast(self._clock.monotonic_ns()):
            done(0, self._sync_now(queues[0]))
            return ()
        refused: list[int] = []
        for index, queue in enumerate(queues):
            sync = _QueueSync(index)
            try:
                is_started = queue.start_sync(self._pool, sync)
            except Exception as error:  # the ledger has stopped
                self._loop.call_soon(done, index, error)
                continue
            sync.left = len(sync.parts)
            if not is_started:
                refused.append(index)
            elif not sync.left:
                self._loop.call_soon(done, index, None)
            else:
                sync.done = done
        return refused

    def _sync_now(self, queue: OpenQueue) -> Exception | None:
        began_ns = self._clock.monotonic_ns()
        try:
            for sync in queue.syncs():
                sync()
        except Exception as error:
            return error
        self._pace.in_loop(began_ns, self._clock.monotonic_ns())
        return None

    def _ended(self) -> None:
        for job in self._pool.ended():
            self._pace.in_thread(job.took_ns)
            sync: _QueueSync = job.owner
            sync.left -= 1
            sync.error = sync.error or job.error
            if not sync.left:
                self._tell(sync)

    def _tell(self, sync: _QueueSync) -> None:
        error: Exception | None = None
        try:
            if sync.error:
                error = sync.fail(os_error(sync.error))
            else:
                sync.end()
        except Exception as failure:
            error = failure
        if sync.done is not None:
            sync.done(sync.index, error)

    def close(self) -> None:
        """End the threads. No sync may be under way."""
        self._loop.remove_reader(self._pool.fileno())
        self._pool.close()
