"""The heart of an open queue: state, logs, lock and clock, and the one way to change them.

    events = decide(state, command, now)      # by the behaviours beside this file
    log.append(events); state.apply(events)   # by `record`, under the lock

The log is the truth. A call that is interrupted between the two leaves the state marked as torn
(see `change.py`), and the next call folds the state from the log first.

Behaviours (publishing, delivering, settling, inspecting, operating) are files of their own; each
works on this core and holds its lock. Waiting for the disk is not done here: whoever called decides
how to wait (a thread blocks, a task awaits), after the lock is released.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, RLock

from penstock.codec import Draft, Entry
from penstock.errors import EntryGone, LedgerError, LedgerStopped, NoSuchGroup
from penstock.ledger import Ledger, read_entry
from penstock.ledger.files import watch_fork
from penstock.model import MAIN_GROUP_NAME, Message
from penstock.queue.change import Change, depth_of
from penstock.queue.events import MAIN_GROUP, MAX_RUNS, Cause, Event, EventType, encode, in_parts
from penstock.queue.fold import (
    MOVES_A_GROUP,
    feed_lagging_groups,
    fold,
    leave_out_what_was_lost,
)
from penstock.queue.group import Group
from penstock.queue.messages import EntryReader, MessageReader, to_message
from penstock.queue.metrics import Metrics
from penstock.queue.queue_clock import QueueClock
from penstock.queue.retry import backoff_ns
from penstock.queue.saving import LARGE_BYTES, SnapshotSaver
from penstock.queue.settings import QueueSettings
from penstock.queue.snapshot import Frozen, freeze_state
from penstock.queue.tags import MAX_ATTEMPTS
from penstock.queue.tidying import Tidying

logger = logging.getLogger("penstock.queue")

_PLAIN_PER_EVENT = 25  # passing over so many plain messages takes as long as replaying an event
_BYTES_PER_EVENT = 128  # saving so many bytes of a snapshot as well


class QueueCore:
    """An open queue without its public face."""

    def __init__(self, ledger: Ledger, settings: QueueSettings, clock: QueueClock) -> None:
        self.ledger = ledger
        self.settings = settings
        self.clock = clock
        self.lock = RLock()
        self.torn = False  # the state is being changed, or a change of it was interrupted
        self.change = Change(self)
        self.arrival = Condition(self.lock)
        self.waiting_threads = 0
        self.listeners: list[Callable[[], None]] = []  # of asyncio waiters
        self.before_close: list[Callable[[], None]] = []  # of open streams: to give back
        self.metrics = Metrics()
        self.tidying: Tidying | None = None
        self._a_group_lags = False  # was moved, and has not read everything from there on
        self.state = fold(ledger, dedup_entries=settings.dedup_entries)
        if not ledger.is_stopped:
            leave_out_what_was_lost(ledger, self.state)
        self.state.rebase(clock.now_ns(), clock.monotonic_ns())
        self.main = self.state.groups[MAIN_GROUP]
        self._bounds_dead = bool(settings.dead_max_messages or settings.dead_max_bytes)
        self._discards_dead = self._bounds_dead or settings.dead_retention_s > 0
        self.reader = EntryReader(ledger.messages)
        self.identity = ledger.identity
        self.messages = MessageReader(ledger.messages, self.identity)
        self.saver = SnapshotSaver(ledger.save_snapshot, ledger.path)
        if settings.dead_max_bytes:
            for group in self.state.groups.values():
                self._weigh_dead(group, [s for s, one in group.flights.items() if one.cause])
        self._snapshot_at = self._progress()
        self._plan_snapshot(settings.snapshot_every)
        if self.state.differs_from_log and not ledger.is_stopped:
            self.snapshot()  # from here on, what was passed over is never looked at again
        watch_fork(self)

    def forked(self) -> None:
        """In a forked child: the lock may be held by a thread that is not there. Let it go.

        The ledger refuses everything from then on. The lock stays the same object: others know it.
        """
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]

    def mend(self) -> None:
        """Fold the state from the logs: a change of it was interrupted. Hold the lock.

        Clears no mark. An interrupt in here leaves the state torn, and the next call begins again.
        """
        self.ledger.check_open()
        state = fold(self.ledger, dedup_entries=self.settings.dedup_entries)
        state.rebase(self.clock.now_ns(), self.clock.monotonic_ns())
        self.reader.forget()
        self.messages.forget()
        self._a_group_lags = False
        self.state, self.main = state, state.groups[MAIN_GROUP]

    # -- time --------------------------------------------------------------------------------------

    def now(self) -> int:
        """The time, told to the state as well. Hold the lock."""
        now_ns, self.state.moment.mono_ns = self.clock.read()
        return now_ns

    def tick(self) -> int:
        """Let happen what is due: messages get ready, leases end. The time. Hold the lock."""
        self.ledger.check_open()
        now_ns, mono_ns = self.clock.read()
        self.state.moment.mono_ns = mono_ns
        self.catch_up()
        events: list[Event] = []
        for group in self.state.groups.values():
            if group.is_quiet(now_ns, mono_ns) and not (self._discards_dead and group.dead):
                continue
            group.promote(now_ns)
            for seq, lease in group.overdue(mono_ns):
                events.append(
                    self.failure(group, seq, lease.attempt, now_ns, Cause.TIMEOUT, "lease ran out")
                )
            if self._discards_dead and group.dead:
                events += self._stale_dead(group, now_ns)
                events += self._excess_dead(group)
        if events and not self.ledger.is_stopped:  # a reader leaves it to the writer
            self.record(events)
            for group in self.state.groups.values():
                group.promote(now_ns)  # without a backoff, what timed out is ready at once
        return now_ns

    def _stale_dead(self, group: Group, now_ns: int) -> list[Event]:
        if not self.settings.dead_retention_s:
            return []
        limit_ns = now_ns - round(self.settings.dead_retention_s * 1e9)
        stale = []
        for seq, flight in group.dead.items():
            if flight.last_failure_ns > limit_ns:
                break
            stale.append((seq, 1))
        return [_discarded(group, stale, "older than dead_retention_s")] if stale else []

    def _excess_dead(self, group: Group) -> list[Event]:
        """Discard the oldest dead letters of a group beyond its bounds."""
        most, most_bytes = self.settings.dead_max_messages, self.settings.dead_max_bytes
        over = len(group.dead) - most if most else 0
        over_bytes = group.dead_bytes - most_bytes if most_bytes else 0
        runs: dict[str, list[tuple[int, int]]] = {}
        for seq, flight in group.dead.items():
            if over <= 0 and over_bytes <= 0:
                break
            name = "dead_max_messages" if over > 0 else "dead_max_bytes"
            runs.setdefault(name, []).append((seq, 1))
            over, over_bytes = over - 1, over_bytes - flight.size_bytes
        return [_discarded(group, found, f"beyond {name}") for name, found in runs.items()]

    def _weigh_dead(self, group: Group, seqs: Iterable[int]) -> None:
        for seq in seqs:
            try:
                group.weigh_dead(seq, read_entry(self.ledger.messages, seq).size)
            except EntryGone:
                pass  # takes no space

    def _bound_dead(self, events: Sequence[Event]) -> None:
        """After events: keep the dead letters of each group within the bounds."""
        excess: list[Event] = []
        for event in events:
            group = self.state.groups.get(event.group)
            if event.type is EventType.DEAD and group and self.settings.dead_max_bytes:
                self._weigh_dead(group, event.seqs)
        for group in self.state.groups.values():
            excess += self._excess_dead(group)
        if not excess:
            return
        try:
            self.record(excess)
        except LedgerStopped:
            raise
        except LedgerError as error:  # the disk is full, say; what led here is recorded
            logger.warning("dead letters of %s stay beyond the bound: %s", self.ledger.path, error)

    def next_wake_ns(self) -> int | None:
        """In how many nanoseconds something happens by itself. Hold the lock."""
        now_ns, mono_ns = self.clock.now_ns(), self.clock.monotonic_ns()
        left = []
        for group in self.state.groups.values():
            due_ns, end_ns = group.next_due_ns(), group.next_lease_end_ns()
            left += [due_ns - now_ns] if due_ns is not None else []
            left += [end_ns - mono_ns] if end_ns is not None else []
        return max(min(left), 0) if left else None

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """While a thread tries and waits. Begins before the first try: a message that is published
        without the lock right after that try must know that someone is waiting. Hold the lock."""
        self.waiting_threads += 1
        try:
            yield
        finally:
            self.waiting_threads -= 1

    def wait(self, timeout_ns: int) -> None:
        """Wait for an arrival, or until something happens by itself. Within `expecting`."""
        wake_ns = self.next_wake_ns()
        timeout_ns = timeout_ns if wake_ns is None else min(timeout_ns, wake_ns)
        self.torn = False  # others have the state meanwhile
        try:
            self.clock.wait(self.arrival, timeout_ns / 1e9)
        finally:
            # Interrupted right after it let go of the lock, a condition does not take it again.
            if not self.lock._is_owned():  # type: ignore[attr-defined]
                self.lock.acquire()
        if self.torn:
            self.mend()
        self.torn = True

    def arrived(self) -> None:
        """Something may be ready now: wake those who wait for it."""
        if self.waiting_threads:
            with self.lock:
                self.arrival.notify_all()
        for listener in tuple(self.listeners):
            listener()

    # -- writing -----------------------------------------------------------------------------------

    def record(self, events: Sequence[Event]) -> None:
        """Write events, all or none, and apply them. Hold the lock."""
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
        """After each record: wake who waits for a change, save the state now and then."""
        if self.waiting_threads or self.listeners:
            self.arrived()
        if self.ledger.events.next_seq >= self.snapshot_event:
            self.snapshot_if_due()

    def catch_up(self) -> None:
        """Tell the state of the plain messages that were published without its lock."""
        if self._a_group_lags:
            self._feed_lagging_groups()
        state, next_seq = self.state, self.ledger.messages.next_seq
        if state.ingested_upto < next_seq:
            state.publish_plain(state.ingested_upto, next_seq)

    def _feed_lagging_groups(self) -> None:
        """Let groups that were moved read on; again later, should that fail."""
        feed_lagging_groups(self.ledger, self.state)
        self._a_group_lags = False

    def failure(
        self,
        group: Group,
        seq: int,
        attempt: int,
        now_ns: int,
        cause: Cause,
        reason: str,
        delay_ns: int | None = None,
        *,
        final: bool = False,
    ) -> Event:
        """What a failed attempt leads to: another one later, or death."""
        runs = ((seq, 1),)
        flight = group.flights.get(seq)
        was_dead = flight is not None and flight.cause > 0
        if final or was_dead or attempt >= self.max_attempts_of(seq):
            return Event(
                EventType.DEAD,
                group=group.number,
                attempt=attempt,
                runs=runs,
                cause=cause,
                reason=reason,
            )
        if delay_ns is None:
            delay_ns = backoff_ns(self.settings, identity=self.identity, seq=seq, failures=attempt)
        kind = EventType.TIMED_OUT if cause is Cause.TIMEOUT else EventType.NACKED
        return Event(
            kind,
            group=group.number,
            attempt=attempt,
            runs=runs,
            retry_at_ns=now_ns + delay_ns,
            reason=reason,
        )

    def max_attempts_of(self, seq: int) -> int:
        try:
            entry = read_entry(self.ledger.messages, seq)
        except EntryGone:
            return self.settings.max_attempts
        own = entry.attributes.get(MAX_ATTEMPTS) if entry.attributes else None
        return int.from_bytes(own, "little") if own else self.settings.max_attempts

    # -- reading -----------------------------------------------------------------------------------

    def group(self, name: str = MAIN_GROUP_NAME) -> Group:
        """A consumer group by name."""
        if name == MAIN_GROUP_NAME:
            return self.state.groups[0]
        group = self.state.group_named(name)
        if group is None:
            raise NoSuchGroup(f"there is no group {name!r}; create it first")
        return group

    def published_ns(self, seq: int) -> int:
        """When a message was published; for lanes that must compare due times."""
        try:
            return read_entry(self.ledger.messages, seq).timestamp_ns
        except EntryGone:
            return 0  # goes first, is found to be gone, and gets out of the way

    def due_ns(self, seq: int) -> int:
        """Since when a message that was never leased has been ready."""
        try:
            entry = read_entry(self.ledger.messages, seq)
        except EntryGone:
            return 0
        return max(entry.timestamp_ns, entry.deliver_at_ns)

    def message(self, entry: Entry) -> Message:
        return to_message(entry, self.identity, self.settings.max_unpacked_bytes)

    # -- snapshots ---------------------------------------------------------------------------------

    def _progress(self) -> int:
        return self.ledger.events.next_seq + self.ledger.messages.next_seq

    def _plan_snapshot(self, every: int) -> None:
        self.snapshot_event = self.ledger.events.next_seq + every
        self.snapshot_seq = self.ledger.messages.next_seq + every * _PLAIN_PER_EVENT

    def weigh(self, count: int) -> None:
        """So many messages with options were published: to replay one takes as long as an event."""
        self.snapshot_event -= count

    def snapshot_if_due(self) -> None:
        """Save the state now and then. What was recorded is recorded, even if that fails."""
        with self.lock, self.change:
            log = self.ledger
            if (
                log.events.next_seq < self.snapshot_event
                and log.messages.next_seq < self.snapshot_seq
            ):
                return
            try:
                self._snapshot_beside()
            except LedgerStopped:
                raise
            except LedgerError as error:  # the disk is full, say
                logger.warning("no snapshot of %s was saved: %s", log.path, error)
                self._plan_snapshot(self.settings.snapshot_every)
            if self.tidying is not None and self.settings.auto_compact:
                self.tidying.ask()

    def freeze(self) -> tuple[int, Frozen]:
        """The state as it is now, and the last event in it, for `saver`. Hold the lock."""
        self.catch_up()
        first = self.state.groups[0].first_fresh
        self.ledger.summary["read_message_id"] = first or self.ledger.messages.next_seq
        frozen = freeze_state(self.state)
        # A large state is saved less often, so that saving it never is most of the work.
        self._plan_snapshot(max(self.settings.snapshot_every, frozen.size // _BYTES_PER_EVENT))
        return self.ledger.events.next_seq - 1, frozen

    def snapshot(self) -> None:
        """Save the state, so that opening is quick. Hold the lock."""
        progress = self._progress()
        self.saver.save(*self.freeze())
        self._snapshot_at = progress

    def _snapshot_beside(self) -> None:
        """The same; a large one without keeping anyone waiting. Hold the lock."""
        if self.saver.is_busy:
            self._plan_snapshot(self.settings.snapshot_every)
            return
        progress = self._progress()
        event_seq, frozen = self.freeze()

        def saved() -> None:
            self._snapshot_at = progress

        if frozen.size >= LARGE_BYTES:
            self.saver.save_beside(event_seq, frozen, saved)
        else:
            self.saver.save(event_seq, frozen)
            saved()

    def close(self) -> None:
        """Save the state and let go of the files. After an interrupt, call it again."""
        if self.tidying is not None:
            self.tidying.end()
        self.saver.end()
        with self.lock:
            try:
                self._end_streams()
                if not self.ledger.is_stopped and self._progress() > self._snapshot_at:
                    self._last_snapshot()
            except LedgerError as error:  # the next open takes longer, that is all
                logger.warning("no snapshot of %s was saved: %s", self.ledger.path, error)
            finally:
                self.ledger.close()
                self.arrived()

    def _end_streams(self) -> None:
        """Give back what open streams leased ahead. Hold the lock."""
        if self.ledger.is_stopped or depth_of(self.lock)() > 1:
            return  # as in `_last_snapshot`
        with self.change:
            for give_back in tuple(self.before_close):
                give_back()

    def _last_snapshot(self) -> None:
        if depth_of(self.lock)() > 1:
            return  # a signal handler closes the queue in the middle of a change
        with self.change:
            self.snapshot()


def _discarded(group: Group, runs: Sequence[tuple[int, int]], reason: str) -> Event:
    return Event(EventType.DISCARDED, group=group.number, runs=tuple(runs), reason=reason)
