"""Firing: publish the message of each tick of each schedule, exactly once.

A tick's message carries the event that moves the schedule past that tick. Both are one entry of the
message log, so a crash leaves both or neither. The event is written to the event log as well,
because messages may be removed sooner than an old snapshot.

The times of a schedule are read when they are needed, never by the fold: a queue opens without the
library for cron expressions, and only its cron schedules then stand still, and say why.
"""

import heapq
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.codec import ENTRY_OVERHEAD_BYTES, Draft
from penstock.errors import InvalidInput, LedgerError, LedgerStopped, QuotaExceeded
from penstock.model import NS, NewMessage
from penstock.operations.answers import rfc3339
from penstock.operations.scheduling import Schedule
from penstock.queue.attributes import FIRED, pack_carried
from penstock.queue.decisions import count_messages, decide_drop_oldest, exceeded_bound
from penstock.queue.drafting import draft_of
from penstock.queue.events import ALL_GROUPS, Event, EventType
from penstock.queue.schedule import NEVER_NS
from penstock.queue.schedule_table import ScheduleRecord, ScheduleTable
from penstock.queue.schedule_times import Times, times_of

if TYPE_CHECKING:
    from penstock.queue.core import QueueCore

log = logging.getLogger("penstock.queue")

NAME_HEADER = "schedule.name"
DUE_HEADER = "schedule.due_at"
MOST_AT_ONCE = 100  # messages in one tick of the queue; the next tick follows at once
MOST_BYTES_AT_ONCE = 4 << 20
_MOST_ON_TIME = 1000  # ticks of one schedule
_RETRY_NS = NS  # if the queue is full or cannot write
# The timers run by the monotonic clock. If the clock on the wall is set forward, or the machine
# was suspended, schedules notice within this time.
_LONGEST_SLEEP_NS = 30 * NS


class Tick(NamedTuple):
    """A tick that is to be published."""

    record: ScheduleRecord
    due_ns: int
    missed_ns: int  # an earlier one that is not; 0: there is none


class Firing:
    """Knows when each schedule is due, and publishes its messages."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core
        self._table: ScheduleTable | None = None  # whose times are known
        self._times: dict[str, Times] = {}
        self._due: dict[str, int] = {}  # the next tick of each schedule that runs
        self._heap: list[tuple[int, str]] = []
        self._troubles: dict[str, str] = {}  # why a schedule does not run here
        self._refused: dict[str, str] = {}  # why the last tick has no message
        self._retry_at_ns = 0  # 0: the last attempt succeeded
        self.admit: Callable[[], None] = lambda: None  # raises QuotaExceeded

    # -- when --------------------------------------------------------------------------------------

    def next_ns(self, name: str) -> int:
        """Return the next tick of a schedule; 0 if it does not run. Caller holds the lock."""
        self._refresh()
        return self._due.get(name, 0)

    def trouble_of(self, name: str) -> str:
        """Return why a schedule does not run, or why its last tick has no message, as far as this
        process knows; empty if it runs."""
        return self._troubles.get(name) or self._refused.get(name, "")

    def wake_after_ns(self, now_ns: int) -> list[int]:
        """Return the nanoseconds until something is due, if anything is. Caller holds the lock."""
        at_ns = self._first_ns()
        if at_ns == NEVER_NS:
            return []
        return [min(max(at_ns, self._retry_at_ns) - now_ns, _LONGEST_SLEEP_NS)]

    @property
    def has_active(self) -> bool:
        """Whether a schedule runs: the queue must stay open. Caller holds the lock."""
        return self._first_ns() != NEVER_NS

    def _first_ns(self) -> int:
        self._refresh()
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)  # replaced meanwhile
        return heap[0][0] if heap else NEVER_NS

    def _refresh(self) -> None:
        """Read the times of schedules that are new or changed."""
        table = self._core.state.schedules
        if table is not self._table:  # the state was folded anew
            self._table = table
            self._times, self._due, self._heap, self._troubles = {}, {}, [], {}
            self._refused.clear()
            table.take_changed()
            for record in table:
                self._plan(record.schedule.name)
        elif table.has_changed:
            for name in table.take_changed():
                self._times.pop(name, None)
                self._refused.pop(name, None)
                self._plan(name)

    def _plan(self, name: str) -> None:
        """Find the next tick of a schedule."""
        record = self._core.state.schedules.get(name)
        self._due.pop(name, None)
        self._troubles.pop(name, None)
        if record is None or record.is_paused:
            return
        try:
            times = self._times.get(name)
            if times is None:
                times = self._times[name] = times_of(record.schedule, record.anchor_ns)
        except InvalidInput as error:  # no library, or another version of the time zones
            self._troubles[name] = str(error)
            log.error("schedule %s of %s does not run: %s", name, self._core.ledger.path, error)
            return
        due_ns = times.after(record.position_ns)
        if due_ns is not None:
            self._due[name] = due_ns
            heapq.heappush(self._heap, (due_ns, name))

    # -- publishing --------------------------------------------------------------------------------

    def fire(self, now_ns: int) -> None:
        """Publish what is due. Caller holds the lock.

        Errors that may pass are logged, and what is due stays due: the call that ticks the queue
        has nothing to do with them.
        """
        if self._first_ns() > now_ns or now_ns < self._retry_at_ns:
            return
        try:
            self._fire(now_ns)
        except LedgerStopped:
            raise
        except (LedgerError, QuotaExceeded) as error:
            self._wait(now_ns, str(error))

    def _fire(self, now_ns: int) -> None:
        left = MOST_AT_ONCE
        while left > 0 and self._first_ns() <= now_ns:
            due, skipped = self._collect(now_ns, left)
            if skipped:
                self._core.record(skipped)
                for event in skipped:
                    self._plan(event.name)
            if due and not self._publish(due, now_ns):
                return
            left -= len(due) + len(skipped)

    def _collect(self, now_ns: int, most: int) -> tuple[list[tuple[Tick, Draft]], list[Event]]:
        """Return the next ticks to publish, and the events of those that are left out."""
        due: list[tuple[Tick, Draft]] = []
        skipped: list[Event] = []
        size = 0
        looked_at: dict[str, int] = {}
        while self._first_ns() <= now_ns and len(due) + len(skipped) < most:
            at_ns, name = heapq.heappop(self._heap)
            if name in looked_at:
                continue  # planned twice
            looked_at[name] = at_ns
            record = self._core.state.schedules.get(name)
            assert record is not None
            ticks, last_ns = self._decide(record, now_ns)
            if not ticks:
                skipped.append(_skipped(name, last_ns))
                continue
            try:
                draft = self._draft(record.schedule, now_ns)
            except InvalidInput as error:  # the settings of the queue are others than they were
                skipped.append(_skipped(name, last_ns))
                self._refused[name] = str(error)
                log.error("schedule %s of %s: %s", name, self._core.ledger.path, error)
                continue
            for tick in ticks[: most - len(due) - len(skipped)]:
                due.append((tick, _at(draft, tick.due_ns)))
                size += len(draft.payload)
            if size > MOST_BYTES_AT_ONCE:
                break
        for name, at_ns in looked_at.items():  # they stay due until they are written
            heapq.heappush(self._heap, (at_ns, name))
        return due, skipped

    def _decide(self, record: ScheduleRecord, now_ns: int) -> tuple[list[Tick], int]:
        """Return the ticks of a schedule that get a message, and the last one that is due."""
        schedule, times = record.schedule, self._times[record.schedule.name]
        position_ns = record.position_ns
        late_ns = max(now_ns - round(schedule.grace_s * NS) - 1, position_ns)
        found = times.newest(late_ns, now_ns, _MOST_ON_TIME)
        end_ns = found[0] - 1 if found else now_ns  # earlier ones were missed
        missed: list[int] = []
        if self._due[schedule.name] <= end_ns:
            most = schedule.catch_up_max if schedule.misfire == "all" else 0
            missed = times.newest(position_ns, end_ns, most + 1)
            if schedule.misfire == "once" and not found:
                found, missed = missed, times.newest(position_ns, missed[0] - 1, 1)
            elif len(missed) <= most:
                found, missed = missed + found, []
            else:
                found = missed[1:] + found
        missed_ns = missed[0] if missed else 0
        ticks = [Tick(record, at_ns, 0 if n else missed_ns) for n, at_ns in enumerate(found)]
        return ticks, found[-1] if found else missed_ns

    def _draft(self, schedule: Schedule, now_ns: int) -> Draft:
        return draft_of(with_headers(schedule, 0), self._core.settings, now_ns, 0)

    def _publish(self, due: list[tuple[Tick, Draft]], now_ns: int) -> bool:
        """Write the messages of some ticks, all or none. Return False if there is no room."""
        core = self._core
        self.admit()
        if not self._make_room(due) and not self._make_room(due := due[:1]):
            self._wait(now_ns, "the queue is full")
            return False
        next_event = core.ledger.events.next_seq
        events = [_fired(tick) for tick, _ in due]
        drafts = [
            draft._replace(
                attributes={**(draft.attributes or {}), FIRED: pack_carried(event, number)}
            )
            for number, (event, (_, draft)) in enumerate(zip(events, due, strict=True), next_event)
        ]
        first, _ = core.ledger.messages.append_batch_stamped(drafts)
        core.catch_up()
        events = [event._replace(runs=((seq, 1),)) for seq, event in enumerate(events, first)]
        try:
            core.record(events)
        except LedgerStopped:
            raise
        except LedgerError:  # no room for it: the messages have the events with them
            timestamp_ns = core.ledger.messages.last_timestamp_ns
            for number, event in enumerate(events, next_event):
                core.state.apply(event.recorded(timestamp_ns, number))
        self._retry_at_ns = 0
        core.metrics.published += len(drafts)
        core.arrived()
        for name in {event.name for event in events}:
            self._refused.pop(name, None)
            self._plan(name)
        return True

    def _make_room(self, due: list[tuple[Tick, Draft]]) -> bool:
        """Return whether the bounds of the queue allow these messages."""
        core = self._core

        def bytes_after() -> int:
            more = sum(len(draft.payload) + ENTRY_OVERHEAD_BYTES for _, draft in due)
            return core.ledger.messages.size_bytes() + more

        excess = exceeded_bound(core.state, core.settings, len(due), bytes_after)
        if not excess:
            return True
        if core.settings.when_full != "drop_oldest" or excess == "bytes":
            return False
        events = decide_drop_oldest(core.state, len(due), core.settings.max_messages)
        if events is None:
            return False
        core.record(events)
        core.metrics.dropped += count_messages(events)
        return True

    def _wait(self, now_ns: int, reason: str) -> None:
        if not self._retry_at_ns:  # else it was logged, and has not passed since
            log.warning("schedules of %s wait: %s", self._core.ledger.path, reason)
        self._retry_at_ns = now_ns + _RETRY_NS


def with_headers(schedule: Schedule, due_ns: int) -> NewMessage:
    """Return the message of a tick. Its headers name the schedule and the time of the tick."""
    message = schedule.message
    headers = {
        **(message.headers or {}),
        NAME_HEADER: schedule.name,
        DUE_HEADER: rfc3339(due_ns),
    }
    return NewMessage(
        payload=message.payload,
        priority=message.priority,
        delay=message.delay,
        ttl=message.ttl,
        headers=headers,
        key=message.key,
        max_attempts=message.max_attempts,
        content_type=message.content_type,
        compression=message.compression,
        tenant=message.tenant,
    )


def _at(draft: Draft, due_ns: int) -> Draft:
    """Return the draft of a tick: that of another one, with the time of this one."""
    return draft._replace(headers={**(draft.headers or {}), DUE_HEADER: rfc3339(due_ns)})


def _fired(tick: Tick) -> Event:
    return Event(
        EventType.SCHEDULE_FIRED,
        group=ALL_GROUPS,
        name=tick.record.schedule.name,
        due_ns=tick.due_ns,
        missed_ns=tick.missed_ns,
    )


def _skipped(name: str, due_ns: int) -> Event:
    return Event(EventType.SCHEDULE_SKIPPED, group=ALL_GROUPS, name=name, due_ns=due_ns)
