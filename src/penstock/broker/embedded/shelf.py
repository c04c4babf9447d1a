"""The queues of a data directory, open and closed.

A queue is opened on first use. It is closed after a time without use, or if too many are open: an
open queue holds files and a mapping. Opening, closing and deleting run in threads, one at a time
for each queue; other calls wait. They run to their end even if their caller is cancelled.
"""

import asyncio
import logging
from asyncio import Future
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock.broker.background import Background
from penstock.broker.embedded.acked_lately import Acked, acked_lately
from penstock.broker.embedded.commit_loop import CommitLoop
from penstock.broker.embedded.open_queue import OpenQueue
from penstock.broker.embedded.quotas import Quotas
from penstock.broker.embedded.settling import Repeats
from penstock.broker.embedded.timer import Timer
from penstock.broker.store import QueueInfo, QueueSample
from penstock.clock import Clock
from penstock.errors import (
    AlreadyExists,
    BrokerError,
    LedgerError,
    NoSuchQueue,
    NotEmpty,
    NotSupported,
    PenstockError,
)
from penstock.ledger.files import Files
from penstock.model import NS, Stats
from penstock.names import QueueName
from penstock.operations import Compact
from penstock.queue.core import QueueCore
from penstock.queue.opening import open_core
from penstock.queue.settings import QueueSettings

log = logging.getLogger("penstock.broker")

_RECOVERIES = 4  # queues recovered at a time
# For a queue whose queue.json is damaged: the safest setting, as the old one is unknown.
_IF_SETTINGS_WERE_LOST = {"sync": "always"}


class IdentityTaken(BrokerError):
    """Two queues have the same identity."""


class QueueHome(Protocol):
    """Where the queues of a shelf are kept. Every call is for a thread."""

    @property
    def has_locks_of_queues(self) -> bool:
        """Whether each queue is locked as well; False if one lock covers them."""

    @property
    def can_delete(self) -> bool:
        """Whether queues can be deleted."""

    def enter(self, queue: QueueName) -> tuple[str, Files]:
        """Return the path of a queue that is about to be opened, and the files that hold it."""

    def made(self, queue: QueueName) -> None:
        """Note that a new queue is whole. No call has used it yet."""

    def opened(self, core: QueueCore) -> bool:
        """Prepare the files of a queue that was opened for its first calls.

        Return whether reading its messages may take long, as they are far away.
        """

    def leave(self, queue: QueueName, size_bytes: int) -> None:
        """Note that a queue was closed."""

    def delete_queue(self, queue: QueueName) -> None: ...


class _Turn:
    """A lock of one queue, and how many calls hold it or wait for it."""

    __slots__ = ("calls", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.calls = 0


class _ClosedStats(NamedTuple):
    """The counts of a queue when it was closed."""

    stats: Stats
    mono_ns: int

    def at(self, mono_ns: int) -> Stats:
        """Return the counts at a later time: only the age of the oldest message changes."""
        age_s = self.stats.oldest_ready_age_s
        if self.stats.ready:
            age_s += (mono_ns - self.mono_ns) / NS
        return self.stats._replace(oldest_ready_age_s=age_s)


class Shelf:
    """The queues of a store, those that are open in this process and the others."""

    def __init__(
        self,
        home: QueueHome,
        commits: CommitLoop,
        timer: Timer[QueueName],
        background: Background,
        *,
        on_ready: Callable[[QueueName], None],
        on_queue: Callable[[QueueName, int | None], None],
        clock: Clock,
        max_open: int,
        idle_close_s: float,
        keeps_stopped: bool = False,
    ) -> None:
        """`keeps_stopped`: a queue whose log stopped stays as it is, and is reported, until the
        process ends. Else the owner of the shelf reopens it."""
        self._home = home
        self._commits = commits
        self._timer = timer
        self._background = background
        self._on_ready = on_ready
        self._on_queue = on_queue  # gets the identity of a new queue, None for a deleted one
        self._clock = clock
        self._max_open = max_open
        self._idle_close_s = idle_close_s
        self._keeps_stopped = keeps_stopped
        self._stopped: dict[QueueName, PenstockError] = {}  # why, since the process began
        self._loop = asyncio.get_running_loop()
        self._open: dict[QueueName, OpenQueue] = {}
        self._bytes: dict[QueueName, int] = {}  # sizes of all queues when they were last closed
        self.quotas = Quotas(clock, self._sizes_of)
        self._watchers: dict[QueueName, int] = {}
        self._turns: dict[QueueName, _Turn] = {}
        self._tidying: asyncio.TimerHandle | None = None
        self._compactions: Timer[QueueName] = Timer(self._compact_later)
        self._closed: dict[QueueName, _ClosedStats] = {}
        self._wanted = Counter[QueueName]()
        self._repeats = Repeats()
        self._recovered = 0
        self._by_identity: dict[int, QueueName] = {}

    # -- life --------------------------------------------------------------------------------------

    async def recover(self, queues: Iterable[QueueName]) -> None:
        """Open every queue once, to recover from a crash before the first call.

        A queue that cannot be opened is logged. Only its own calls are refused.
        """
        for queue in queues:
            self._bytes[queue] = 0
        turn = asyncio.Semaphore(_RECOVERIES)

        async def recover(queue: QueueName) -> None:
            async with turn:
                try:
                    await self.opened(queue)
                except (PenstockError, OSError) as error:
                    log.error("queue %s cannot be opened: %s", queue, error)
                self._recovered += 1
                await self._background.run(self._close_some())

        await asyncio.gather(*(recover(queue) for queue in list(self._bytes)))
        self.close_idle_later()

    @property
    def progress(self) -> tuple[int, int]:
        return self._recovered, len(self._bytes)

    def trouble(self) -> str | None:
        """Return the first queue that accepts no writes, with the reason; None if all do."""
        for queue, found in self._open.items():
            refusal = found.core.ledger.refusal
            if refusal is not None:
                return f"{queue}: {refusal}"
        for queue, reason in self._stopped.items():
            return f"{queue}: {reason}"
        return None

    async def close(self) -> None:
        """Close every queue: each saves its state."""
        if self._tidying is not None:
            self._tidying.cancel()
        self._compactions.close()
        await self._background.finished()
        await asyncio.gather(*(self._close(queue) for queue in list(self._open)))

    # -- finding -----------------------------------------------------------------------------------

    def get(self, queue: QueueName) -> OpenQueue | None:
        """Return the queue if it is open."""
        found = self._open.get(queue)
        if found is not None:
            found.used_at = self._loop.time()
        return found

    def direct(self, queue: QueueName) -> OpenQueue | None:
        """Return the queue if calls can be answered by it at once; see `Store.direct`."""
        found = self._open.get(queue)
        if found is None or not found.is_free() or queue.namespace in self.quotas.limited:
            return None
        found.used_at = self._loop.time()
        return found

    @property
    def open_queues(self) -> Mapping[QueueName, OpenQueue]:
        return self._open

    def names(self, namespace: str | None) -> list[QueueName]:
        return sorted(q for q in self._bytes if namespace is None or q.namespace == namespace)

    def identities(self) -> dict[QueueName, int]:
        """Return all queues with their identities; 0 for one that could not be opened."""
        known = {queue: identity for identity, queue in self._by_identity.items()}
        return {queue: known.get(queue, 0) for queue in self._bytes}

    def find(self, identity: int) -> QueueName | None:
        return self._by_identity.get(identity)

    def _sizes_of(self, namespace: str) -> dict[QueueName, int]:
        return {
            queue: self._open[queue].bytes() if queue in self._open else size
            for queue, size in self._bytes.items()
            if queue.namespace == namespace
        }

    def __contains__(self, queue: QueueName) -> bool:
        return queue in self._bytes

    def add(self, queue: QueueName, size_bytes: int) -> None:
        """Note a queue that is not open here, or what it holds."""
        if queue not in self._open:
            self._bytes[queue] = size_bytes
            self.quotas.set_size(queue, size_bytes)

    def open_sizes(self) -> dict[QueueName, int]:
        """Return the sizes of the open queues, in bytes."""
        return {queue: found.bytes() for queue, found in self._open.items()}

    async def forget(self, queue: QueueName) -> None:
        """Close and forget a queue that was deleted elsewhere."""
        await self._background.run(self._forget_in_turn(queue))

    async def _forget_in_turn(self, queue: QueueName) -> None:
        async with self._turn(queue):
            if queue in self._bytes:
                await self._forget(queue)

    def stats_of_closed(self, queue: QueueName) -> Stats | None:
        """Return the counts of a closed queue; None if it is open or was never opened."""
        closed = self._closed.get(queue)
        return None if closed is None else closed.at(self._clock.monotonic_ns())

    def sample(self) -> list[QueueSample]:
        """Return the counts of the queues that are open, or were closed here. None is opened, and
        none is kept open by it. Those that cannot answer at once are left out."""
        mono_ns = self._clock.monotonic_ns()
        found = [
            QueueSample(queue, one.stats, passed_s=(mono_ns - one.mono_ns) / NS)
            for queue, one in self._closed.items()
        ]
        for one in list(self._open.values()):
            sample = one.sample()
            if sample is not None:
                found.append(sample)
        return found

    @contextmanager
    def wanted(self, queue: QueueName) -> Iterator[None]:
        """Do not close a queue for room before the call that opens it has used it.

        If all others are in use, it would be closed and opened again without end.
        """
        self._wanted[queue] += 1
        try:
            yield
        finally:
            self._wanted[queue] -= 1
            if not self._wanted[queue]:
                del self._wanted[queue]

    async def opened(self, queue: QueueName) -> OpenQueue:
        """Return the queue. Open it if necessary."""
        found = self.get(queue)
        return await self._background.run(self._opened(queue)) if found is None else found

    async def _opened(self, queue: QueueName) -> OpenQueue:
        async with self._turn(queue):
            found = self.get(queue)
            if found is not None:
                return found
            self._check_there(queue)
            found = await self._open_now(queue, {})
        self._make_room_later()
        return found

    def check_absent(self, queue: QueueName) -> None:
        if queue in self._bytes:
            raise AlreadyExists(f"queue {queue} exists already")

    def _check_there(self, queue: QueueName) -> None:
        if queue not in self._bytes:
            raise NoSuchQueue(f"there is no queue {queue}")

    # -- waiting -----------------------------------------------------------------------------------

    def watch(self, queue: QueueName) -> None:
        """Keep a queue open while a call waits, and report its ready messages."""
        self._watchers[queue] = self._watchers.get(queue, 0) + 1
        found = self._open.get(queue)
        if found is not None:
            found.wakeups.watch()

    def unwatch(self, queue: QueueName) -> None:
        left = self._watchers[queue] - 1
        if left:
            self._watchers[queue] = left
        else:
            del self._watchers[queue]
        found = self._open.get(queue)
        if found is not None:
            found.wakeups.unwatch()

    # -- creating, changing, deleting --------------------------------------------------------------

    def create(self, queue: QueueName, settings: QueueSettings) -> Future[QueueInfo]:
        return self._background.run(self._create(queue, settings))

    async def _create(self, queue: QueueName, settings: QueueSettings) -> QueueInfo:
        async with self._turn(queue):
            self.check_absent(queue)
            while True:
                try:
                    made = await self._open_now(queue, settings.as_dict(), is_new=True)
                    self._make_room_later()
                    return made.info
                except IdentityTaken:  # random, 1 in 2^32 for each queue: draw another
                    await asyncio.to_thread(self._home.delete_queue, queue)

    def change(self, queue: QueueName, settings: Mapping[str, Any]) -> Future[QueueInfo]:
        """Change settings by reopening the queue: they are read when it is opened."""
        return self._background.run(self._change(queue, settings))

    async def _change(self, queue: QueueName, settings: Mapping[str, Any]) -> QueueInfo:
        async with self._turn(queue):
            self._check_there(queue)
            found = self._open.get(queue)
            if found is not None:
                QueueSettings.of(settings, found.core.settings)  # refuse before any change
                self._check_not_stopped(found)
                await self._close_now(queue)
            self._compactions.forget(queue)  # the interval may have changed
            return (await self._open_now(queue, settings)).info

    def delete(self, queue: QueueName, *, if_empty: bool = False) -> Future[None]:
        return self._background.run(self._delete(queue, if_empty=if_empty))

    async def _delete(self, queue: QueueName, *, if_empty: bool) -> None:
        if not self._home.can_delete:
            raise NotSupported(f"{queue} is all that is served here: delete its directory instead")
        async with self._turn(queue):
            self._check_there(queue)
            if if_empty:
                await self._check_empty(queue)
            await self._forget(queue)
            await asyncio.to_thread(self._home.delete_queue, queue)

    async def _check_empty(self, queue: QueueName) -> None:
        """Raise NotEmpty if the queue holds messages; else leave it closed, so that none arrive.
        Caller holds its turn."""
        if queue not in self._open and queue not in self._closed:
            await self._open_now(queue, {})
        if queue in self._open:
            self._check_not_stopped(self._open[queue])
            await self._close_now(queue)
        stats = self.stats_of_closed(queue)
        if stats is None or stats.unfinished:
            await self._open_now(queue, {})  # for waiting calls and the end of leases
            raise NotEmpty(f"queue {queue} holds messages: consume or purge them first")

    async def _forget(self, queue: QueueName) -> None:
        if queue in self._open:
            await self._close_now(queue)
        self._closed.pop(queue, None)
        self._stopped.pop(queue, None)
        self._compactions.forget(queue)
        del self._bytes[queue]
        self.quotas.forget_queue(queue)
        self._by_identity = {i: q for i, q in self._by_identity.items() if q != queue}
        self._on_queue(queue, None)

    # -- opening and closing -----------------------------------------------------------------------

    @asynccontextmanager
    async def _turn(self, queue: QueueName) -> AsyncGenerator[None, None]:
        """Wait for the turn of a queue. Its lock is kept as long as any call waits for it."""
        turn = self._turns.get(queue)
        if turn is None:
            turn = self._turns[queue] = _Turn()
        turn.calls += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.calls -= 1
            if not turn.calls:
                del self._turns[queue]

    async def until_settled(self, queue: QueueName) -> None:
        """Wait until a queue that is being opened, closed or deleted is so."""
        async with self._turn(queue):
            pass

    def _check_not_stopped(self, found: OpenQueue) -> None:
        """Raise if the queue must stay as it is, since its log stopped."""
        if self._keeps_stopped:
            found.core.ledger.check_writable()

    def _has_stopped(self, queue: QueueName, reason: PenstockError) -> None:
        """Note that a queue takes no more writes. Called from any thread."""
        self._stopped[queue] = reason
        fields = {
            "queue": str(queue),
            "errno": getattr(reason.__cause__, "errno", None),
            "reason": str(reason),
        }
        log.error("queue takes no more writes: restart the broker", extra={"fields": fields})

    async def _open_now(
        self, queue: QueueName, settings: Mapping[str, Any], *, is_new: bool = False
    ) -> OpenQueue:
        core, is_slow, acked = await asyncio.to_thread(self._open_core, queue, settings, is_new)
        owner = self._by_identity.get(core.identity)
        if owner not in (None, queue):
            await asyncio.to_thread(self._close_core, queue, core)
            raise IdentityTaken(
                f"queue {queue} has the identity of {owner}, as after copying its directory: "
                f"receipts of one would settle messages of the other. Move one of them out of the "
                f"data directory."
            )
        core.firing.admit = partial(self.quotas.check_bytes, queue.namespace)
        self._repeats.acked_before(core.identity, acked)
        found = OpenQueue(
            queue,
            core,
            self._commits,
            self._timer,
            self._on_ready,
            self._repeats,
            self._background,
        )
        if is_slow:
            found.expect_slow_reads()
        for _ in range(self._watchers.get(queue, 0)):
            found.wakeups.watch()
        self._open[queue] = found
        self._closed.pop(queue, None)
        self._bytes.setdefault(queue, 0)
        self.quotas.set_size(queue, found.bytes())
        if owner is None:
            self._by_identity[core.identity] = queue
            self._on_queue(queue, core.identity)
        found.wakeups.plan()
        self._plan_compaction(found)
        self._written(queue)  # recovery may have written
        found.sample()  # the counts to compare later ones with
        return found

    def _open_core(
        self, queue: QueueName, settings: Mapping[str, Any], is_new: bool
    ) -> tuple[QueueCore, bool, dict[tuple[int, int], Acked]]:
        path, files = self._home.enter(queue)
        try:
            core = open_core(
                path,
                settings,
                files=files,
                clock=self._clock,
                own_lock=self._home.has_locks_of_queues,
                on_dirty=lambda: self._written(queue),
                on_stop=partial(self._has_stopped, queue) if self._keeps_stopped else None,
                if_unstored=_IF_SETTINGS_WERE_LOST,
                own_timer=False,
            )
            try:
                if is_new:
                    self._home.made(queue)
                acked = acked_lately(core.ledger, self._clock.now_ns())
                return core, self._home.opened(core), acked
            except BaseException:
                with suppress(LedgerError):
                    core.close()
                raise
        except BaseException:
            self._home.leave(queue, self._bytes.get(queue, 0))
            raise

    def _written(self, queue: QueueName) -> None:
        """Plan a sync of a write that no call waits for. Called from any thread."""
        found = self._open.get(queue)
        if found is not None and found.sync_within_s is not None:
            self._loop.call_soon_threadsafe(self._sync_later, found, found.sync_within_s)

    def _sync_later(self, found: OpenQueue, within_s: float) -> None:
        def sync() -> None:
            if self._open.get(found.name) is found:
                self._commits.soon(found)

        self._loop.call_later(within_s, sync)

    async def _close(self, queue: QueueName) -> None:
        async with self._turn(queue):
            if queue in self._open:
                await self._close_now(queue)

    async def _close_unused(self, queue: QueueName) -> None:
        async with self._turn(queue):
            found = self._open.get(queue)
            if found is not None and queue not in self._wanted and self._may_close(found):
                await self._close_now(queue)

    def _may_close(self, found: OpenQueue) -> bool:
        if self._keeps_stopped and found.core.ledger.is_stopped:
            return False  # opened anew, it would take writes, on a disk that has failed
        return not found.is_in_use

    async def _close_now(self, queue: QueueName) -> None:
        """Close a queue. Caller holds its turn; new calls wait for theirs."""
        found = self._open.pop(queue)
        self._timer.forget(queue)
        try:
            try:
                await found.finished()
                self._closed[queue] = _ClosedStats(found.stats(), found.core.clock.monotonic_ns())
                self._bytes[queue] = found.bytes()
            finally:  # release the files in any case
                if found.core.ledger.is_stopped:
                    self._repeats.forget()  # the latest acks of this queue may have been lost
                await asyncio.to_thread(self._close_core, queue, found.core)
            self._bytes[queue] = found.bytes()  # closing writes a little
            self.quotas.set_size(queue, self._bytes[queue])
        except LedgerError as error:
            self._closed.pop(queue, None)
            log.error("closing queue %s failed: %s", queue, error)

    def _close_core(self, queue: QueueName, core: QueueCore) -> None:
        try:
            core.close()
        finally:
            ledger = core.ledger
            size_bytes = ledger.messages.size_bytes() + ledger.events.size_bytes()
            self._home.leave(queue, size_bytes)

    async def discard(self, queue: QueueName) -> None:
        """Close a queue, also one that takes no more writes: the next call opens it anew."""
        await self._background.run(self._close(queue))

    # -- keeping few open --------------------------------------------------------------------------

    def close_idle_later(self) -> None:
        """Close queues that are not in use, now and then, from now on."""
        self._tidying = self._loop.call_later(self._idle_close_s / 4, self._tidy)

    def _tidy(self) -> None:
        self._background.run(self._close_idle())
        self.close_idle_later()

    async def _close_idle(self) -> None:
        limit = self._loop.time() - self._idle_close_s
        for queue, found in list(self._open.items()):
            if found.used_at < limit and self._may_close(found):
                await self._close_unused(queue)

    async def _close_some(self) -> None:
        """Close the least recently used queues while too many are open."""
        excess = len(self._open) - self._max_open
        if excess <= 0:
            return
        unwanted = [one for queue, one in self._open.items() if queue not in self._wanted]
        unused = [one for one in unwanted if self._may_close(one)]
        for found in sorted(unused, key=lambda one: one.used_at)[:excess]:
            await self._close_unused(found.name)

    # -- compacting at an interval -----------------------------------------------------------------

    def _plan_compaction(self, found: OpenQueue) -> None:
        """Plan the next compaction. An earlier plan stays: reopening a queue does not delay it."""
        interval_s = found.core.settings.storage.compact_interval_s
        if interval_s:
            self._compactions.plan(found.name, interval_s)

    def _compact_later(self, queue: QueueName) -> None:
        self._background.run(self._compact(queue))

    async def _compact(self, queue: QueueName) -> None:
        """Compact a queue. A closed one is opened, because its messages age too."""
        try:
            found = await self.opened(queue)
            self._plan_compaction(found)
            await found.run(Compact())
        except (PenstockError, OSError) as error:
            log.warning("compaction of queue %s failed: %s", queue, error)

    def _make_room_later(self) -> None:
        if len(self._open) > self._max_open:
            self._background.run(self._close_some())
