"""The core of an open queue: state, logs, lock and clock, and the only way to change them.

    events = decide(state, command, now)      # decisions.py, called by the behaviours
    log.append(events); state.apply(events)   # `record`, under the lock

The log is the truth. A call that is interrupted between the two leaves the state marked as torn,
and the next call folds the state from the log first.

The behaviours (publishing, delivering, settling, inspecting, operating) work on this core and hold
its lock. Nothing here waits for the disk: the caller waits, as a thread or a task, after the lock
is released.
"""

import logging
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition
from typing import Any

from penstock.clock import Clock, SteadyClock
from penstock.codec import Draft, Entry, make_id
from penstock.errors import (
    EntryGone,
    LedgerError,
    LedgerStopped,
    NoSuchGroup,
    NoSuchMessage,
    PenstockError,
)
from penstock.ledger import Ledger, read_entry
from penstock.ledger.files import watch_fork
from penstock.locks import RLock
from penstock.model import MAIN_GROUP_NAME, NS, Message
from penstock.names import check_name
from penstock.queue.after import id_text
from penstock.queue.attributes import MAX_ATTEMPTS
from penstock.queue.compaction import BackgroundCompaction, Compacting
from penstock.queue.decisions import (
    decide_dependents,
    decide_due,
    decide_excess_dead,
    decide_expired_keyed,
)
from penstock.queue.events import MAIN_GROUP, MAX_RUNS, Event, EventType, encode, in_parts
from penstock.queue.firing import Firing
from penstock.queue.fold import (
    MOVES_A_GROUP,
    feed_lagging_groups,
    fold,
    leave_out_what_was_lost,
)
from penstock.queue.group import Group
from penstock.queue.group_after import free_after
from penstock.queue.limits import Limits
from penstock.queue.messages import EntryReader, MessageReader, NearbyMessages, to_message
from penstock.queue.metrics import Metrics
from penstock.queue.retry import Backoff, FailedAttempt, RetryPolicy, retry_delay_ns
from penstock.queue.schedule import NEVER_NS
from penstock.queue.schedule_timer import ScheduleTimer
from penstock.queue.settings import QueueSettings
from penstock.queue.snapshot import LARGE_BYTES, Frozen, SnapshotSaver, freeze_state
from penstock.queue.state import NOTED_TAGS, NOTED_TENANT, QueueState

logger = logging.getLogger("penstock.queue")

_PLAIN_PER_EVENT = 25  # plain messages that are skipped in the time of replaying one event
_DUE_TIMES = 256
_BYTES_PER_EVENT = 128  # bytes of a snapshot that are saved in that time
MOST_NOTED = 512  # messages with options that are written before the state is fed
_COUNT = re.compile(r"count=(\d+)")


class QueueClock(SteadyClock):
    """Unix time that never goes back, over a clock that may."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock.monotonic_ns, clock.now_ns)
        self.monotonic_ns = clock.monotonic_ns
        self.wait = clock.wait


class QueueCore:
    """An open queue without its facade."""

    def __init__(
        self,
        ledger: Ledger,
        settings: QueueSettings,
        clock: QueueClock,
        *,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self.ledger = ledger
        self.settings = settings
        self.clock = clock
        self.identity = ledger.identity
        self.lock = RLock()
        self.torn = False  # the state is being changed, or a change of it was interrupted
        self.change = Change(self)
        self.arrival = Condition(self.lock)
        self.waiting_threads = 0
        self.listeners: list[Callable[[], None]] = []  # of asyncio waiters
        self.before_close: list[Callable[[], None]] = []  # of open streams: to give back
        self.metrics = Metrics()
        self.compacting = Compacting(self)
        self.background_compaction: BackgroundCompaction | None = None
        self._backoff = Backoff(settings, self.identity)
        self._retry_policy = retry_policy or self._backoff
        self._a_group_lags = False  # was moved, and has not read everything from there on
        self.limits = Limits.of(settings)
        has_tenants = self.limits is not None and self.limits.has_tenants
        # Of messages to feed to the state.
        self.notes = ledger.messages.keep_notes(NOTED_TAGS | (NOTED_TENANT if has_tenants else 0))
        self.state = self._fold()
        self.evicted_logged = self.state.dedup.evicted  # number of evictions that were logged
        self._next_log_ns = 0
        if not ledger.is_stopped:
            leave_out_what_was_lost(ledger, self.state)
        self.state.rebase(clock.now_ns(), clock.monotonic_ns())
        self.main = self.state.groups[MAIN_GROUP]
        self._bounds_dead = bool(settings.dead_max_messages or settings.dead_max_bytes)
        self._discards_dead = self._bounds_dead or settings.dead_retention_s > 0
        self.level_ns = round(settings.starvation_after_s * NS)
        self.reader = EntryReader(ledger.messages)
        self._due_times: dict[int, int] = {}  # of messages that were looked at lately
        self._failed_reader = EntryReader(ledger.messages)  # of messages whose attempts are counted
        self.messages = MessageReader(ledger.messages, self.identity)
        self.nearby_messages = NearbyMessages(ledger.messages, self.identity)
        self._group_messages: dict[int, MessageReader] = {}
        self.saver = SnapshotSaver(ledger.save_snapshot, ledger.path)
        if settings.dead_max_bytes:
            for group in self.state.groups.values():
                self._weigh_dead(group, [s for s, one in group.deliveries.items() if one.cause])
        self.saves_in_thread = False  # small snapshots as well
        self.firing = Firing(self)
        self.schedule_timer: ScheduleTimer | None = None
        self.follows_others = False  # messages may come after those of other queues
        self._snapshot_at = self._progress()
        self._plan_snapshot(settings.storage.snapshot_every)
        if self.state.differs_from_log and not ledger.is_stopped:
            self.snapshot()  # so that the event that was passed over is never read again
        if self.main.dependencies.touched and not ledger.is_stopped:
            self.settle_dependents()  # a crash came between a failure and what it leads to
        watch_fork(self)

    def compact_in_background(self, interval_s: float) -> None:
        """Compact after snapshots, if `auto_compact` is set, and at an interval (0: none)."""
        if (self.settings.storage.auto_compact or interval_s) and not self.ledger.read_only:
            self.background_compaction = BackgroundCompaction(
                lambda: self.compacting.compact(seals=False),
                self.ledger.path,
                clock=self.clock,
                interval_s=interval_s,
            )

    def fire_in_background(self) -> None:
        """Publish the messages of schedules when they are due, in a thread."""
        if not self.ledger.read_only:
            self.schedule_timer = ScheduleTimer(self)
            self.schedules_changed()

    def schedules_changed(self) -> None:
        """After a schedule was put, paused, resumed or removed: sleep until the next one is due."""
        if self.schedule_timer is not None and self.state.schedules:
            self.schedule_timer.ask()

    def forked(self) -> None:
        """In a forked child, free the lock: a thread that does not exist there may hold it.

        The ledger refuses everything from then on. The lock stays the same object: others know it.
        """
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]

    def _fold(self) -> QueueState:
        return fold(
            self.ledger,
            dedup_entries=self.settings.dedup_entries,
            result_entries=self.settings.result_entries,
            limits=self.limits,
        )

    def log_evicted(self) -> None:
        """Log, once a minute at most, that dedup ids are forgotten early. Caller holds the lock."""
        mono_ns = self.clock.monotonic_ns()
        if mono_ns < self._next_log_ns:
            return
        evicted = self.state.dedup.evicted
        logger.warning(
            "%s: %d dedup ids were forgotten before the end of their windows, the oldest first: "
            "raise dedup_entries (%d) or result_entries (%d), or shorten the windows",
            self.ledger.path,
            evicted - self.evicted_logged,
            self.settings.dedup_entries,
            self.settings.result_entries,
        )
        self.evicted_logged, self._next_log_ns = evicted, mono_ns + 60 * NS

    def has_ended(self, seq: int) -> bool:
        """Return whether a message is done, dead or removed in group `main`."""
        delivery = self.main.deliveries.get(seq)
        return self.main.is_settled(seq) if delivery is None else bool(delivery.cause)

    def mend(self) -> None:
        """Fold the state from the logs after an interrupted change. Caller holds the lock.

        The state stays marked as torn: an interrupt in here makes the next call begin again.
        """
        self.ledger.check_open()
        state = self._fold()
        state.rebase(self.clock.now_ns(), self.clock.monotonic_ns())
        self.forget_read_ahead()
        self._a_group_lags = False
        self.state, self.main = state, state.groups[MAIN_GROUP]
        if self.main.dependencies.touched and not self.ledger.is_stopped:
            self.settle_dependents()

    # -- time --------------------------------------------------------------------------------------

    def now(self) -> int:
        """Return the time, and tell the state the monotonic time. Caller holds the lock."""
        now_ns, self.state.moment.mono_ns = self.clock.read()
        return now_ns

    def tick(self) -> int:
        """Promote due messages, expire leases and messages with keys, publish the messages of
        schedules. Return the time. Caller holds the lock."""
        self.ledger.check_open()
        now_ns, mono_ns = self.clock.read()
        state = self.state
        state.moment.mono_ns = mono_ns
        self.catch_up()
        events: list[Event] = []
        for group in state.groups.values():
            if group.fair is not None:
                group.fair.wake(now_ns)
            if group.is_quiet(now_ns, mono_ns) and not (self._discards_dead and group.dead):
                continue
            group.waiting.promote(now_ns)
            events += decide_due(
                group,
                self.settings,
                now_ns,
                mono_ns,
                max_attempts=self.max_attempts_of,
                retry_delay=self.retry_delay,
            )
        if events and not self.ledger.is_stopped:  # a reader leaves it to the writer
            self.record(events)
            state.promote(now_ns)  # without a backoff, a message is ready again at once
        # Afterwards: a message whose lease has ended waits again, and may have expired.
        for group in tuple(state.groups.values()):
            if group.expiries.next_ns <= now_ns and not self.ledger.is_stopped:
                self.record(decide_expired_keyed(group, now_ns))
        if state.schedules and not self.ledger.is_stopped:
            self.firing.fire(now_ns)
        if self.main.dependencies.touched and not self.ledger.is_stopped:
            self.settle_dependents()
        return now_ns

    def has_more_due(self, most: int) -> bool:
        """Return whether a tick would end more than `most` leases of a group, promote more than
        `most` of its delayed messages, or expire more than `most` with keys. Caller holds the
        lock."""
        now_ns, mono_ns = self.clock.read()
        return any(
            group.lease_ends.are_more_overdue(most, mono_ns)
            or group.waiting.timetable.has_more_upto(now_ns, most)
            or group.expiries.has_more_upto(now_ns, most)
            for group in self.state.groups.values()
        )

    def retry_delay(self, failed: FailedAttempt) -> int | None:
        """Return the nanoseconds until the next attempt, or None for a dead letter."""
        return retry_delay_ns(self._retry_policy, self._backoff, failed)

    def _weigh_dead(self, group: Group, seqs: Iterable[int]) -> None:
        for seq in seqs:
            try:
                group.weigh_dead(seq, read_entry(self.ledger.messages, seq).size)
            except EntryGone:
                pass  # takes no space

    def _bound_dead(self, events: Sequence[Event]) -> None:
        """After events: keep the dead letters of each group within the bounds."""
        settings = self.settings
        excess: list[Event] = []
        for event in events:
            group = self.state.groups.get(event.group)
            if event.type is EventType.DEAD and group and settings.dead_max_bytes:
                self._weigh_dead(group, event.seqs)
        for group in self.state.groups.values():
            excess += decide_excess_dead(group, settings.dead_max_messages, settings.dead_max_bytes)
        if not excess:
            return
        try:
            self.record(excess)
        except LedgerStopped:
            raise
        except LedgerError as error:  # the disk is full, say; the events themselves are recorded
            logger.warning("dead letters of %s stay beyond the bound: %s", self.ledger.path, error)

    def check_published(self, id_: str, seq: int, milliseconds: int) -> None:
        """Raise NoSuchMessage if no message with that id was published. Caller holds the lock.

        One that retention removed cannot be told from another of that seq: it counts as published.
        """
        try:
            timestamp_ns = self.reader.look(seq).timestamp_ns
        except EntryGone:
            return
        if timestamp_ns // 1_000_000 != milliseconds:
            raise NoSuchMessage(f"after names {id_}, which was never published")

    def free_after(self, group: Group, seq: int) -> None:
        """After the event of a message that is done, on the fast path: let go what comes after it.
        Caller holds the lock."""
        free_after(group, (seq,), self.ledger.events.last_timestamp_ns)
        if group.dependencies.touched:
            self.settle_dependents()

    def settle_dependents(self) -> None:
        """Record what the end of messages means for those that come after them. Caller holds the
        lock."""
        dependencies = self.main.dependencies
        while dependencies.touched:
            events = decide_dependents(self.main, self.name_of)
            if not events:
                dependencies.touched.clear()  # nothing is left to decide
                return
            self._record(events)

    def name_of(self, earlier: int | bytes) -> str:
        """Return the id of a message, or its seq if it was removed."""
        if isinstance(earlier, bytes):
            return id_text(earlier)
        try:
            timestamp_ns = read_entry(self.ledger.messages, earlier).timestamp_ns
        except EntryGone:
            return f"message {earlier}"
        return make_id(timestamp_ns, self.identity, earlier)

    def next_wake_ns(self) -> int | None:
        """Return the nanoseconds until a message is due, a lease ends, a message with a key
        expires, a rate lets a message go or a schedule runs. Caller holds the lock."""
        self.catch_up()
        now_ns, mono_ns = self.clock.now_ns(), self.clock.monotonic_ns()
        left = []
        for group in self.state.groups.values():
            due_ns, end_ns = group.waiting.next_due_ns(), group.lease_ends.next_ns()
            left += [due_ns - now_ns] if due_ns is not None else []
            left += [end_ns - mono_ns] if end_ns is not None else []
            expires_ns = group.expiries.next_ns
            left += [expires_ns - now_ns] if expires_ns != NEVER_NS else []
            free_ns = None if group.gate is None else group.next_free_ns(now_ns)
            left += [free_ns - now_ns] if free_ns is not None else []
        if self.state.schedules and not self.ledger.is_stopped:
            left += self.firing.wake_after_ns(now_ns)
        return max(min(left), 0) if left else None

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Count a thread that tries and waits. Caller holds the lock.

        Enter before the first try: a publisher without the lock must know of the waiting thread.
        """
        self.waiting_threads += 1
        try:
            yield
        finally:
            self.waiting_threads -= 1

    def wait(self, timeout_ns: int) -> None:
        """Wait for an arrival, a due message or the end of a lease. Within `expecting`."""
        wake_ns = self.next_wake_ns()
        timeout_ns = timeout_ns if wake_ns is None else min(timeout_ns, wake_ns)
        self.torn = False  # others use the state meanwhile
        try:
            self.clock.wait(self.arrival, timeout_ns / 1e9)
        finally:
            # Interrupted right after it released the lock, a condition does not acquire it again.
            if not self.lock._is_owned():  # type: ignore[attr-defined]
                self.lock.acquire()
        if self.torn:
            self.mend()
        self.torn = True

    def interrupted(self) -> None:
        """Mark the state as torn: an exception came, perhaps in the middle of a change."""
        self.torn = True
        self.arrived()  # waiting threads must look again

    def arrived(self) -> None:
        """Wake threads and tasks that wait for a change."""
        if self.waiting_threads:
            with self.lock:
                self.arrival.notify_all()
        for listener in tuple(self.listeners):
            listener()

    # -- writing -----------------------------------------------------------------------------------

    def record(self, events: Sequence[Event]) -> None:
        """Write events, all or none, and apply them. Caller holds the lock."""
        if not events:
            return
        self._record(events)
        if self.main.dependencies.touched:
            try:
                self.settle_dependents()
            except LedgerStopped:
                raise
            except LedgerError as error:  # the events themselves are recorded; a tick tries again
                logger.warning("messages of %s stay blocked: %s", self.ledger.path, error)

    def _record(self, events: Sequence[Event]) -> None:
        log = self.ledger.events
        if any(len(event.runs) > MAX_RUNS for event in events):
            events = [part for event in events for part in in_parts(event)]
        if len(events) == 1:
            event_seq = log.append_event(events[0].type, encode(events[0]))
        else:
            event_seq = log.append_batch([Draft(encode(event), event.type) for event in events])
        timestamp_ns = log.last_timestamp_ns
        for number, event in enumerate(events, event_seq):
            self.state.apply(event.recorded(timestamp_ns, number))
            self._a_group_lags |= event.type in MOVES_A_GROUP
        if self._a_group_lags:
            self._feed_lagging_groups()
        if self._bounds_dead:
            self._bound_dead(events)
        self.recorded()

    def recorded(self) -> None:
        """After each record: wake waiters, and save the state if a snapshot is due."""
        if self.waiting_threads or self.listeners:
            self.arrived()
        if self.ledger.events.next_seq >= self.snapshot_event:
            self.snapshot_if_due()

    def catch_up(self) -> None:
        """Feed the state the messages that were published without the lock."""
        if self._a_group_lags:
            self._feed_lagging_groups()
        upto, noted = self.notes.take()
        if self.state.ingested_upto < upto:
            self.state.publish_noted(upto, noted)
            self.weigh(len(noted))

    def attend(self) -> None:
        """After messages were published without the lock: feed the state if there are many, and
        save it if a snapshot is due. Plain messages alone need no lock."""
        if len(self.notes) < MOST_NOTED // 2 and not self.has_snapshot_due:
            self._plan_attention()
            return
        with self.lock, self.change:
            self.catch_up()
            self._plan_attention()
            if self.has_snapshot_due:
                self.snapshot_if_due()

    def _plan_attention(self) -> None:
        self.attention_seq = min(self.ledger.messages.next_seq + MOST_NOTED, self.snapshot_seq)

    def _feed_lagging_groups(self) -> None:
        """Feed groups that were moved. If it fails, the next call tries again."""
        feed_lagging_groups(self.ledger, self.state)
        self._a_group_lags = False

    # -- reading -----------------------------------------------------------------------------------

    def group(self, name: str = MAIN_GROUP_NAME) -> Group:
        """Return a consumer group. Raise NoSuchGroup if there is none of that name."""
        if name == MAIN_GROUP_NAME:
            return self.state.groups[MAIN_GROUP]
        group = self.state.group_named(name)
        if group is None:
            check_name("group", name)
            raise NoSuchGroup(f"there is no group {name!r}; create it first")
        return group

    def in_order(
        self, group: Group, now_ns: int, skipped: Container[int] = frozenset()
    ) -> Iterator[int]:
        """Yield the ready messages of a group in the order of their delivery, as far as limits of
        tenants let them go now. The caller counts for the limits of the queue (`Group.room`).

        The caller may add a yielded message to `skipped`: it does not count for any limit.
        """
        return group.waiting.in_order(
            self.published_ns, self.due_ns, now_ns=now_ns, level_ns=self.level_ns, skipped=skipped
        )

    def max_attempts_of(self, seq: int) -> int:
        """Return the maximum number of attempts of a message. Caller holds the lock."""
        try:
            return self.max_attempts_in(self._failed_reader.look(seq))
        except EntryGone:
            return self.settings.max_attempts

    def max_attempts_in(self, entry: Entry) -> int:
        """Return the maximum number of attempts of the message in an entry."""
        own = entry.attributes.get(MAX_ATTEMPTS) if entry.attributes else None
        return int.from_bytes(own, "little") if own else self.settings.max_attempts

    def published_ns(self, seq: int) -> int:
        """Return when a message was published; 0 if it was removed, so that it sorts first."""
        try:
            return self.reader.look(seq).timestamp_ns
        except EntryGone:
            return 0

    def due_ns(self, seq: int) -> int:
        """Return since when a message that was never leased has been ready."""
        due_ns = self._due_times.get(seq)
        if due_ns is not None:
            return due_ns
        try:
            entry = self.reader.look(seq)
        except EntryGone:
            return 0
        if len(self._due_times) >= _DUE_TIMES:
            self._due_times.clear()
        due_ns = self._due_times[seq] = max(entry.timestamp_ns, entry.deliver_at_ns)
        return due_ns

    def messages_of(self, group: Group) -> MessageReader:
        """Return the reader of a group's plain messages: each group has a position of its own."""
        if group.number == MAIN_GROUP:
            return self.messages
        reader = self._group_messages.get(group.number)
        if reader is None:
            reader = MessageReader(self.ledger.messages, self.identity)
            self._group_messages[group.number] = reader
        return reader

    def forget_read_ahead(self) -> None:
        """Drop what was read ahead: segments or the state have changed."""
        self.reader.forget()
        self._due_times.clear()
        self._failed_reader.forget()
        self.messages.forget()
        self.nearby_messages.forget()
        self._group_messages.clear()

    def message(self, entry: Entry) -> Message:
        return to_message(entry, self.identity, self.settings.max_unpacked_bytes)

    # -- snapshots ---------------------------------------------------------------------------------

    def _progress(self) -> int:
        return self.ledger.events.next_seq + self.ledger.messages.next_seq

    def _plan_snapshot(self, every: int) -> None:
        self.snapshot_event = self.ledger.events.next_seq + every
        self.snapshot_seq = self.ledger.messages.next_seq + every * _PLAIN_PER_EVENT
        self._plan_attention()  # a call that publishes a message behind it attends to the state

    def weigh(self, count: int) -> None:
        """Count published messages with options: replaying one takes as long as an event."""
        self.snapshot_event -= count

    @property
    def has_snapshot_due(self) -> bool:
        """Whether enough was written since the last snapshot."""
        log = self.ledger
        return (
            log.events.next_seq >= self.snapshot_event or log.messages.next_seq >= self.snapshot_seq
        )

    def snapshot_if_due(self) -> None:
        """Save the state if enough was written since. A failure is logged, not raised."""
        with self.lock, self.change:
            log = self.ledger
            if not self.has_snapshot_due:
                return
            try:
                self._snapshot_beside()
            except LedgerStopped:
                raise
            except LedgerError as error:  # the disk is full, say
                logger.warning("no snapshot of %s was saved: %s", log.path, error)
                self._plan_snapshot(self.settings.storage.snapshot_every)
            if self.background_compaction is not None and self.settings.storage.auto_compact:
                self.background_compaction.ask()

    def freeze(self) -> tuple[int, Frozen]:
        """Return the last event and a copy of the state, for `saver`. Caller holds the lock."""
        self.catch_up()
        first = self.main.waiting.first_fresh
        self.ledger.summary["read_message_id"] = first or self.ledger.messages.next_seq
        frozen = freeze_state(self.state)
        # A large state is saved less often, so that saving it is never most of the work.
        self._plan_snapshot(
            max(self.settings.storage.snapshot_every, frozen.size // _BYTES_PER_EVENT)
        )
        return self.ledger.events.next_seq - 1, frozen

    def snapshot(self) -> None:
        """Save the state, so that opening is quick. Caller holds the lock."""
        progress = self._progress()
        self.saver.save(*self.freeze())
        self._snapshot_at = progress

    def _snapshot_beside(self) -> None:
        """Save the state, in a thread if it is large. Caller holds the lock."""
        if self.saver.is_busy:
            self._plan_snapshot(self.settings.storage.snapshot_every)
            return
        progress = self._progress()
        event_seq, frozen = self.freeze()

        def saved() -> None:
            self._snapshot_at = progress

        if self.saves_in_thread or frozen.size >= LARGE_BYTES:
            self.saver.save_in_thread(event_seq, frozen, saved)
        else:
            self.saver.save(event_seq, frozen)
            saved()

    def close(self) -> None:
        """Save the state and close the files. After an interrupt, call it again."""
        if self.schedule_timer is not None:
            self.schedule_timer.end()
        if self.background_compaction is not None:
            self.background_compaction.end()
        self.saver.end()
        with self.lock:
            try:
                # A signal handler may close the queue in the middle of a change.
                if not self.ledger.is_stopped and depth_of(self.lock)() == 1:
                    with self.change:
                        for give_back in tuple(self.before_close):
                            give_back()
                        if not self.ledger.is_stopped and self._progress() > self._snapshot_at:
                            self.snapshot()
            except LedgerError as error:  # only the next open takes longer
                logger.warning("no snapshot of %s was saved: %s", self.ledger.path, error)
            finally:
                self.ledger.close()
                self.arrived()


# -- changes that survive an interrupt -------------------------------------------------------------


class Change:
    """One use of the state: `with core.lock, core.change: …`.

    An asynchronous exception (`KeyboardInterrupt`, a time limit) may end a call between any two
    steps. The log is then right, and memory may be half changed. So `Change` marks the state as
    torn on the way in and as whole on the way out, and folds a torn state from the log before
    anything else happens. Nothing is saved from a torn state. Both halves of the `with` matter:
    the lock is one that no interrupt leaves acquired (`penstock.locks`).
    """

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._depth = depth_of(core.lock)

    def __enter__(self) -> None:
        core, depth = self._core, self._depth
        if depth() == 1:
            if core.torn:
                core.mend()
            core.torn = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        core, depth = self._core, self._depth
        if depth() > 1:
            return
        # Our own errors are raised before a change, or after it. Others may come anywhere.
        if kind is None or issubclass(kind, PenstockError):
            core.torn = False
        else:
            core.arrived()  # waiting threads must look again


def depth_of(lock: Any) -> Callable[[], int]:
    """Return a function that tells how many times its caller, who holds the lock, acquired it.

    >>> lock = RLock()
    >>> with lock, lock:
    ...     depth_of(lock)()
    2
    """
    if hasattr(lock, "_recursion_count"):
        return lock._recursion_count  # type: ignore[no-any-return]
    return lambda: depth_in(repr(lock))  # Python before 3.11.6, and 3.12.0


def depth_in(text: str) -> int:
    """Return the depth in the text of a lock.

    >>> depth_in("<locked _thread.RLock object owner=139 count=2 at 0x7f>")
    2
    """
    found = _COUNT.search(text)
    assert found is not None, text
    return int(found[1])
