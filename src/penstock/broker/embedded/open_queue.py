"""An open queue: the behaviours of the queue layer, answered when durable.

Everything is called in the event loop. Long work (a search through the log, a compaction) runs in
a thread.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.broker.embedded.queue_files import QueueFiles
from penstock.broker.embedded.queue_threads import QueueThreads
from penstock.broker.embedded.settling import Repeats, settle_each
from penstock.broker.embedded.wakeups import MOST_DUE_IN_LOOP, QUIET_S, Wakeups
from penstock.broker.limits import LARGE_BYTES, is_heavy
from penstock.broker.store import (
    Outcome,
    Pending,
    Publishable,
    QueueInfo,
    QueueSample,
    Settlement,
    payload_bytes,
)
from penstock.codec import Draft
from penstock.errors import LedgerError, Unavailable
from penstock.ledger.ledger import PendingSync
from penstock.model import (
    MAIN_GROUP_NAME,
    NS,
    LeasedMessage,
    Message,
    NewMessage,
    Published,
    Receipt,
    Stats,
    TypedPayload,
)
from penstock.names import QueueName
from penstock.operations import Browse, LeaseMessage, Operation, Page, Runs, Sync
from penstock.queue.behaviours import Behaviours, as_new
from penstock.queue.core import QueueCore
from penstock.queue.operation_handlers import browse_quickly, run
from penstock.queue.publishing import typed_draft
from penstock.queue.schedule import NEVER_NS

if TYPE_CHECKING:
    from penstock.broker.background import Background
    from penstock.broker.embedded.commit_loop import CommitLoop, HeldResult
    from penstock.broker.embedded.timer import Timer
    from penstock.ledger import sync_pool

_T = TypeVar("_T")
_new_tuple = tuple.__new__  # a named tuple without a call of Python code
_STAYS_LARGE_S = 10.0  # after a large lease or page, the next ones run in a thread for this long
_SYNC_LEASES_S = 0.01  # leases that were handed over are on disk by then, and one sync


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
        core.follows_others = True  # the broker sees to it
        self._behaviours = Behaviours(core, _NotHere())
        self.files = QueueFiles(core, self.in_thread)
        self.threads = QueueThreads(background, on_free=lambda: self.wakeups.wake())
        self.wakeups = Wakeups(
            name, core, timer, self.threads, on_ready, sync_soon=lambda: commits.soon(self)
        )
        self._commits = commits
        self._timer = timer
        self._loop = asyncio.get_running_loop()
        self._waits_for_disk = core.settings.storage.sync == "always"
        publishing = self._behaviours.publishing
        self._publish_plain = publishing.publish_plain
        self._drafts = publishing.drafts
        fast_path = self._behaviours.fast_path
        self._lease_plain, self._ack_receipt = fast_path.lease, fast_path.ack_receipt
        self._first_end_s = 0.0  # see `_plan_end_of_lease`
        # Longer payloads are published in a thread.
        self._direct_bytes = min(self._behaviours.max_plain_bytes, LARGE_BYTES)
        plain = publishing.plain_is_enough
        self._blocks = core.settings.when_full == "block" and not plain
        self._is_sync_planned = False
        self._syncing_upto = 0  # the last round of syncs covers the messages below it
        self._repeats = repeats
        self._background = background
        self._large_until_s = 0.0  # until then, leases run in a thread
        self._largest_bytes = 0  # the largest payload leased in that time
        self._slow_until_s = 0.0  # until then, searches run in a thread
        self._blocked: set[asyncio.Event] = set()  # of publishers waiting for room
        self._last_sample: QueueSample | None = None
        self._sampled = (0, 0), 0  # the ends of the logs then, and the time
        self.used_at = self._loop.time()

    @property
    def info(self) -> QueueInfo:
        ledger = self.core.ledger
        return QueueInfo(self.name, ledger.identity, ledger.created_at_ns, self.core.settings)

    def syncs(self) -> list[Callable[[], None]]:
        """Return the syncs of both logs, for the commit loop."""
        self._syncing_upto = self.core.ledger.messages.next_seq
        return self.core.ledger.syncs()

    def begin_sync(self) -> PendingSync | None:
        """Begin a sync of both logs, for a committer; see `Ledger.begin_sync`."""
        pending = self.core.ledger.begin_sync()
        if pending is not None:
            self._syncing_upto = self.core.ledger.messages.next_seq
        return pending

    def start_sync(self, pool: "sync_pool.SyncPool", pending: PendingSync) -> bool:
        """Sync both logs in the background; see `Ledger.start_sync`."""
        self._syncing_upto = self.core.ledger.messages.next_seq
        return self.core.ledger.start_sync(pool, pending)

    def is_free(self) -> bool:
        """Return whether a call may run in the loop now. If not, wait for its turn, and ask again.

        Each call on the fast path asks. Usually so few are leased, scheduled or about to expire
        that not many can be due, whatever the time is.
        """
        wakeups = self.wakeups
        if self.threads.is_occupied or wakeups.is_ticking:
            return False
        for group in self.core.state.groups.values():
            if (
                len(group.leases) > MOST_DUE_IN_LOOP
                or group.waiting.scheduled > MOST_DUE_IN_LOOP
                or (group.expiries.next_ns != NEVER_NS and len(group.expiries) > MOST_DUE_IN_LOOP)
            ):
                return wakeups.is_free()
        return True

    @property
    def is_in_use(self) -> bool:
        """Return whether the queue must stay open: leases, delays and schedules need its timer."""
        if self.wakeups.watchers or self.threads.is_busy or self.threads.is_occupied:
            return True
        core = self.core
        if len(core.notes) and not core.ledger.is_stopped:  # one may be delayed
            with core.lock, core.change:
                core.catch_up()
        if core.state.schedules and not core.ledger.is_stopped:
            with core.lock, core.change:
                if core.firing.has_active:
                    return True
        groups = core.state.groups.values()
        return any(group.leases or group.waiting.scheduled for group in groups)

    def expect_slow_reads(self) -> None:
        """For some seconds, read messages in threads: they are far away."""
        self._large_until_s = self._slow_until_s = self._loop.time() + _STAYS_LARGE_S

    @property
    def sync_within_s(self) -> float | None:
        """Return how soon writes must be on disk if no call waits for it; None: no limit."""
        storage = self.core.settings.storage
        return storage.sync_interval_s if storage.sync in ("batch", "interval") else None

    async def finished(self) -> None:
        """Wait until all running calls are answered. New calls are not allowed."""
        self.threads.is_closing = True
        for changed in self._blocked:
            changed.set()  # stop waiting for room
        await self.threads.finished()
        if not self.core.ledger.is_stopped:
            await self._commits.when_durable(self, None)

    def stats(self) -> Stats:
        return self._behaviours.inspecting.stats()

    def sample(self) -> QueueSample | None:
        """Return the counts; those of the last time, or None, if it cannot answer at once.

        Counts are read again only if a log grew since, or messages are due: 1 µs instead of 40.
        """
        core, last = self.core, self._last_sample
        if self.threads.is_closing or not self.is_free():
            return last
        ledger, mono_ns = core.ledger, core.clock.monotonic_ns()
        ends = ledger.messages.next_seq, ledger.events.next_seq
        is_same = last is not None and self._sampled[0] == ends
        if is_same and not any(one.waiting.scheduled for one in core.state.groups.values()):
            assert last is not None
            return last._replace(passed_s=(mono_ns - self._sampled[1]) / NS)
        try:
            stats = self.stats()
        except LedgerError:
            return last
        if ledger.events.next_seq != ends[1]:
            self._commits.soon(self)  # leases that ran out
        self._sampled = (ends[0], ledger.events.next_seq), mono_ns
        opened = stats if last is None else last.opened
        metrics = core.metrics
        self._last_sample = QueueSample(self.name, stats, metrics.wait, metrics.work, opened)
        return self._last_sample

    # -- messages ----------------------------------------------------------------------------------

    def publish(self, messages: Sequence[Publishable]) -> Future[list[Published]]:
        id_ = self._publish_one(messages[0]) if len(messages) == 1 else None
        if id_ is not None:
            published = [Published(id_)]
            if self._waits_for_disk:
                return self._commits.when_durable(self, published)
            return self._done(published)
        if self._blocks:
            return asyncio.ensure_future(self._publish_when_room(as_new(messages)))
        if is_heavy(messages):
            return self.in_thread(lambda: self._publish(messages), writes=True, alone=True)
        published = self._publish(messages)
        if any(map(_needs_timer, messages)):
            self.wakeups.plan()
        return self._durable(published)

    def publish_for(
        self, pending: Pending, messages: Sequence[Publishable]
    ) -> list[Published] | Future[list[Published]] | None:
        id_ = self._publish_one(messages[0]) if len(messages) == 1 else None
        if id_ is not None:
            published = [_new_tuple(Published, (id_, False))]
            if not self._waits_for_disk:
                return published
            self._commits.tell_when_durable(self, pending, published)
            return None
        if self._blocks or is_heavy(messages):
            return self.publish(messages)
        published = self._publish(messages)
        if any(map(_needs_timer, messages)):
            self.wakeups.plan()
        return self._durable_for(pending, published)

    def publish_together(self, pending: Pending, messages: Sequence[Publishable]) -> bool:
        """Publish messages of several callers in one write. `pending` gets their ids.

        Return False, and do nothing, if one of them does not take the fast path.
        """
        items: list[bytes | Draft] = []
        size = 0
        for message in messages:
            item = self._item_of(message)
            if item is None:
                return False
            items.append(item)
            size += len(item) if isinstance(item, bytes) else len(item[0])
        if size > LARGE_BYTES:
            return False
        ids = self._behaviours.publishing.publish_plain_batch(items)
        for item in items:
            if type(item) is Draft:
                self._plan_for(item)
        if self._waits_for_disk:
            self._commits.tell_when_durable(self, pending, ids)
        else:
            pending.succeed(ids)
        return True

    def _publish_one(self, message: Any) -> str | None:
        """Publish a message on the fast path. Return its id; None if that does not apply."""
        item = self._item_of(message)
        if item is None:
            return None
        id_ = self._publish_plain(item)
        if type(item) is Draft:
            self._plan_for(item)
        return id_

    def _plan_for(self, draft: Draft) -> None:
        """Set the timer for what becomes due by a message that was published."""
        if draft[4]:
            self.wakeups.plan_due(draft[4])
        elif draft[3] and draft[5] is not None:
            self.wakeups.plan_due(draft[3])  # it frees its key when it expires

    def _item_of(self, message: Any) -> bytes | Draft | None:
        """Return what the fast path writes for a message; None if it does not apply."""
        kind = type(message)
        if kind is TypedPayload:
            if len(message[0]) <= self._direct_bytes:
                return typed_draft(message)
        elif kind is bytes:
            if len(message) <= self._direct_bytes:
                return cast(bytes, message)
        elif kind is NewMessage and self._drafts is not None and message.dedup_id is None:
            draft = self._drafts.of_message(message)
            if draft is not None and len(draft[0]) <= LARGE_BYTES:
                return draft
        return None

    def _publish(self, messages: Sequence[Publishable]) -> list[Published]:
        """Publish, in the loop or in a thread."""
        publishing = self._behaviours.publishing
        if self._behaviours.all_plain(messages):
            ids = publishing.publish_plain_batch(messages)  # type: ignore[arg-type]
            return [Published(id_) for id_ in ids]
        if self._behaviours.all_typed(messages):
            ids = publishing.publish_typed_batch(messages)  # type: ignore[arg-type]
            return [Published(id_) for id_ in ids]
        return publishing.publish(as_new(messages))

    async def _publish_when_room(self, new: list[NewMessage]) -> list[Published]:
        """Publish when there is room. The wait needs no thread and blocks no other call."""
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
                    published = publishing.publish(new, block_s=0)  # raises QueueFull
                    break
                changed.clear()
                try:
                    async with asyncio.timeout(left_s):
                        await changed.wait()
                except TimeoutError:
                    pass
                if self.threads.is_closing:
                    raise Unavailable(f"queue {self.name} is closing: retry in a moment")
        finally:
            self._blocked.discard(changed)
            self.core.listeners.remove(wake)
        self.wakeups.plan()
        return await self._durable(published)

    async def _try_publish(self, new: list[NewMessage]) -> list[Published]:
        try_publish = self._behaviours.publishing.try_publish
        if is_heavy(new):
            return await self.threads.run(lambda: try_publish(new))
        async with self.threads.turn:
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
        if events.next_seq != before or self.core.limits is not None:
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
        if not leased:
            if events.next_seq != before or self.core.limits is not None:
                self._nothing_leased()
            return leased
        size = self._note_leased(leased, lease_s)
        if not self._waits_for_disk or self._are_durable(leased):
            return leased
        covered = max([one[0][1] for one in leased]) < self._syncing_upto
        self._commits.tell_when_durable(self, pending, leased, size, covered=covered)
        return None

    def lease_one_for(
        self,
        pending: Pending,
        max_bytes: Callable[[], int],
        length_of: Callable[[Message], int] | None = None,
    ) -> list[LeasedMessage] | Future[list[LeasedMessage]] | None:
        if self._large_until_s:
            leased = None
        elif length_of is None:
            leased = self._lease_plain()
        else:
            leased = self._lease_plain(MAIN_GROUP_NAME, 0, "", length_of)
        if leased is None:
            return self.lease_for(
                pending, 1, lease_s=None, group=MAIN_GROUP_NAME, holder="", max_bytes=max_bytes
            )
        answer, message = [leased], leased[0]
        size = len(message[2])
        length_s = None if length_of is None else length_of(message) / NS
        if length_s is None or length_s == self.core.settings.lease_s:
            self._plan_end_of_lease()
            self._plan_next_of_keys()
            if size > LARGE_BYTES:
                self._note_large(answer)
        else:
            self._note_leased(answer, length_s)
        if not self._waits_for_disk or self._are_durable(answer):
            return answer
        covered = message[1] < self._syncing_upto
        self._commits.tell_when_durable(self, pending, answer, size, covered=covered)
        return None

    def _plan_end_of_lease(self) -> None:
        """Set the timer for the end of a lease that begins now and has the usual length.

        Later leases end later. So while a time is planned that was early enough for an earlier
        lease, nothing is to do.
        """
        planned_s = self._timer.planned(self.name)
        if planned_s is None or planned_s > self._first_end_s:
            self._first_end_s = self._loop.time() + self.core.settings.lease_s
            self._timer.plan(self.name, self.core.settings.lease_s)

    def _plan_next_of_keys(self) -> None:
        core = self.core
        if core.main.may_free_others or len(core.state.groups) > 1:
            self.wakeups.plan_next_of_keys()

    def _nothing_leased(self) -> None:
        """Sync the events of a lease without messages: expired messages or leases. Plan when a
        rate lets the next message go."""
        self._commits.soon(self)
        self.wakeups.plan_next_of_keys()

    def _leased(
        self, leased: list[LeasedMessage], lease_s: float | None
    ) -> Future[list[LeasedMessage]]:
        size = self._note_leased(leased, lease_s)
        if not self._waits_for_disk or self._are_durable(leased):
            return self._commits.at_once(leased, size)
        covered = max([one[0][1] for one in leased]) < self._syncing_upto
        return self._commits.when_durable(self, leased, self._give_back, size, covered=covered)

    def _are_durable(self, leased: list[LeasedMessage]) -> bool:
        """Return whether leased messages can be handed over: whether they are on disk.

        The lease itself need not be: a lease that is lost in a crash is a delivery that is
        repeated. It is synced soon, so that its attempt counts and its receipt stays valid.
        """
        durable_next_seq = self.core.ledger.messages.durable_next_seq
        if leased[0][0][1] >= durable_next_seq or (
            len(leased) > 1 and any(one.seq >= durable_next_seq for one in leased)
        ):
            return False
        if not self._is_sync_planned:
            self._is_sync_planned = True
            self._loop.call_later(_SYNC_LEASES_S, self._sync_leases)
        return True

    def _sync_leases(self) -> None:
        self._is_sync_planned = False
        if not self.threads.is_closing and self.core.ledger.events.needs_sync:
            self._commits.soon(self)

    def _note_leased(self, leased: list[LeasedMessage], lease_s: float | None) -> int:
        """Plan the end of the new leases; earlier times are planned already. Return the size of
        the payloads in bytes."""
        self._timer.plan(self.name, self.core.settings.lease_s if lease_s is None else lease_s)
        if lease_s is not None and lease_s < QUIET_S:
            self.wakeups.look_again()
        self.wakeups.plan_next_of_keys()
        size = len(leased[0][0][2]) if len(leased) == 1 else payload_bytes(leased)
        if size > LARGE_BYTES:
            self._note_large(leased)
        return size

    def _note_large(self, leased: list[LeasedMessage]) -> None:
        """Lease in a thread for a while: messages are large."""
        self._large_until_s = self._loop.time() + _STAYS_LARGE_S
        largest = max([len(one.payload) for one in leased])
        self._largest_bytes = max(self._largest_bytes, largest)

    def _is_large(self, group: str, *, dead: bool) -> bool:
        """Return whether a lease is likely to read large messages."""
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
        """Lease in a thread, in this call's turn. The bytes it may read count as held."""
        most = reserved = 0

        def reserve() -> None:
            nonlocal most, reserved
            most, largest = max_bytes(), self._largest_bytes
            reserved = max(min(most, n * largest), largest)  # at least one message is read
            self._commits.held_bytes += reserved

        def give_back(working: Future[list[LeasedMessage]]) -> None:
            self._commits.held_bytes -= reserved
            if working.exception() is None and working.result():
                self._give_back(working.result())

        working = self.threads.run(lambda: lease(most), before=reserve)
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
        """Lease, in the loop or in a thread."""
        if dead:
            return self._behaviours.delivering.lease_dead(n, lease_s, group, holder, max_bytes)
        if n == 1 and lease_s is None and group == MAIN_GROUP_NAME and not holder:
            leased = self._behaviours.fast_path.lease()
            if leased is not None:
                return [leased]
        return self._behaviours.delivering.lease(n, lease_s, group, holder, max_bytes)

    def _give_back(self, leased: list[LeasedMessage]) -> None:
        """Release messages of a cancelled call. Dead letters stay dead, others become ready."""
        self._behaviours.settling.give_back(leased)
        self._commits.soon(self)

    def ready_hint(self, group: str) -> int:
        with self.core.lock, self.core.change:
            self.core.catch_up()
            return self.core.group(group).waiting.ready

    def settle(self, settlements: Sequence[Settlement]) -> Future[list[Outcome]]:
        return self._durable(self._settle(settlements))

    def ack_one_for(self, pending: Pending, receipt: str, read: Receipt) -> list[Outcome] | None:
        if not self._ack_receipt(*read):
            return self.settle_for(pending, [Settlement("ack", receipt)])
        self._repeats.acked_one(receipt)
        outcomes = [_new_tuple(Outcome, (receipt, "done", "", ()))]
        self._plan_next_of_keys()
        if not self._waits_for_disk:
            return outcomes
        self._commits.tell_when_durable(self, pending, outcomes)
        return None

    def settle_for(
        self, pending: Pending, settlements: Sequence[Settlement]
    ) -> list[Outcome] | None:
        return self._durable_for(pending, self._settle(settlements))

    def _settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = settle_each(self._behaviours, self._repeats, settlements)
        for one in settlements:
            if one.verdict != "ack":
                self.wakeups.plan()  # a nacked message may be due later
                break
        return outcomes

    def run(self, operation: Operation[_T]) -> Future[_T]:
        """Run any other operation. Its class says where, and whether the answer must be durable."""
        if isinstance(operation, Sync):
            return self._commits.when_durable(self, cast(_T, None))
        if isinstance(operation, Browse):
            page = self.browse_now(operation, operation.max_bytes)
            if page is not None:
                return self._done(cast(_T, page))
        work = partial(run, self._behaviours, operation)
        if operation.runs is not Runs.LOOP:
            alone = operation.runs is Runs.ALONE
            if operation.writes or operation.is_durable:
                return self.in_thread(work, writes=True, alone=alone)
            return self._background.run(self._looked(work, alone))
        events = self.core.ledger.events
        before = events.next_seq
        answer = work()
        if isinstance(operation, LeaseMessage) and answer:
            self._note_leased(cast(list[LeasedMessage], answer), operation.lease_s)
        has_changed = events.next_seq != before  # leases may have expired
        if operation.writes or operation.is_durable or has_changed:
            return self._durable(answer)
        return self._done(answer)

    def browse_now(self, browse: Browse, max_bytes: int) -> Page | None:
        if self._slow_until_s and self._loop.time() < self._slow_until_s:
            return None
        page = browse_quickly(self._behaviours, browse, max_bytes)
        self._slow_until_s = 0.0 if page is not None else self._loop.time() + _STAYS_LARGE_S
        return page

    def bytes(self) -> int:
        """Return the size of both logs."""
        ledger = self.core.ledger
        return ledger.messages.size_bytes() + ledger.events.size_bytes()

    # -- answering ---------------------------------------------------------------------------------

    def _done(self, result: _T) -> Future[_T]:
        answer: Future[_T] = self._loop.create_future()
        answer.set_result(result)
        return answer

    def _durable(self, result: _T) -> Future[_T]:
        self.wakeups.plan_next_of_keys()
        if not self._waits_for_disk:
            return self._done(result)
        return self._commits.when_durable(self, result)

    def _durable_for(self, pending: Pending, result: _T) -> _T | None:
        """Return the result if it need not be synced; else None, and `pending` gets it later."""
        self.wakeups.plan_next_of_keys()
        if not self._waits_for_disk:
            return result
        self._commits.tell_when_durable(self, pending, result)
        return None

    def in_thread(
        self,
        work: Callable[[], _T],
        *,
        writes: bool = False,
        alone: bool = False,
        after: Callable[[], None] | None = None,
    ) -> Future[_T]:
        """Run long work in a thread. With `writes`, it is answered when durable.

        `alone`: the work holds the queue's lock for long. Other calls wait for their turn, because
        waiting for the lock would block the loop. `after` is called in the loop when the thread
        has ended, even if the caller is cancelled.
        """
        if not writes:
            return self.threads.run(work, alone=alone, after=after)
        return self._background.run(self._written(work, alone, after))

    async def _looked(self, work: Callable[[], _T], alone: bool) -> _T:
        """Look at messages in a thread. If leases ended meanwhile, answer when that is durable:
        a lease that was shown as over stays over."""
        events = self.core.ledger.events

        def noted() -> tuple[_T, bool]:
            before = events.next_seq
            return work(), events.next_seq != before

        with self.threads.kept_open():
            result, has_written = await self.threads.worked(noted, alone=alone)
            return await self._durable(result) if has_written else result

    async def _written(
        self, work: Callable[[], _T], alone: bool, after: Callable[[], None] | None
    ) -> _T:
        with self.threads.kept_open():
            result = await self.threads.worked(work, alone=alone, after=after)
            self.wakeups.plan()
            return await self._durable(result)


def _needs_timer(message: Publishable) -> bool:
    """Return whether it may be due later, or free its key when it expires."""
    return isinstance(message, NewMessage) and (
        message.delay is not None
        or message.deliver_at is not None
        or message.key is not None
        or message.after is not None
    )


class _NotHere:
    """Refuses to settle a leased message itself: a broker settles by receipt."""

    def ack(self, leased: LeasedMessage, /) -> None:
        raise TypeError("settle it by its receipt, with Broker.settle")

    def nack(self, leased: LeasedMessage, /, reason: str = "") -> None:
        raise TypeError("settle it by its receipt, with Broker.settle")
