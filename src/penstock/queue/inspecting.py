"""Inspecting: messages, counts, the reason for a wait, the history. Changes nothing."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, islice
from typing import NamedTuple

from penstock import codec
from penstock.checking import check_whole
from penstock.codec import Entry
from penstock.codec.layout import DEFAULT_PRIORITY
from penstock.errors import EntryGone, NoSuchMessage, PayloadUnreadable
from penstock.ledger import Cursor, read_entry
from penstock.model import (
    MAIN_GROUP_NAME,
    NS,
    DeadLetter,
    GroupStats,
    HistoryEvent,
    Message,
    RetryInfo,
    Stats,
    StorageStats,
    Why,
)
from penstock.operations import Row
from penstock.operations.answers import rfc3339
from penstock.queue.after import unpack_after
from penstock.queue.attributes import AFTER
from penstock.queue.core import QueueCore
from penstock.queue.delivery import WAITING_STATES, Delivery, State
from penstock.queue.events import ALL_GROUPS, Cause, Event, EventType
from penstock.queue.group import Group
from penstock.queue.history import Endings, events_of
from penstock.queue.limits import Gate
from penstock.queue.messages import NO_BYTE_LIMIT, size_of

STATES = {state.name.lower(): state for state in State}
NAMES = {state: name for name, state in STATES.items()}
_ENDED = (State.DONE, State.EXPIRED, State.CANCELLED)
_PLAIN_LANE = slice(DEFAULT_PRIORITY, DEFAULT_PRIORITY + 1)
_CHUNK = 500
_FEW = 1000  # messages to list in the event loop
# As a plain number: an enum as an index takes four times as long.
_NUMBERS = {event.name: int(event) for event in EventType}
_LEASED, _TAKEN, _ACKED = _NUMBERS["LEASED"], _NUMBERS["TAKEN"], _NUMBERS["ACKED"]
_NACKED, _TIMED_OUT, _EXPIRED = _NUMBERS["NACKED"], _NUMBERS["TIMED_OUT"], _NUMBERS["EXPIRED"]
_CANCELLED, _DEAD = _NUMBERS["CANCELLED"], _NUMBERS["DEAD"]
_REDRIVEN, _DISCARDED = _NUMBERS["REDRIVEN"], _NUMBERS["DISCARDED"]
_MOST_COUNTED = 10_000  # messages before another
MAX_PEEK = 1_000_000
_MOST_MISSING, _MOST_NAMED = (
    100,
    3,
)  # messages that a blocked one waits for: listed, in the sentence


class Unfinished(NamedTuple):
    """Messages of a group."""

    waiting: int  # ready, scheduled, parked or blocked
    undelivered: int  # these, and those that are leased


class Inspecting:
    """The inspecting side of a queue."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._endings = Endings(core.ledger)

    # -- one message -------------------------------------------------------------------------------

    def entry(self, id_: str) -> Entry:
        """Return the entry of a message. Raise NoSuchMessage if the queue has no such id."""
        core = self._core
        milliseconds, identity, seq = codec.parse_id(id_)
        if identity != core.identity:
            raise NoSuchMessage(f"{id_} is the id of a message of another queue")
        try:
            entry = read_entry(core.ledger.messages, seq)
        except EntryGone:  # its text has the path of the queue, which callers must not see
            raise NoSuchMessage(
                f"there is no message {id_}: it was never published, or retention removed it"
            ) from None
        if entry.timestamp_ns // 1_000_000 != milliseconds:
            raise NoSuchMessage(f"there is no message {id_}")
        return entry

    def row(self, id_: str, group_name: str) -> Row:
        """Return a message with its state in a group."""
        message = self._core.message(self.entry(id_))
        with self._core.lock, self._core.change:
            self._core.tick()  # its lease may be over
            return self.rows([message], group_name)[0]

    def _state(self, group: Group, entry: Entry) -> State:
        """Return the state of a message now, as `stats` counts it. Caller holds the lock."""
        return _state_at(group, entry, self._core.tick())

    # -- many --------------------------------------------------------------------------------------

    def peek(self, count: int, group_name: str, max_bytes: int = NO_BYTE_LIMIT) -> list[Message]:
        """Return the next messages: up to `count`, at least one, not more than `max_bytes`."""
        core = self._core
        check_whole("n", count, 1, MAX_PEEK)
        with core.lock, core.change:
            core.ledger.check_open()
            core.catch_up()
            group = core.group(group_name)
            now_ns = core.clock.now_ns()
            group.waiting.promote(now_ns)
            found: list[Message] = []
            skipped: set[int] = set()
            size, count = 0, min(count, group.room(now_ns))
            for seq in core.in_order(group, now_ns, skipped):
                if len(found) == count:
                    break
                message = self._readable(seq)
                if message is None or 0 < message.expires_at_ns <= now_ns:
                    skipped.add(seq)
                    continue
                size += size_of(message)
                if found and size > max_bytes:
                    break
                found.append(message)
            return found

    def browse(
        self, state: str | None, group_name: str, *, after_seq: int = 0
    ) -> Iterator[Message]:
        """Yield the messages in a state, in seq order; without a state, all that are not done."""
        found = self.search(state, group_name, after_seq=after_seq)
        return (message for _, message in found if message is not None)

    def rows(
        self, messages: Sequence[Message], group_name: str, state: str | None = None
    ) -> list[Row]:
        """Return messages with their states, or with `state` if that is known already."""
        core = self._core
        with core.lock, core.change:
            core.catch_up()
            now_ns = core.clock.now_ns()
            group = core.group(group_name)
            return [
                Row(
                    message,
                    state or NAMES[_state_at(group, message, now_ns)],
                    group.attempts_of(message.seq),
                )
                for message in messages
            ]

    def is_quick_to_search(self, state: str | None, group_name: str) -> bool:
        """Return whether finding the messages in a state takes little time."""
        core = self._core
        if state is not None and STATES.get(state) in _ENDED:
            return False
        with core.lock, core.change:
            group = core.group(group_name)
            waiting = group.waiting
            count = len(group.leases) + len(group.deliveries) + len(group.dead)
            count += waiting.scheduled + waiting.special + waiting.plain.count_runs()
            return count <= _FEW

    def search(
        self, state: str | None, group_name: str, *, after_seq: int = 0, chunk: int = _CHUNK
    ) -> Iterator[tuple[int, Message | None]]:
        """As `browse`, with each seq that is looked at; None for a message in another state.

        `chunk`: how many messages to read at first.
        """
        wanted = None if state is None else STATES[state]
        core = self._core
        core.ledger.check_open()
        if wanted in _ENDED:
            return self._browse_log(wanted, group_name, after_seq)
        with core.lock, core.change:
            core.catch_up()
            group = core.group(group_name)
            now_ns = core.clock.now_ns()
            group.waiting.promote(now_ns)
            runs = self._runs(group, wanted, after_seq)
        found = self._messages(runs, chunk)
        if wanted in WAITING_STATES:
            return ((s, None if _is_expired(m, now_ns) else m) for s, m in found)
        return found

    def _messages(
        self, runs: Iterable[tuple[int, int]], chunk: int
    ) -> Iterator[tuple[int, Message | None]]:
        """Yield each seq of the runs, with its message unless that cannot be read."""
        log = self._core.ledger.messages
        for seq, end in _joined(runs):
            cursor = Cursor(log, seq, unsynced=True)
            while seq < end and (entries := cursor.read(min(chunk, end - seq))):
                chunk = _CHUNK
                for entry in entries:
                    for gone in range(seq, min(entry.seq, end)):
                        yield gone, None
                    seq = entry.seq
                    if seq >= end:
                        break
                    yield seq, self._message(entry)
                    seq += 1
            for gone in range(seq, end):
                yield gone, None

    def _browse_log(
        self, wanted: State, group_name: str, after_seq: int
    ) -> Iterator[tuple[int, Message | None]]:
        """Yield messages that are done. Only the event log knows how each ended."""
        core = self._core
        cursor = Cursor(core.ledger.messages, after_seq + 1)
        while entries := cursor.read(_CHUNK):
            with core.lock, core.change:
                core.catch_up()
                group = core.group(group_name)
                number, now_ns = group.number, core.clock.now_ns()
                states = [_state_at(group, entry, now_ns) for entry in entries]
            seqs = [
                entry.seq
                for entry, state in zip(entries, states, strict=True)
                if state is State.DONE
            ]
            ended = self._endings.of(number, seqs)
            for entry, state in zip(entries, states, strict=True):
                is_wanted = ended.get(entry.seq, state) is wanted
                yield entry.seq, self._message(entry) if is_wanted else None

    def _runs(
        self, group: Group, wanted: State | None, after_seq: int
    ) -> Iterator[tuple[int, int]]:
        """Return the seqs above one that are in a state, or in any but done, as rising runs."""
        waiting, from_seq = group.waiting, after_seq + 1
        parts: list[Iterable[tuple[int, int]]] = []
        seqs: list[int] = []
        if wanted in (None, State.READY):
            for lane in waiting.lanes if waiting.special else waiting.lanes[_PLAIN_LANE]:
                parts.append(
                    [(max(at, from_seq), end) for at, end in lane.fresh.pairs() if end > from_seq]
                )
                seqs += [seq for _, seq in lane.due]
            if waiting.fair is not None:
                pairs = waiting.fair.fresh_pairs()
                parts.append([(max(at, from_seq), end) for at, end in pairs if end > from_seq])
                seqs += [seq for _, seq in waiting.fair.due_pairs()]
        if wanted in (None, State.SCHEDULED):
            seqs += [seq for _, seq in waiting.timetable]
        if wanted in (None, State.LEASED):
            seqs += group.leases
        if wanted in (None, State.PARKED) and group.parked:
            seqs += [s for s, one in group.deliveries.items() if one.state is State.PARKED]
        if wanted in (None, State.BLOCKED) and group.blocked:
            seqs += [s for s, one in group.deliveries.items() if one.state is State.BLOCKED]
        if wanted in (None, State.DEAD):
            seqs += group.dead
        parts.append([(seq, seq + 1) for seq in sorted(seqs) if seq > after_seq])
        return merge(*parts)

    def count_unfinished(self, group: Group, from_seq: int) -> Unfinished:
        """Count messages from a seq on. Caller holds the lock."""
        waiting = sum(end - at for at, end in _joined(self._runs(group, None, from_seq - 1)))
        dead = sum([seq >= from_seq for seq in group.dead])
        leased = sum([seq >= from_seq for seq in group.leases])
        return Unfinished(waiting - dead - leased, waiting - dead)

    def _readable(self, seq: int) -> Message | None:
        try:
            return self._message(read_entry(self._core.ledger.messages, seq))
        except EntryGone:
            return None

    def _message(self, entry: Entry) -> Message | None:
        try:
            return self._core.message(entry)
        except PayloadUnreadable:
            return None

    # -- dead letters ------------------------------------------------------------------------------

    def dead(self, group_name: str) -> Iterator[DeadLetter]:
        """Yield the dead letters of a group, oldest death first."""
        core = self._core
        with core.lock, core.change:
            core.tick()
            dead = list(core.group(group_name).dead.items())
        for seq, delivery in dead:
            letter = self.dead_letter(seq, delivery)
            if letter is not None:
                yield letter

    def dead_letter(self, seq: int, delivery: Delivery) -> DeadLetter | None:
        core = self._core
        try:
            entry = read_entry(core.ledger.messages, seq)
        except EntryGone:
            return None
        try:
            message = core.message(entry)
        except PayloadUnreadable:
            message = core.message(entry._replace(compression=0))  # the payload as stored
        headers = {
            **message.headers,
            "dlq.original_msg_id": message.id,
            "dlq.retry_count": str(delivery.attempt),
            "dlq.failure_reason": delivery.reason,
            "dlq.last_failure": str(delivery.last_failure_ns / NS),
        }
        return DeadLetter(
            message._replace(headers=headers),
            delivery.attempt,
            delivery.reason,
            Cause(delivery.cause).name.lower() if delivery.cause else "",
            delivery.first_failure_ns,
            delivery.last_failure_ns,
        )

    # -- counts ------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Return all counts. They are kept, not counted, so the cost does not grow."""
        core = self._core
        with core.lock, core.change:
            now_ns = core.tick()
            groups = {g.name: self._group_stats(g, now_ns) for g in core.state.groups.values()}
            state, ledger, main = core.state, core.ledger, groups[MAIN_GROUP_NAME]
            messages, events = ledger.messages, ledger.events
            next_seq = messages.next_seq
            return Stats(
                *main[:6],
                next_seq - 1,
                *main[7:17],
                state.deduplicated,
                len(state.dedup),
                state.dedup.evicted,
                main.oldest_ready_age_s,
                state.paused,
                next_seq,
                messages.first_seq,
                StorageStats(
                    messages.size_bytes(),
                    events.size_bytes(),
                    len(messages.segments.all) + len(events.segments.all),
                    len(ledger.damage),
                ),
                groups,
            )

    def _group_stats(self, group: Group, now_ns: int) -> GroupStats:
        total, waiting = group.totals, group.waiting
        oldest_ns = now_ns
        for lane in waiting.lanes if waiting.special else waiting.lanes[_PLAIN_LANE]:
            head = lane.head(self._core.published_ns)
            if head is not None and head[0] < oldest_ns:
                oldest_ns = head[0]
        first_fresh = waiting.first_fresh if waiting.fair is None else None
        if waiting.fair is not None:
            first_fresh, since_ns = waiting.fair.oldest(self._core.published_ns)
            oldest_ns = min(oldest_ns, oldest_ns if since_ns is None else since_ns)
        taken = total[_TAKEN]
        return GroupStats(  # in the order of its fields, which is faster than by name
            waiting.ready,
            waiting.scheduled,
            len(group.leases),
            group.parked,
            group.blocked,
            len(group.dead),
            total[_LEASED] + taken,
            total[_ACKED] + taken,
            total[_NACKED],
            total[_TIMED_OUT],
            total[_EXPIRED],
            total[_CANCELLED],
            total[_DEAD],
            total[_REDRIVEN],
            total[_DISCARDED],
            group.retrying,
            first_fresh or self._core.ledger.messages.next_seq,
            (now_ns - oldest_ns) / NS,
        )

    # -- why and history ---------------------------------------------------------------------------

    def why(self, id_: str, group_name: str) -> Why:
        """Return the reason why a message is not delivered now."""
        core = self._core
        entry = self.entry(id_)
        with core.lock, core.change:
            group = core.group(group_name)
            state = self._state(group, entry)
            now_ns = core.clock.now_ns()
            if state is not State.DONE:
                code, sentence, details = self._reason(group, entry, state, now_ns)
        if state is State.DONE:  # read the event log, without the lock
            code, sentence, details = self._reason_done(entry.seq, group.number)
        return Why(id_, group.name, state.name.lower(), code, sentence, details)

    def _reason_done(self, seq: int, group: int) -> tuple[str, str, Mapping[str, object]]:
        ended_by = self._endings.last_event(group, seq)
        if ended_by is None:  # by a purge or a seek, or the event is in a message only
            last = deque(events_of(self._core.ledger, seq, group), maxlen=1)
            ended_by = last[0].type if last else None
        what = ended_by.name.lower() if ended_by else "settled, or lies before the group's start"
        return ("done", f"It is done: {what}.", {"last_event": what})

    def _reason(
        self, group: Group, entry: Entry, state: State, now_ns: int
    ) -> tuple[str, str, Mapping[str, object]]:
        seq, delivery = entry.seq, group.deliveries.get(entry.seq)
        if state is State.LEASED:
            lease = group.leases[seq]
            left_s = (lease.ends_mono_ns - self._core.clock.monotonic_ns()) / NS
            who = f" by {lease.holder}" if lease.holder else ""
            said = group.progress.of(seq, lease)
            done = "" if said is None else f", {said.sentence}"
            return (
                "leased",
                f"It is being worked on{who} (attempt {lease.attempt}){done}; the lease ends in "
                f"{max(left_s, 0):.1f} s.",
                {
                    "attempt": lease.attempt,
                    "left_s": max(left_s, 0.0),
                    "holder": lease.holder,
                    **({} if said is None else said.details),
                },
            )
        if state is State.SCHEDULED:
            due_ns = delivery.due_ns if delivery else entry.deliver_at_ns
            left_s = (due_ns - now_ns) / NS
            if delivery is not None and delivery.attempt:
                return (
                    "backing_off",
                    f"Attempt {delivery.attempt} failed ({_first_line(delivery.reason)}); "
                    f"the next is due in {left_s:.1f} s.",
                    {"attempt": delivery.attempt, "left_s": left_s, "reason": delivery.reason},
                )
            return ("delayed", f"It is due in {left_s:.1f} s.", {"left_s": left_s})
        if state is State.PARKED:
            assert delivery is not None and delivery.key is not None
            ahead, key = group.ahead_of(seq), delivery.key.decode()
            return (
                "key_busy",
                f"Message {ahead[0]} of the same key {key!r} is not settled; "
                f"{len(ahead)} of that key are before it.",
                {"key": key, "ahead": len(ahead), "holder_seq": ahead[0]},
            )
        if state is State.BLOCKED:
            return self._reason_blocked(group, entry, now_ns)
        if state is State.DEAD:
            assert delivery is not None
            return (
                "dead",
                f"It is a dead letter after {_attempts(delivery.attempt)}: "
                f"{_first_line(delivery.reason)}. Redrive it to try again.",
                {"attempts": delivery.attempt, "reason": delivery.reason},
            )
        if state is State.EXPIRED:
            return (
                "expired",
                "Its time to live is over.",
                {"expires_at": entry.expires_at_ns / NS},
            )
        return self._reason_ready(group, entry, now_ns)

    def _reason_blocked(
        self, group: Group, entry: Entry, now_ns: int
    ) -> tuple[str, str, Mapping[str, object]]:
        core, seq = self._core, entry.seq
        after = unpack_after((entry.attributes or {})[AFTER])
        missing = [one for one in after.seqs(seq) if not group.is_settled(one)]
        elsewhere = [
            one for one in after.elsewhere if seq in group.dependencies.elsewhere.get(one, ())
        ]
        count = len(missing) + len(elsewhere)
        states = {
            core.name_of(one): group.state_of(one, now_ns).name.lower()
            for one in missing[:_MOST_MISSING]
        }
        left = _MOST_MISSING - len(states)
        states |= {core.name_of(one): "in another queue" for one in elsewhere[:left]}
        named = ", ".join(f"{id_} ({state})" for id_, state in islice(states.items(), _MOST_NAMED))
        more = f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""
        wait = group.dependencies.waits.get(seq)
        if wait is not None and wait.gate is not None:
            gate = core.name_of(wait.gate)
            return (
                "blocked",
                f"It is behind gate {gate}, which is not open: the messages behind it are not "
                f"published as a whole yet.",
                {"missing": list(states), "missing_count": count, "gate": gate},
            )
        return (
            "blocked",
            f"It comes after {count} message{'s' if count != 1 else ''} not done yet: "
            f"{named}{more}.",
            {"missing": list(states), "missing_count": count},
        )

    def _reason_ready(
        self, group: Group, entry: Entry, now_ns: int
    ) -> tuple[str, str, Mapping[str, object]]:
        core = self._core
        if core.state.paused:
            return ("paused", "The queue is paused; resume it.", {})
        group.waiting.promote(now_ns)
        if group.gate is not None:
            limited = _reason_limited(group.gate, "The queue", "max_in_flight", "delivery", now_ns)
            if limited is not None:
                return limited
        if group.fair is not None:
            tenant = group.fair.tenant_of(entry.seq)
            who = f"Tenant {tenant.name.decode()!r}" if tenant.name else "What has no tenant"
            limited = _reason_limited(tenant.gate, who, "tenant_max_in_flight", "tenant", now_ns)
            if limited is not None:
                return limited
        if next(core.in_order(group, now_ns), None) == entry.seq:
            return ("next", "It is the next message: it is delivered when a consumer asks.", {})
        delivery = group.deliveries.get(entry.seq)
        priority = delivery.priority if delivery else entry.priority
        if group.fair is not None:
            before, tenants = group.fair.place_of(
                entry.seq, priority, core.published_ns, _MOST_COUNTED
            )
            turns = "take turns" if core.settings.fair else "have ready messages"
            return (
                "behind_others",
                f"It is ready; {before}{'+' if before == _MOST_COUNTED else ''} of its tenant and "
                f"priority are before it, and {tenants} tenants {turns}.",
                {"same_tenant": before, "tenants": tenants},
            )
        higher = sum(len(lane) for lane in group.waiting.lanes[priority + 1 :])
        own = islice(group.waiting.lanes[priority].in_order(core.published_ns), _MOST_COUNTED)
        same = next((n for n, seq in enumerate(own) if seq == entry.seq), _MOST_COUNTED)
        return (
            "behind_others",
            f"It is ready; {higher} of a higher priority and {same}"
            f"{'+' if same == _MOST_COUNTED else ''} of its own are before it.",
            {"higher_priority": higher, "same_priority": same},
        )

    def retry_info(self, id_: str, group_name: str) -> RetryInfo:
        """Return how often a message was tried, and when it is tried next."""
        core = self._core
        entry = self.entry(id_)
        with core.lock, core.change:
            group = core.group(group_name)
            state = self._state(group, entry)
            delivery = group.deliveries.get(entry.seq)
            attempts = group.attempts_of(entry.seq)
            next_ns, reason, first_ns, last_ns = 0, "", 0, 0
            if delivery is not None:
                reason = delivery.reason
                first_ns, last_ns = delivery.first_failure_ns, delivery.last_failure_ns
            if state is State.SCHEDULED:
                next_ns = delivery.due_ns if delivery else entry.deliver_at_ns
        if state is State.DONE:  # read the event log, without the lock
            for event in events_of(core.ledger, entry.seq, group.number):
                attempts = max(attempts, event.attempt)
                if event.type in (EventType.NACKED, EventType.TIMED_OUT, EventType.DEAD):
                    first_ns, last_ns = first_ns or event.timestamp_ns, event.timestamp_ns
                    reason = event.reason
        return RetryInfo(
            id_,
            group.name,
            state.name.lower(),
            attempts,
            core.max_attempts_in(entry),
            next_ns,
            reason,
            first_ns,
            last_ns,
        )

    def history(
        self, id_: str, group_name: str | None, *, skip: int = 0, limit: int | None = None
    ) -> list[HistoryEvent]:
        """Return what happened to a message, oldest first: up to `limit` events after `skip`."""
        core = self._core
        entry = self.entry(id_)
        with core.lock, core.change:
            names = {number: group.name for number, group in core.state.groups.items()}
            number = None if group_name is None else core.group(group_name).number
        published = HistoryEvent("published", entry.timestamp_ns, None, 0, "", "", 0, 0)
        found = (
            HistoryEvent(
                event.type.name.lower(),
                event.timestamp_ns,
                None if event.group == ALL_GROUPS else names.get(event.group),
                event.attempt,
                _reason_of(event),
                event.holder,
                event.retry_at_ns,
                event.event_seq,
            )
            for event in events_of(core.ledger, entry.seq, number)
        )
        end = None if limit is None else skip + limit
        return list(islice(chain([published], found), skip, end))


def _reason_limited(
    gate: Gate, who: str, in_flight: str, rate: str, now_ns: int
) -> tuple[str, str, Mapping[str, object]] | None:
    """Return why a limit holds a ready message back; None if it does not."""
    if gate.is_full:
        return (
            "limited",
            f"{who} has its maximum of {gate.in_flight} in flight ({in_flight}); the end of a "
            f"lease makes room.",
            {"limit": in_flight, "in_flight": gate.in_flight},
        )
    left_s = (gate.free_ns(now_ns) - now_ns) / NS
    if left_s <= 0:
        return None
    return (
        "limited",
        f"{who} is at its rate ({rate}_rate_per_s); the next may go in {left_s:.1f} s.",
        {"limit": f"{rate}_rate_per_s", "left_s": left_s},
    )


def _first_line(reason: str) -> str:
    """Return a reason for a sentence: what follows its first line is a traceback."""
    return reason.partition("\n")[0] or "no reason given"


def _reason_of(event: Event) -> str:
    if event.type is EventType.SCHEDULE_FIRED:
        return f"schedule {event.name}, due at {rfc3339(event.due_ns)}"
    return event.reason


def _state_at(group: Group, message: Entry | Message, now_ns: int) -> State:
    state = group.state_of(message.seq, now_ns)
    waits = state in WAITING_STATES
    return State.EXPIRED if waits and 0 < message.expires_at_ns <= now_ns else state


def _is_expired(message: Message | None, now_ns: int) -> bool:
    return message is not None and 0 < message.expires_at_ns <= now_ns


def _joined(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield rising runs; adjacent and overlapping ones as one."""
    first = last = 0
    for at, end in runs:
        if at > last:
            if last:
                yield first, last
            first = at
        last = max(last, end)
    if last:
        yield first, last


def _attempts(number: int) -> str:
    return f"{number} attempt" if number == 1 else f"{number} attempts"
