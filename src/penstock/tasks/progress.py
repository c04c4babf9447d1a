"""Progress of running jobs: what `current().progress(0.4, "resizing")` says, sent to the queue.

Reports are coalesced. The first is sent at once, and then the newest of each job, twice a second.
Each renews the lease of its job. A report is never worth an error: the job goes on.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from penstock.clock import SystemClock
from penstock.errors import PenstockError, ReceiptInvalid
from penstock.locks import Lock
from penstock.model import NS, LeasedMessage
from penstock.queue.facade import AnyAsyncQueue, AnyQueue
from penstock.queue.progress import Said

log = logging.getLogger("penstock.tasks")

PAUSE_S = 0.5  # between two reports of a job
Report = Callable[[LeasedMessage, Said], None]


class JobProgress(NamedTuple):
    """How far a running job is, as it said last."""

    share: float  # of its work, from 0 to 1
    note: str
    at: float  # when it said so: seconds since 1970


class ProgressReports:
    """Sends the reports of the jobs of a worker. `report` may be called in any thread."""

    def __init__(self, queue: AnyAsyncQueue, lease_s: float) -> None:
        self._queue = queue
        self._lease_s = lease_s
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._newest: dict[
            str, tuple[LeasedMessage, Said]
        ] = {}  # by receipt: those of running jobs
        self._is_busy = False  # sending, or in the pause after it
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def report(self, leased: LeasedMessage, said: Said) -> None:
        """Take the newest report of a job."""
        with self._lock:
            self._newest[leased.receipt] = (leased, said)
            if self._is_busy:
                return
            self._is_busy = True
        with suppress(RuntimeError):  # the loop is closed: the stop did not wait
            self._loop.call_soon_threadsafe(self._start)

    async def close(self) -> None:
        """Forget what was not sent: those jobs have ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _start(self) -> None:
        with self._lock:
            newest, self._newest = self._newest, {}
            self._is_busy = bool(newest)
        if newest:
            self._task = asyncio.ensure_future(self._send(list(newest.values())))

    async def _send(self, newest: list[tuple[LeasedMessage, Said]]) -> None:
        for leased, said in newest:
            try:
                share = said.progress_ppm / 1e6
                await self._queue.extend(leased, self._lease_s, progress=share, note=said.note)
            except ReceiptInvalid:
                pass  # it has ended since; a lost lease is noticed by its renewal
            except PenstockError as error:
                log.warning("the progress of %s was not reported: %s", leased.id, error)
        self._timer = self._loop.call_later(PAUSE_S, self._start)


def reporting_to(queue: AnyQueue, lease_s: float) -> Report:
    """Return what reports the progress of one job that runs in the calling thread."""
    clock, next_ns = SystemClock(), 0

    def report(leased: LeasedMessage, said: Said) -> None:
        nonlocal next_ns
        now_ns = clock.monotonic_ns()
        if now_ns < next_ns:
            return
        next_ns = now_ns + round(PAUSE_S * NS)
        try:
            queue.extend(leased, lease_s, progress=said.progress_ppm / 1e6, note=said.note)
        except PenstockError as error:
            log.warning("the progress of %s was not reported: %s", leased.id, error)

    return report
