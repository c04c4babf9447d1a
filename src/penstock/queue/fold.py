"""Recovery: fold the state of a queue from its newest snapshot and the logs since."""

from collections import deque
from collections.abc import Callable

from penstock.codec import Entry
from penstock.codec.layout import DEFAULT_PRIORITY
from penstock.errors import BadEntry, NewerVersion
from penstock.ledger import Cursor, Damage, Ledger
from penstock.ledger.segment_header import COMPACTED
from penstock.ledger.snapshots import Snapshot, snapshot_name
from penstock.queue.attributes import TENANT, carried_in
from penstock.queue.events import Event, EventType, decode
from penstock.queue.limits import Limits
from penstock.queue.snapshot import load_state
from penstock.queue.state import QueueState

_CHUNK = 1000
_MOST_LOST = 1 << 40  # messages in a power cut; an event about more than that is invalid
MOVES_A_GROUP = frozenset([EventType.SOUGHT, EventType.GROUP_CREATED])


def fold(
    ledger: Ledger,
    *,
    dedup_entries: int,
    result_entries: int | None = None,
    limits: Limits | None = None,
) -> QueueState:
    """Return the state that the snapshot and the logs give. Change nothing on disk.

    Plain messages may be appended meanwhile. `catch_up` feeds them later.
    """

    def new_state() -> QueueState:
        return QueueState(dedup_entries=dedup_entries, result_entries=result_entries, limits=limits)

    state, next_event = _newest_that_loads(ledger, new_state)
    if limits is not None and limits.has_tenants:
        if not state.knows_tenants:
            _read_tenants(ledger, state)
        for group in state.groups.values():
            group.share()
    removed_upto = _removed_upto(ledger, next_event)
    if next_event < removed_upto:
        ledger.check_snapshots_stayed()
        reason = "these events were removed, and no snapshot includes them: settled messages"
        removed = (next_event, removed_upto - 1)
        ledger.report(Damage("snapshots", 0, 0, *removed, f"{reason} may be delivered again"))
    next_seq = ledger.messages.next_seq
    in_snapshot = state.ingested_upto
    state.spoken_of = max(in_snapshot, next_seq)
    state.next_event = max(ledger.events.next_seq, next_event)
    settlements, lost = _feed_new_messages(ledger, state, next_seq)
    events = Cursor(ledger.events, next_event, unsynced=True)
    while entries := events.read(_CHUNK):
        for entry in entries:
            while settlements and settlements[0][0] <= entry.seq:
                state.apply(settlements.popleft()[1])
            event = _decoded(ledger, entry)
            if event is None:
                continue
            if event.upto_seq - next_seq < _MOST_LOST:
                state.spoken_of = max(state.spoken_of, event.upto_seq)
            needed = _needed_upto(event)
            # Recovery may have skipped their seqs, and stopped before its snapshot was saved.
            if needed > next_seq or any(needed - 1 in seqs for seqs in lost):
                state.differs_from_log = True  # written with messages, and those were lost
            else:
                apply_and_feed(ledger, state, event)
    for before_event, event in settlements:
        state.apply(event)
        state.next_event = max(state.next_event, before_event)
    _report_lost(ledger, state, in_snapshot, next_event)
    if not ledger.read_only:  # a reader keeps its view while a writer replaces the files
        ledger.messages.segments.close()  # read once, from end to end: free the memory
        ledger.events.segments.close()
    return state


def _needed_upto(event: Event) -> int:
    """Return the seq behind the messages without which an event did not happen; 0: any event."""
    if event.type is EventType.ACKED:
        return event.target_seq
    return event.upto_seq if event.type is EventType.SCHEDULE_FIRED else 0


def _removed_upto(ledger: Ledger, next_event: int) -> int:
    """Return the seq below which events were removed, as far as it is known without a full read."""
    first = Cursor(ledger.events, next_event).read(1)
    segment = ledger.events.segments.holding(next_event)
    if first and segment is not None and segment.header.flags & COMPACTED:
        return max(ledger.marks(ledger.events).low, first[0].seq)
    return ledger.marks(ledger.events).low


def _report_lost(ledger: Ledger, state: QueueState, in_snapshot: int, after_snapshot: int) -> None:
    """Report the missing ends of the logs: entries that a snapshot or the other log refers to.

    A snapshot is saved when everything in it is on disk, so anything the logs lack of it is damage.
    After a power cut before a sync, one log may refer to entries that the other has lost.
    """
    messages, events = ledger.messages, ledger.events
    next_seq, next_event = messages.next_seq, max(events.next_seq, after_snapshot)
    if next_seq < state.spoken_of:
        next_seq = max(next_seq, ledger.next_seq_now(messages))
    if next_seq < in_snapshot:
        reason = "a snapshot includes messages that are not in the log"
        lost = Damage("messages", 0, 0, next_seq, in_snapshot - 1, reason)
        ledger.report_missing("messages", lost)
        next_seq = in_snapshot
    if next_seq < state.spoken_of:
        reason = "events refer to messages that are not in the log: lost before they were synced"
        lost = Damage("messages", 0, 0, next_seq, state.spoken_of - 1, reason, torn=True)
        ledger.report_missing("messages", lost)
    if next_event < state.next_event:
        next_event = max(next_event, ledger.next_seq_now(events))
    if next_event < state.next_event:
        reason = "messages refer to events that are not in the log: lost before they were synced"
        lost = Damage("events", 0, 0, next_event, state.next_event - 1, reason, torn=True)
        ledger.report_missing("events", lost)


def _newest_that_loads(
    ledger: Ledger, new_state: Callable[[], QueueState]
) -> tuple[QueueState, int]:
    """Return the state of the newest snapshot that loads, and the next event. Else start empty."""
    snapshot = ledger.load_snapshot()
    while snapshot is not None:
        state = new_state()
        try:
            load_state(state, snapshot.blob)
            return state, snapshot.event_seq + 1
        except NewerVersion:
            raise
        except BadEntry as error:
            name = f"snapshots/{snapshot_name(snapshot.event_seq)}"
            ledger.report(Damage(name, 0, 0, 1, 0, error.reason))
            snapshot = _older_than(ledger, snapshot.event_seq)
    return new_state(), 1


def _read_tenants(ledger: Ledger, state: QueueState) -> None:
    """Read the tenants of messages of a snapshot that was saved while no setting needed them."""
    groups = [group for group in state.groups.values() if group.undelivered or group.dead]
    if not groups:
        return
    end = state.ingested_upto
    cursor = Cursor(ledger.messages, min(group.lowest_unsettled for group in groups), unsynced=True)
    while True:
        while cursor.skip_plain(end) != (0, 0):
            pass
        entries = cursor.read(_CHUNK)
        for entry in entries:
            name = (entry.attributes or {}).get(TENANT)
            if name and entry.seq < end:
                for group in groups:
                    if group.fair is not None and not group.is_settled(entry.seq):
                        group.fair.join(entry.seq, name)
        if not entries or entries[-1].seq >= end:
            return


def _older_than(ledger: Ledger, event_seq: int) -> Snapshot | None:
    for older in reversed(ledger.snapshot_seqs()):
        if older < event_seq:
            try:
                return ledger.read_snapshot(older)
            except (OSError, ValueError):
                continue  # reported by the first search
    return None


def leave_out_what_was_lost(ledger: Ledger, state: QueueState) -> None:
    """Skip the seqs that the logs refer to and that were lost in a power cut.

    The logs are synced independently, so an event may survive the message it is about. If the seq
    were used again, the event would apply to the new message.
    """
    ledger.messages.skip_to(state.spoken_of)
    ledger.events.skip_to(state.next_event)
    state.ingested_upto = ledger.messages.next_seq
    for group in state.groups.values():
        group.fed_upto = ledger.messages.next_seq


def apply_and_feed(ledger: Ledger, state: QueueState, event: Event) -> None:
    """Apply an event. If it moved a group, feed the group from its new position."""
    state.apply(event)
    if event.type in MOVES_A_GROUP:
        feed_lagging_groups(ledger, state)


def feed_lagging_groups(ledger: Ledger, state: QueueState) -> None:
    """Feed every group up to the end of what was ingested."""
    end = state.ingested_upto
    lagging = [group for group in state.groups.values() if group.fed_upto < end]
    if not lagging:
        return
    cursor = Cursor(ledger.messages, min(group.fed_upto for group in lagging), unsynced=True)
    while (entries := _read_on(cursor, state, end)) and entries[0].seq < end:
        _publish(state, [entry for entry in entries if entry.seq < end])
    for group in lagging:
        group.fed_upto = end


def feed_adopted(ledger: Ledger, state: QueueState, end: int) -> None:
    """Feed the state the messages below `end`, the last of which were adopted into the log."""
    cursor = Cursor(ledger.messages, state.ingested_upto, unsynced=True)
    while (entries := _read_on(cursor, state, end)) and entries[0].seq < end:
        _publish(state, [entry for entry in entries if entry.seq < end])


def _feed_new_messages(
    ledger: Ledger, state: QueueState, end: int
) -> tuple[deque[tuple[int, Event]], list[range]]:
    """Feed the messages below `end`. Return the settlements in them, and the seqs of lost ones."""
    settlements = []
    first = min(state.ingested_upto, *(group.fed_upto for group in state.groups.values()))
    cursor = Cursor(ledger.messages, first, unsynced=True)
    known_upto = state.ingested_upto
    while entries := [entry for entry in _read_on(cursor, state, end) if entry.seq < end]:
        _publish(state, entries)
        for entry in entries:
            if entry.attributes and entry.seq >= known_upto:
                found = carried_in(entry)
                if found is not None:
                    settlements.append(found)
    state.ingested_upto = end
    for group in state.groups.values():
        group.fed_upto = end
    return deque(sorted(settlements, key=lambda found: found[0])), cursor.lost


def _read_on(cursor: Cursor, state: QueueState, end: int) -> list[Entry]:
    """Feed the plain messages that come next as runs. Return the entries after them."""
    while (run := cursor.skip_plain(end)) != (0, 0):
        state.publish_plain(*run)
    return cursor.read(_CHUNK)


def _publish(state: QueueState, entries: list[Entry]) -> None:
    """Feed the state messages, plain ones as runs."""
    first = end = 0
    for entry in entries:
        if (
            entry.deliver_at_ns == 0
            and entry.priority == DEFAULT_PRIORITY
            and entry.key is None
            and entry.attributes is None
        ):
            if entry.seq != end:
                if end:
                    state.publish_plain(first, end)
                first = entry.seq
            end = entry.seq + 1
            continue
        if end:
            state.publish_plain(first, end)
            end = 0
        state.publish(entry)
    if end:
        state.publish_plain(first, end)


def _decoded(ledger: Ledger, entry: Entry) -> Event | None:
    try:
        return decode(
            entry.type, entry.payload, timestamp_ns=entry.timestamp_ns, event_seq=entry.seq
        )
    except NewerVersion:
        raise
    except BadEntry as error:
        ledger.report(Damage("events", entry.offset, entry.size, entry.seq, entry.seq, str(error)))
        return None
