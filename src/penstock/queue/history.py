"""The history of one message, from the event log.

Most events name the messages they are about. A purge, a seek and the creation of a group name a
position in the log instead: whether they change a message depends on its state at that time.

`Endings` tells how messages ended that are no longer in memory: acked, expired, cancelled. A
message may end long after it was published, so the whole event log must be read. The endings that
were read are kept as runs of seqs, and the next question reads only the events since.
"""

from collections.abc import Iterable, Iterator

from penstock.codec import Entry
from penstock.errors import BadEntry
from penstock.ledger import Cursor, Ledger
from penstock.locks import Lock
from penstock.queue.attributes import carried_in, may_carry
from penstock.queue.delivery import State
from penstock.queue.events import ALL_GROUPS, MAIN_GROUP, Event, EventType, decode, names
from penstock.queue.runs import Runs

_CHUNK = 500
_LEADS_TO = {
    EventType.LEASED: State.LEASED,
    EventType.DEAD_LEASED: State.LEASED,
    EventType.DEAD: State.DEAD,
    EventType.NACKED: State.READY,
    EventType.TIMED_OUT: State.READY,
    EventType.RELEASED: State.READY,
    EventType.REDRIVEN: State.READY,
    EventType.EXTENDED: State.LEASED,
    EventType.PROGRESSED: State.LEASED,
    EventType.RESOLVED: State.READY,
}  # all others: done
_BY_POSITION = frozenset({EventType.GROUP_CREATED, EventType.PURGED, EventType.SOUGHT})


def events_of(ledger: Ledger, seq: int, group: int | None) -> Iterator[Event]:
    """Yield the events that changed a message, in one group or in any, oldest first."""
    states: dict[int, State] = {MAIN_GROUP: State.READY}  # group -> waiting, leased, dead or done
    for event in _in_order(ledger, seq):
        wanted = group is None or event.group in (group, ALL_GROUPS)
        if _reaches(event, seq, states) and wanted:
            yield event


def _reaches(event: Event, seq: int, states: dict[int, State]) -> bool:
    """Return whether an event changes the message. Update its state in each group."""
    groups = list(states) if event.group == ALL_GROUPS else [event.group]
    match event.type:
        case EventType.GROUP_CREATED:
            states[event.group] = State.READY if seq >= event.target_seq else State.DONE
            return False
        case EventType.GROUP_DELETED | EventType.PAUSED | EventType.RESUMED:
            return False
        case EventType.SCHEDULE_FIRED:
            return event.runs[:1] == ((seq, 1),)  # its state is not changed
        case EventType.PURGED:
            reached = [
                group
                for group in groups
                if seq < event.target_seq and states.get(group, State.READY) is State.READY
            ]
            states.update(dict.fromkeys(reached, State.DONE))
            return bool(reached)
        case EventType.SOUGHT:
            before = states.get(event.group, State.READY)
            if seq >= event.target_seq:
                states[event.group] = State.READY
                return True
            states[event.group] = State.DEAD if before is State.DEAD else State.DONE
            return before in (State.READY, State.LEASED)
    if not any(first <= seq < first + count for first, count in event.runs):
        return False
    states.update(dict.fromkeys(groups, _LEADS_TO.get(event.type, State.DONE)))
    return True


def _in_order(ledger: Ledger, seq: int) -> Iterator[Event]:
    """Yield the events that may reach a message: of the log, and those in messages only."""
    emitted = _emitted(ledger, seq)
    for event in all_events(ledger, about=seq):
        while emitted and emitted[0].event_seq <= event.event_seq:
            carried = emitted.pop(0)
            if (carried.type, carried.runs) != (event.type, event.runs):
                yield carried  # else it is the same event
        yield event
    yield from emitted


def all_events(ledger: Ledger, first_seq: int = 1, *, about: int | None = None) -> Iterator[Event]:
    """Yield the events that are kept and can be read.

    `about`: only those that name this message, or a position in the log. It saves the decoding.
    """
    cursor = Cursor(ledger.events, max(first_seq, ledger.events.first_seq))
    while entries := cursor.read(_CHUNK):
        for entry in entries:
            if about is not None and not (
                entry.type in _BY_POSITION or names(entry.payload, about)
            ):
                continue
            try:
                yield decode(
                    entry.type, entry.payload, timestamp_ns=entry.timestamp_ns, event_seq=entry.seq
                )
            except BadEntry:
                continue  # reported when the queue was opened


def _emitted(ledger: Ledger, seq: int) -> list[Event]:
    """Return the events of a message that were written with it, or with messages that follow."""
    cursor = Cursor(ledger.messages, seq)
    found = []
    while entries := _not_plain(cursor, ledger.messages.next_seq):
        for entry in entries:
            carried = carried_in(entry) if may_carry(entry, seq) else None
            if carried and any(first <= seq < first + n for first, n in carried[1].runs):
                found.append(carried[1])
    return found


def _not_plain(cursor: Cursor, end: int) -> list[Entry]:
    """Return the next entries after plain messages, which are skipped quickly."""
    while cursor.skip_plain(end) != (0, 0):
        pass
    return cursor.read(_CHUNK)


# -- how messages ended ----------------------------------------------------------------------------

_ENDINGS = {EventType.EXPIRED: State.EXPIRED, EventType.CANCELLED: State.CANCELLED}
_LAST = frozenset(
    {
        EventType.TAKEN,
        EventType.ACKED,
        EventType.DISCARDED,
        EventType.DROPPED,
        EventType.LOST,
        *_ENDINGS,
    }
)
_NO_STATE = frozenset({EventType.DEDUPLICATED, EventType.SCHEDULE_FIRED})
_ALL_SEQS = 1 << 63


class Endings:
    """The endings in the event log of a queue."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = Lock()
        self._is_whole = False
        self._next_event = 1
        # By group and event. A group's own runs are later than those of all groups. SOUGHT: the
        # endings before a seek do not count.
        self._runs: dict[tuple[int, EventType], Runs] = {}

    def of(self, group: int, seqs: Iterable[int]) -> dict[int, State]:
        """Return how each of these messages ended in a group, without those that were acked."""
        with self._lock:
            self._catch_up()
            candidates = self._candidates(group)
            found: dict[int, State] = {}
            for seq in seqs:
                last = _last(seq, candidates)
                if last in _ENDINGS:
                    found[seq] = _ENDINGS[last]
            return found

    def last_event(self, group: int, seq: int) -> EventType | None:
        """Return the event that ended a message. None: its history may know more."""
        with self._lock:
            self._catch_up()
            last = _last(seq, self._candidates(group))
            return None if last is EventType.SOUGHT else last

    def _candidates(self, group: int) -> list[tuple[EventType, Runs]]:
        own = [(event, runs) for (number, event), runs in self._runs.items() if number == group]
        shared = [(event, runs) for (n, event), runs in self._runs.items() if n == ALL_GROUPS]
        return own + shared

    def _catch_up(self) -> None:
        """Read the events since the last time. Caller holds the lock."""
        if not self._is_whole:  # never read, or an interrupt came while it was read
            self._next_event, self._runs = 1, {}
        self._is_whole = False
        ledger = self._ledger
        for event in all_events(ledger, self._next_event):
            self._note(event)
            self._next_event = event.event_seq + 1
        for runs in self._runs.values():
            runs.discard(0, ledger.messages.first_seq)  # no listing shows them
        self._is_whole = True

    def _note(self, event: Event) -> None:
        """A message may end again after a seek: the last ending counts."""
        changed: Iterable[tuple[int, int]] = event.runs
        if event.type is EventType.SOUGHT:
            changed = ((event.target_seq, _ALL_SEQS - event.target_seq),)
        elif event.type in _NO_STATE or not event.runs:
            return
        for first, count in changed:
            for (group, _), runs in self._runs.items():
                if event.group in (group, ALL_GROUPS):
                    runs.discard(first, first + count)
            if event.type in _LAST or event.type is EventType.SOUGHT:
                key = (event.group, event.type)
                if key not in self._runs:
                    self._runs[key] = Runs()
                self._runs[key].add(first, first + count)


def _last(seq: int, candidates: Iterable[tuple[EventType, Runs]]) -> EventType | None:
    return next((event for event, runs in candidates if seq in runs), None)
