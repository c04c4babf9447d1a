"""A queue that is open: the behaviours of the queue layer, answered when durable.

Everything is called in the event loop. What takes long (a search through the log, a compaction)
is done in a thread and then answered.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from penstock.broker.embedded.queue_files import QueueFiles
from penstock.broker.embedded.settling import Repeats, settle_each
from penstock.broker.limits import LARGE_BYTES, is_heavy
from penstock.broker.store import (
    Outcome,
    Pending,
    Publishable,
    QueueInfo,
    Settlement,
    payload_bytes,
)
from penstock.codec import Draft
from penstock.errors import Unavailable
from penstock.model import (
    MAIN_GROUP_NAME,
    NS,
    LeasedMessage,
    NewMessage,
    Published,
    Stats,
)
from penstock.names import QueueName
from penstock.operations import Operation, Runs, Sync
from penstock.queue.behaviours import Behaviours, as_new
from penstock.queue.core import QueueCore
from penstock.queue.operation_handlers import run

if TYPE_CHECKING:
    from penstock.broker.background import Background
    from penstock.broker.embedded.commit_loop import CommitLoop, HeldResult
    from penstock.broker.embedded.timer import Timer

_T = TypeVar("_T")
_STAYS_LARGE_S = 10.0  # a queue is taken for one of large messages, after the last of them


class OpenQueue:
    """One queue of the embedded store."""

    def __init__(
        self,
        name: QueueName,
        core: QueueCore,
        commits: "CommitLoop",
        timer: "Timer[QueueName]",
        on_ready: Callable[[QueueName], None],
        repeats: Repeats,
        background: "Background",
    ) -> None:
        self.name = name
        self.core = core
        self._behaviours = Behaviours(core, _NotHere())
        self.files = QueueFiles(core, self.in_thread)
        self._commits = commits
        self._timer = timer
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        self._waits_for_disk = core.settings.sync == "always"
        plain = self._behaviours.publishing.plain_is_enough
        self._blocks = core.settings.when_full == "block" and not plain
        self._repeats = repeats
        self._background = background
        self._watchers = 0
        self._large_until_s = 0.0  # until then, what is leased is read in a thread
        self._largest_bytes = 0  # of the payloads that were leased until then
        self._blocked: set[asyncio.Event] = set()  # of publishers that wait for room
        self.is_closing = False
        self.turn = asyncio.Lock()
        self.is_occupied = False  # by a call in a thread, which no other may come beside
        self._busy = 0  # calls in threads
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self.used_at = self._loop.time()

    @property
    def info(self) -> QueueInfo:
        ledger = self.core.ledger
        return QueueInfo(self.name, ledger.identity, ledger.created_at_ns, self.core.settings)

    def syncs(self) -> list[Callable[[], None]]:
        """For the commit loop."""
        return self.core.ledger.syncs()

    @property
    def is_in_use(self) -> bool:
        """Would anybody miss it if it were closed now? Leases and delays need its timer."""
        state = self.core.state
        return bool(
            self._watchers
            or self._busy
            or any(group.leases or group.waiting.scheduled for group in state.groups.values())
        )

    @property
    def sync_within_s(self) -> float | None:
        """How soon what is written must be on disk though nobody waits; None: no such promise."""
        settings = self.core.settings
        if settings.sync == "batch" or settings.sync == "interval":
            return settings.sync_interval_s
        return None

    async def finished(self) -> None:
        """When all calls that are under way are answered. No new ones may come."""
        self.is_closing = True
        for changed in self._blocked:
            changed.set()  # they need not wait for room that does not come
        while self._busy:
            await self._at_rest.wait()
        if not self.core.ledger.is_stopped:
            await self._commits.when_durable(self, None)

    def last_stats(self) -> "ClosedStats":
        """Its counts, to be shown while it is closed."""
        return ClosedStats(self._behaviours.inspecting.stats(), self.core.clock.monotonic_ns())

    # -- waiting for messages ----------------------------------------------------------------------

    def watch(self) -> None:
        self._watchers += 1
        if self._watchers == 1:
            self.core.listeners.append(self._arrived)
        self.plan()

    def unwatch(self) -> None:
        self._watchers -= 1
        if not self._watchers:
            self.core.listeners.remove(self._arrived)

    def _arrived(self) -> None:
        """Called by whoever publishes or settles: mostly this loop, but also a thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._loop.call_soon_threadsafe(self._on_ready, self.name)
        else:
            self._on_ready(self.name)

    def plan(self) -> None:
        """Be woken when the next message is due or the next lease over."""
        if self.is_occupied:
            return  # by a call that has the lock, and plans when it is over
        with self.core.lock, self.core.change:
            wake_ns = self.core.next_wake_ns()
        if wake_ns is not None:
            self._timer.plan(self.name, wake_ns / 1e9)

    def wake(self) -> None:
        """The time has come: let happen what is due."""
        if self.is_occupied:
            return  # as above
        with self.core.lock, self.core.change:
            before = self.core.ledger.events.next_seq
            self.core.tick()
            happened = self.core.ledger.events.next_seq != before
        if happened:
            self._commits.soon(self)
        if self._watchers:
            self._on_ready(self.name)
        self.plan()

    # -- messages ----------------------------------------------------------------------------------

    def publish(self, messages: Sequence[Publishable]) -> Future[list[Published]]:
        publishing = self._behaviours.publishing
        if len(messages) == 1:
            item = self._behaviours.plain_item(messages[0])
            if item is not None and _is_small(item):
                return self._durable([Published(publishing.publish_plain(item))])
        if self._blocks:
            return asyncio.ensure_future(self._publish_when_room(as_new(messages)))
        if is_heavy(messages):
            return self.in_thread(lambda: self._publish(messages), writes=True, alone=True)
        published = self._publish(messages)
        if any(map(_is_delayed, messages)):
            self.plan()
        return self._durable(published)

    def publish_for(
        self, pending: Pending, messages: Sequence[Publishable]
    ) -> list[Published] | Future[list[Published]] | None:
        if len(messages) == 1:
            item = self._behaviours.plain_item(messages[0])
            if item is not None and _is_small(item):
                published = [Published(self._behaviours.publishing.publish_plain(item))]
                return self._durable_for(pending, published)
        if self._blocks or is_heavy(messages):
            return self.publish(messages)
        published = self._publish(messages)
        if any(map(_is_delayed, messages)):
            self.plan()
        return self._durable_for(pending, published)

    def _publish(self, messages: Sequence[Publishable]) -> list[Published]:
        """Perhaps in a thread."""
        publishing = self._behaviours.publishing
        if self._behaviours.all_plain(messages):
            ids = publishing.publish_plain_batch(messages)  # type: ignore[arg-type]
            return [Published(id_) for id_ in ids]
        if self._behaviours.all_typed(messages):
            ids = publishing.publish_typed_batch(messages)  # type: ignore[arg-type]
            return [Published(id_) for id_ in ids]
        return publishing.publish(as_new(messages))

    async def _publish_when_room(self, new: list[NewMessage]) -> list[Published]:
        """Wait for room, without a thread: any number may wait, and nobody else does for them."""
        publishing, settings = self._behaviours.publishing, self.core.settings
        ends_at = self._loop.time() + settings.block_s
        changed = asyncio.Event()

        def wake() -> None:
            self._loop.call_soon_threadsafe(changed.set)

        self.core.listeners.append(wake)
        self._blocked.add(changed)
        try:
            while not (published := await self._try_publish(new)):
                left_s = ends_at - self._loop.time()
                if left_s <= 0:
                    published = publishing.publish(new, block_s=0)  # says that the queue is full
                    break
                changed.clear()
                try:
                    async with asyncio.timeout(left_s):
                        await changed.wait()
                except TimeoutError:
                    pass
                if self.is_closing:
                    raise Unavailable(f"queue {self.name} is being closed: try again in a moment")
        finally:
            self._blocked.discard(changed)
            self.core.listeners.remove(wake)
        self.plan()
        return await self._durable(published)

    async def _try_publish(self, new: list[NewMessage]) -> list[Published]:
        try_publish = self._behaviours.publishing.try_publish
        if is_heavy(new):
            return await self._occupy(lambda: try_publish(new))
        async with self.turn:
            return try_publish(new)

    def lease(
        self,
        n: int,
        *,
        lease_s: float | None,
        group: str,
        holder: str,
        dead: bool,
        max_bytes: Callable[[], int],
    ) -> Future[list[LeasedMessage]]:
        if self._large_until_s and self._is_large(group, dead=dead):
            lease = partial(self._lease, n, lease_s, group, holder, dead)
            return self._commits.run(partial(self._lease_in_thread, lease, n, lease_s, max_bytes))
        events = self.core.ledger.events
        before = events.next_seq
        leased = self._lease(n, lease_s, group, holder, dead, max_bytes())
        if leased:
            return self._leased(leased, lease_s)
        if events.next_seq != before:
            self._nothing_leased()
        return self._done(leased)

    def lease_for(
        self,
        pending: Pending,
        n: int,
        *,
        lease_s: float | None,
        group: str,
        holder: str,
        max_bytes: Callable[[], int],
    ) -> list[LeasedMessage] | Future[list[LeasedMessage]] | None:
        if self._large_until_s:
            return self.lease(
                n, lease_s=lease_s, group=group, holder=holder, dead=False, max_bytes=max_bytes
            )
        events = self.core.ledger.events
        before = events.next_seq
        leased = self._lease(n, lease_s, group, holder, False, max_bytes())
        if leased:
            return self._durable_for(pending, leased, self._note_leased(leased, lease_s))
        if events.next_seq != before:
            self._nothing_leased()
        return leased

    def _nothing_leased(self) -> None:
        """But something expired, or a lease was over."""
        self._commits.soon(self)
        self._plan_next_of_keys()

    def _leased(
        self, leased: list[LeasedMessage], lease_s: float | None
    ) -> Future[list[LeasedMessage]]:
        return self._durable(leased, self._give_back, self._note_leased(leased, lease_s))

    def _note_leased(self, leased: list[LeasedMessage], lease_s: float | None) -> int:
        """Plan the end of a lease, at the latest: what comes sooner was planned before. Return the
        bytes of its payloads."""
        self._timer.plan(self.name, self.core.settings.lease_s if lease_s is None else lease_s)
        size = payload_bytes(leased)
        if size > LARGE_BYTES:
            self._large_until_s = self._loop.time() + _STAYS_LARGE_S
            largest = max([len(one.payload) for one in leased])
            self._largest_bytes = max(self._largest_bytes, largest)
        return size

    def _is_large(self, group: str, *, dead: bool) -> bool:
        """Is it likely that a lease has much to read now?"""
        if self._loop.time() >= self._large_until_s:
            self._large_until_s, self._largest_bytes = 0.0, 0
            return False
        return dead or self.ready_hint(group) > 0

    async def _lease_in_thread(
        self,
        lease: Callable[[int], list[LeasedMessage]],
        n: int,
        lease_s: float | None,
        max_bytes: Callable[[], int],
        held: "HeldResult",
    ) -> list[LeasedMessage]:
        """Lease when it is this call's turn. What it is about to read counts as held."""
        most = reserved = 0

        def reserve() -> None:
            nonlocal most, reserved
            most, largest = max_bytes(), self._largest_bytes
            reserved = max(min(most, n * largest), largest)  # it reads at least one
            self._commits.held_bytes += reserved

        def give_back(working: Future[list[LeasedMessage]]) -> None:
            self._commits.held_bytes -= reserved
            if working.exception() is None and working.result():
                self._give_back(working.result())

        working = self._occupy(lambda: lease(most), reserve)
        try:
            leased = await asyncio.shield(working)
        except asyncio.CancelledError:
            working.add_done_callback(give_back)
            raise
        except BaseException:
            self._commits.held_bytes -= reserved
            raise
        self._commits.held_bytes -= reserved
        if not leased:
            self._nothing_leased()
            return []
        await self._leased(leased, lease_s)
        held.hold(payload_bytes(leased))
        return leased

    def _lease(
        self,
        n: int,
        lease_s: float | None,
        group: str,
        holder: str,
        dead: bool,
        max_bytes: int,
    ) -> list[LeasedMessage]:
        """Perhaps in a thread."""
        if dead:
            return self._behaviours.delivering.lease_dead(n, lease_s, group, holder, max_bytes)
        if n == 1 and lease_s is None and group == MAIN_GROUP_NAME and not holder:
            leased = self._behaviours.fast_path.lease()
            if leased is not None:
                return [leased]
        return self._behaviours.delivering.lease(n, lease_s, group, holder, max_bytes)

    def _give_back(self, leased: list[LeasedMessage]) -> None:
        """Nobody took them. Dead letters stay dead by it, others are ready again."""
        self._behaviours.settling.give_back(leased)
        self._commits.soon(self)

    def ready_hint(self, group: str) -> int:
        with self.core.lock, self.core.change:
            self.core.catch_up()
            return self.core.group(group).waiting.ready

    def settle(self, settlements: Sequence[Settlement]) -> Future[list[Outcome]]:
        outcomes = settle_each(self._behaviours, self._repeats, settlements)
        if any(one.verdict != "ack" for one in settlements):
            self.plan()  # a nack is due again at some time
        return self._durable(outcomes)

    def settle_for(
        self, pending: Pending, settlements: Sequence[Settlement]
    ) -> list[Outcome] | None:
        outcomes = settle_each(self._behaviours, self._repeats, settlements)
        if any(one.verdict != "ack" for one in settlements):
            self.plan()  # a nack is due again at some time
        return self._durable_for(pending, outcomes)

    def run(self, operation: Operation[_T]) -> Future[_T]:
        """Run any other operation; where, and whether its answer waits for the disk, it says."""
        if isinstance(operation, Sync):
            return self._commits.when_durable(self, cast(_T, None))
        work = partial(run, self._behaviours, operation)
        if operation.runs is not Runs.LOOP:
            alone = operation.runs is Runs.ALONE
            return self.in_thread(work, writes=operation.writes, alone=alone)
        events = self.core.ledger.events
        before = events.next_seq
        answer = work()
        if operation.writes or events.next_seq != before:  # leases may have been found to be over
            return self._durable(answer)
        return self._done(answer)

    def bytes(self) -> int:
        """What the logs hold."""
        ledger = self.core.ledger
        return ledger.messages.size_bytes() + ledger.events.size_bytes()

    # -- answering ---------------------------------------------------------------------------------

    def _done(self, result: _T) -> Future[_T]:
        answer: Future[_T] = self._loop.create_future()
        answer.set_result(result)
        return answer

    def _plan_next_of_keys(self) -> None:
        """Whatever ends a message may begin the turn of the next of its key, which has a time."""
        for group in self.core.state.groups.values():
            if group.has_keys:
                self.plan()
                return

    def _durable(
        self, result: _T, on_lost: Callable[[_T], None] | None = None, size: int = 0
    ) -> Future[_T]:
        self._plan_next_of_keys()
        if not self._waits_for_disk:
            return self._done(result)
        return self._commits.when_durable(self, result, on_lost, size)

    def _durable_for(self, pending: Pending, result: _T, size: int = 0) -> _T | None:
        """Return the result if it need not be synced; else None, and `pending` is told."""
        self._plan_next_of_keys()
        if not self._waits_for_disk:
            return result
        self._commits.tell_when_durable(self, pending, result, size)
        return None

    def in_thread(
        self,
        work: Callable[[], _T],
        *,
        writes: bool = False,
        alone: bool = False,
        after: Callable[[], None] | None = None,
    ) -> Future[_T]:
        """What takes long; with `writes`, answered when that is durable.

        `alone`: it holds the queue's lock for long. Other calls wait until it is over, since the
        loop would stand still if they waited for the lock. `after` is called in the loop when the
        thread has ended, also if the caller is cancelled.
        """
        return self._background.run(self._worked(work, writes, alone, after))

    async def _worked(
        self, work: Callable[[], _T], writes: bool, alone: bool, after: Callable[[], None] | None
    ) -> _T:
        with self._kept_open():
            try:
                result = await (self._occupied(work) if alone else asyncio.to_thread(work))
            finally:
                if after is not None:
                    after()
            if writes:
                self.plan()
            return await self._durable(result) if writes else result

    @contextmanager
    def _kept_open(self) -> Iterator[None]:
        """Closing the queue waits until this is over."""
        self._busy += 1
        self._at_rest.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._at_rest.set()

    def _freed(self) -> None:
        """Its time may have come meanwhile."""
        if not self.is_closing:
            self.wake()

    def _occupy(
        self, work: Callable[[], _T], before: Callable[[], None] | None = None
    ) -> "asyncio.Task[_T]":
        return self._background.run(self._occupied(work, before))

    async def _occupied(
        self, work: Callable[[], _T], before: Callable[[], None] | None = None
    ) -> _T:
        """Do something in a thread, in its turn. `before` is called in the loop, in this turn."""
        with self._kept_open():
            async with self.turn:
                if before is not None:
                    before()
                self.is_occupied = True
                try:
                    return await asyncio.to_thread(work)
                finally:
                    self.is_occupied = False
                    self._loop.call_soon(self._freed)


def _is_small(item: "bytes | Draft") -> bool:
    return len(item if isinstance(item, bytes) else item.payload) <= LARGE_BYTES


def _is_delayed(message: Publishable) -> bool:
    return isinstance(message, NewMessage) and (
        message.delay is not None or message.deliver_at is not None
    )


class ClosedStats(NamedTuple):
    """The counts of a queue when it was closed."""

    stats: Stats
    mono_ns: int

    def at(self, mono_ns: int) -> Stats:
        """The same now: only what is ready got older."""
        age_s = self.stats.oldest_ready_age_s
        if self.stats.ready:
            age_s += (mono_ns - self.mono_ns) / NS
        return self.stats._replace(oldest_ready_age_s=age_s)


class _NotHere:
    """A leased message of a broker is settled by its receipt."""

    def ack(self, leased: LeasedMessage, /) -> None:
        raise TypeError("settle it with Broker.settle and its receipt")

    def nack(self, leased: LeasedMessage, /, reason: str = "") -> None:
        raise TypeError("settle it with Broker.settle and its receipt")
