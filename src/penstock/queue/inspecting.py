"""Looking: one message, many, counts, the reason, the history. Nothing here changes anything."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain, islice

from penstock import codec
from penstock.checking import check_whole
from penstock.codec import Entry
from penstock.errors import EntryGone, InvalidInput, NoSuchMessage, PayloadUnreadable
from penstock.ledger import Cursor, read_entry
from penstock.model import (
    NS,
    DeadLetter,
    GroupStats,
    HistoryEvent,
    Message,
    RetryInfo,
    Stats,
    Why,
)
from penstock.queue.core import QueueCore
from penstock.queue.endings import Endings
from penstock.queue.events import ALL_GROUPS, Cause, EventType
from penstock.queue.flight import Flight, State
from penstock.queue.group import Group
from penstock.queue.history import events_of
from penstock.queue.messages import NO_BYTE_LIMIT, size_of
from penstock.queue.order import in_order

STATES = {state.name.lower(): state for state in State}
_CHUNK = 500
_MOST_COUNTED = 10_000  # of those that are before a message
MAX_PEEK = 1_000_000


class Inspecting:
    """The looking side of a queue."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._endings = Endings(core)

    # -- one message -------------------------------------------------------------------------------

    def entry(self, id_: str) -> Entry:
        """The entry of a message id; NoSuchMessage if the id is not one of this queue's."""
        core = self._core
        milliseconds, identity, seq = codec.parse_id(id_)
        if identity != core.identity:
            raise NoSuchMessage(f"{id_} is the id of a message of another queue")
        try:
            entry = read_entry(core.ledger.messages, seq)
        except EntryGone as error:
            raise NoSuchMessage(f"there is no message {id_} (any more): {error}") from None
        if entry.timestamp_ns // 1_000_000 != milliseconds:
            raise NoSuchMessage(f"there is no message {id_}")
        return entry

    def get(self, id_: str) -> Message:
        return self._core.message(self.entry(id_))

    def state_of(self, id_: str, group_name: str) -> str:
        """The state of a message in a group, as a word."""
        entry = self.entry(id_)
        with self._core.lock, self._core.change:
            return self._state(self._core.group(group_name), entry).name.lower()

    def _state(self, group: Group, entry: Entry) -> State:
        core = self._core
        core.catch_up()
        now_ns = core.clock.now_ns()
        state = group.state_of(entry.seq, now_ns)
        waits = state in (State.READY, State.SCHEDULED, State.PARKED)
        return State.EXPIRED if waits and 0 < entry.expires_at_ns <= now_ns else state

    # -- many --------------------------------------------------------------------------------------

    def peek(self, count: int, group_name: str, max_bytes: int = NO_BYTE_LIMIT) -> list[Message]:
        """The messages that would be delivered next: at least one, and no more than fit into
        `max_bytes`."""
        core = self._core
        check_whole("n", count, 1, MAX_PEEK)
        with core.lock, core.change:
            core.ledger.check_open()
            core.catch_up()
            group = core.group(group_name)
            now_ns = core.clock.now_ns()
            group.promote(now_ns)
            found: list[Message] = []
            size = 0
            for seq in in_order(core, group, now_ns):
                if len(found) == count:
                    break
                message = self._readable(seq)
                if message is None or 0 < message.expires_at_ns <= now_ns:
                    continue
                size += size_of(message)
                if found and size > max_bytes:
                    break
                found.append(message)
            return found

    def browse(
        self, state: str | None, group_name: str, *, after_seq: int = 0
    ) -> Iterator[Message]:
        """Messages by state, in seq order; all that are not done if no state is asked for."""
        found = self.search(state, group_name, after_seq=after_seq)
        return (message for _, message in found if message is not None)

    def search(
        self, state: str | None, group_name: str, *, after_seq: int = 0
    ) -> Iterator[tuple[int, Message | None]]:
        """As `browse`, with each seq that is looked at; None for a message in another state."""
        if state is not None and state not in STATES:
            raise InvalidInput(f"there is no state {state!r}; the states are {', '.join(STATES)}")
        wanted = None if state is None else STATES[state]
        core = self._core
        core.ledger.check_open()
        if wanted in (State.DONE, State.EXPIRED, State.CANCELLED):
            return self._browse_log(wanted, group_name, after_seq)
        with core.lock, core.change:
            core.catch_up()
            group = core.group(group_name)
            now_ns = core.clock.now_ns()
            group.promote(now_ns)
            runs = self._runs(group, wanted)
        found = self._messages(
            (max(first, after_seq + 1), end) for first, end in runs if end > after_seq + 1
        )
        if wanted in (State.READY, State.SCHEDULED, State.PARKED):
            return ((s, m) for s, m in found if m is None or not 0 < m.expires_at_ns <= now_ns)
        return found

    def _messages(self, runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, Message | None]]:
        for first, end in runs:
            for seq in range(first, end):
                yield seq, self._readable(seq)

    def _browse_log(
        self, wanted: State, group_name: str, after_seq: int
    ) -> Iterator[tuple[int, Message | None]]:
        """What is done has no place in memory: how it ended is asked of the event log."""
        core = self._core
        cursor = Cursor(core.ledger.messages, after_seq + 1)
        while entries := cursor.read(_CHUNK):
            with core.lock, core.change:
                group = core.group(group_name)
                number = group.number
                states = [self._state(group, entry) for entry in entries]
            seqs = [
                entry.seq
                for entry, state in zip(entries, states, strict=True)
                if state is State.DONE
            ]
            ended = self._endings.of(number, seqs)
            for entry, state in zip(entries, states, strict=True):
                is_wanted = ended.get(entry.seq, state) is wanted
                yield entry.seq, self._readable(entry.seq) if is_wanted else None

    def _runs(self, group: Group, wanted: State | None) -> list[tuple[int, int]]:
        """The seqs in a state (or in any but done), as rising runs."""
        parts: list[Iterable[tuple[int, int]]] = []
        if wanted in (None, State.READY):
            parts += [list(lane.fresh.pairs()) for lane in group.lanes]
            parts += [[(seq, seq + 1) for _, seq in lane.due] for lane in group.lanes]
        if wanted in (None, State.SCHEDULED):
            parts.append([(seq, seq + 1) for _, seq in group.scheduled_items()])
        if wanted in (None, State.LEASED):
            parts.append([(seq, seq + 1) for seq in group.leases])
        if wanted in (None, State.PARKED):
            parked = [s for s, f in group.flights.items() if f.state is State.PARKED]
            parts.append([(seq, seq + 1) for seq in parked])
        if wanted in (None, State.DEAD):
            parts.append([(seq, seq + 1) for seq in group.dead])
        return list(merge(*(sorted(part) for part in parts)))

    def _readable(self, seq: int) -> Message | None:
        try:
            return self._core.message(read_entry(self._core.ledger.messages, seq))
        except (EntryGone, PayloadUnreadable):
            return None

    # -- dead letters ------------------------------------------------------------------------------

    def dead(self, group_name: str) -> Iterator[DeadLetter]:
        """The dead letters of a group, oldest death first."""
        core = self._core
        with core.lock, core.change:
            core.tick()
            dead = list(core.group(group_name).dead.items())
        for seq, flight in dead:
            letter = self.dead_letter(seq, flight)
            if letter is not None:
                yield letter

    def dead_letter(self, seq: int, flight: Flight) -> DeadLetter | None:
        core = self._core
        try:
            entry = read_entry(core.ledger.messages, seq)
        except EntryGone:
            return None
        try:
            message = core.message(entry)
        except PayloadUnreadable:
            message = core.message(entry._replace(compression=0))  # the bytes as they are stored
        headers = {
            **message.headers,
            "dlq.original_msg_id": message.id,
            "dlq.retry_count": str(flight.attempt),
            "dlq.failure_reason": flight.reason,
            "dlq.last_failure": str(flight.last_failure_ns / NS),
        }
        return DeadLetter(
            message._replace(headers=headers),
            flight.attempt,
            flight.reason,
            Cause(flight.cause).name.lower() if flight.cause else "",
            flight.first_failure_ns,
            flight.last_failure_ns,
        )

    # -- counts ------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """All counts; none of them is counted, so this costs the same whatever waits."""
        core = self._core
        with core.lock, core.change:
            now_ns = core.tick()
            groups = {g.name: self._group_stats(g, now_ns) for g in core.state.groups.values()}
            ledger = core.ledger
            main = groups["main"]
            return Stats(
                ready=main.ready,
                scheduled=main.scheduled,
                leased=main.leased,
                parked=main.parked,
                dead=main.dead,
                published=ledger.messages.next_seq - 1,
                acked=main.acked,
                nacked=main.nacked,
                timed_out=main.timed_out,
                expired=main.expired,
                cancelled=main.cancelled,
                dead_lettered=main.dead_lettered,
                redriven=main.redriven,
                discarded=main.discarded,
                retrying=main.retrying,
                read_position=main.read_position,
                deduplicated=core.state.deduplicated,
                dedup_entries=len(core.state.dedup),
                dedup_evicted=core.state.dedup.evicted,
                oldest_ready_age_s=main.oldest_ready_age_s,
                paused=core.state.paused,
                next_seq=ledger.messages.next_seq,
                first_seq=ledger.messages.first_seq,
                message_log_bytes=ledger.messages.size_bytes(),
                event_log_bytes=ledger.events.size_bytes(),
                segments=len(ledger.messages.segments.all) + len(ledger.events.segments.all),
                damaged=len(ledger.damage),
                groups=groups,
            )

    def _group_stats(self, group: Group, now_ns: int) -> GroupStats:
        total = group.totals
        heads = [lane.head(self._core.published_ns) for lane in group.lanes if len(lane)]
        oldest_ns = min((head[0] for head in heads if head), default=now_ns)
        return GroupStats(
            ready=group.ready,
            scheduled=group.scheduled,
            leased=len(group.leases),
            parked=group.parked,
            dead=len(group.dead),
            delivered=total[EventType.LEASED] + total[EventType.TAKEN],
            acked=total[EventType.ACKED] + total[EventType.TAKEN],
            nacked=total[EventType.NACKED],
            timed_out=total[EventType.TIMED_OUT],
            expired=total[EventType.EXPIRED],
            cancelled=total[EventType.CANCELLED],
            dead_lettered=total[EventType.DEAD],
            redriven=total[EventType.REDRIVEN],
            discarded=total[EventType.DISCARDED],
            retrying=group.retrying,
            read_position=group.first_fresh or self._core.ledger.messages.next_seq,
            oldest_ready_age_s=max(now_ns - oldest_ns, 0) / NS,
        )

    # -- why and history ---------------------------------------------------------------------------

    def why(self, id_: str, group_name: str) -> Why:
        """The exact reason why a message is not being delivered now."""
        core = self._core
        entry = self.entry(id_)
        with core.lock, core.change:
            group = core.group(group_name)
            state = self._state(group, entry)
            now_ns = core.clock.now_ns()
            if state is not State.DONE:
                code, sentence, details = self._reason(group, entry, state, now_ns)
        if state is State.DONE:  # the whole event log may have to be read: not under the lock
            code, sentence, details = self._reason_done(entry.seq, group.number)
        return Why(id_, group.name, state.name.lower(), code, sentence, details)

    def _reason_done(self, seq: int, group: int) -> tuple[str, str, Mapping[str, object]]:
        last = deque(events_of(self._core.ledger, seq, group), maxlen=1)
        what = last[0].type.name.lower() if last else "settled, or lies before the group's start"
        return ("done", f"It is done: {what}.", {"last_event": what})

    def _reason(
        self, group: Group, entry: Entry, state: State, now_ns: int
    ) -> tuple[str, str, Mapping[str, object]]:
        seq, flight = entry.seq, group.flights.get(entry.seq)
        if state is State.LEASED:
            lease = group.leases[seq]
            left_s = (lease.ends_mono_ns - self._core.clock.monotonic_ns()) / NS
            who = f" by {lease.holder}" if lease.holder else ""
            return (
                "leased",
                f"It is being worked on{who} (attempt {lease.attempt}); the lease ends in "
                f"{max(left_s, 0):.1f} s.",
                {"attempt": lease.attempt, "left_s": max(left_s, 0.0), "holder": lease.holder},
            )
        if state is State.SCHEDULED:
            due_ns = flight.due_ns if flight else entry.deliver_at_ns
            left_s = (due_ns - now_ns) / NS
            if flight is not None and flight.attempt:
                return (
                    "backing_off",
                    f"Attempt {flight.attempt} failed ({flight.reason or 'no reason given'}); the "
                    f"next is due in {left_s:.1f} s.",
                    {"attempt": flight.attempt, "left_s": left_s, "reason": flight.reason},
                )
            return ("delayed", f"It is due in {left_s:.1f} s.", {"left_s": left_s})
        if state is State.PARKED:
            assert flight is not None
            ahead = group.ahead_in_line(seq)
            return (
                "key_busy",
                f"Message {ahead[0]} of the same key {flight.key!r} is not settled; "
                f"{len(ahead)} of that key are before it.",
                {"key": flight.key, "ahead": len(ahead), "holder_seq": ahead[0]},
            )
        if state is State.DEAD:
            assert flight is not None
            return (
                "dead",
                f"It is a dead letter after {flight.attempt} attempts: "
                f"{flight.reason or 'no reason given'}. Redrive it to try again.",
                {"attempts": flight.attempt, "reason": flight.reason},
            )
        if state is State.EXPIRED:
            return (
                "expired",
                "Its time to live is over.",
                {"expires_at": entry.expires_at_ns / NS},
            )
        return self._reason_ready(group, entry, now_ns)

    def _reason_ready(
        self, group: Group, entry: Entry, now_ns: int
    ) -> tuple[str, str, Mapping[str, object]]:
        core = self._core
        if core.state.paused:
            return ("paused", "The queue is paused; resume it.", {})
        group.promote(now_ns)
        if next(in_order(core, group, now_ns), None) == entry.seq:
            return ("next", "It is the next to be delivered, as soon as someone asks.", {})
        flight = group.flights.get(entry.seq)
        priority = flight.priority if flight else entry.priority
        higher = sum(len(lane) for lane in group.lanes[priority + 1 :])
        own = islice(group.lanes[priority].in_order(core.published_ns), _MOST_COUNTED)
        same = next((n for n, seq in enumerate(own) if seq == entry.seq), _MOST_COUNTED)
        return (
            "behind_others",
            f"It is ready; {higher} of a higher priority and {same}"
            f"{'+' if same == _MOST_COUNTED else ''} of its own are before it.",
            {"higher_priority": higher, "same_priority": same},
        )

    def retry_info(self, id_: str, group_name: str) -> RetryInfo:
        """How often a message was tried, and when it is tried next."""
        core = self._core
        entry = self.entry(id_)
        with core.lock, core.change:
            group = core.group(group_name)
            state = self._state(group, entry)
            lease, flight = group.leases.get(entry.seq), group.flights.get(entry.seq)
            attempts = lease.attempt if lease else flight.attempt if flight else 0
            next_ns, reason, first_ns, last_ns = 0, "", 0, 0
            if flight is not None:
                reason = flight.reason
                first_ns, last_ns = flight.first_failure_ns, flight.last_failure_ns
            if state is State.SCHEDULED:
                next_ns = flight.due_ns if flight else entry.deliver_at_ns
        if state is State.DONE:  # no longer in memory: ask the event log, without the lock
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
            core.max_attempts_of(entry.seq),
            next_ns,
            reason,
            first_ns,
            last_ns,
        )

    def history(
        self, id_: str, group_name: str | None, *, skip: int = 0, limit: int | None = None
    ) -> list[HistoryEvent]:
        """What happened to a message, oldest first: all, or at most `limit` behind the first
        `skip`."""
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
                event.reason,
                event.holder,
                event.retry_at_ns,
                event.event_seq,
            )
            for event in events_of(core.ledger, entry.seq, number)
        )
        end = None if limit is None else skip + limit
        return list(islice(chain([published], found), skip, end))
