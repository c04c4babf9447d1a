"""Decisions: which events a command leads to.

    events = decide_…(state, command, now)

Pure: no file, no clock, no lock, and nothing here changes the state. What must be read from the
message log is given as a function or a value. `QueueCore.record` writes the events and applies
them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from penstock.codec import Entry
from penstock.errors import (
    EntryGone,
    InvalidInput,
    NoSuchMessage,
    PayloadUnreadable,
    QueueError,
)
from penstock.model import NS, DeadLetter, Message
from penstock.queue.after import id_text
from penstock.queue.delivery import Delivery, State
from penstock.queue.events import (
    ALL_GROUPS,
    MAIN_GROUP,
    Cause,
    Event,
    EventType,
    Outcome,
    as_written,
)
from penstock.queue.gate import ABANDONED
from penstock.queue.group import Group
from penstock.queue.messages import NO_BYTE_LIMIT, size_of
from penstock.queue.progress import Said
from penstock.queue.reasons import reason_group
from penstock.queue.receipts import Held
from penstock.queue.retry import FailedAttempt
from penstock.queue.runs import as_runs
from penstock.queue.settings import MOST_ATTEMPTS, QueueSettings
from penstock.queue.state import QueueState

RetryDelay = Callable[[FailedAttempt], int | None]  # nanoseconds; None: dead letter
MAX_GROUPS = 1000


def about(kind: EventType, group: Group, seqs: Iterable[int], attempt: int = 0) -> Event:
    """Return an event about messages of a group."""
    return Event(kind, group=group.number, attempt=attempt, runs=tuple(as_runs(seqs)))


# -- what time brings ------------------------------------------------------------------------------


def decide_due(
    group: Group,
    settings: QueueSettings,
    now_ns: int,
    mono_ns: int,
    *,
    max_attempts: Callable[[int], int],
    retry_delay: RetryDelay,
) -> list[Event]:
    """Return the timeouts of ended leases, and the dead letters to discard."""
    events: list[Event] = []
    for seq, lease in group.lease_ends.overdue(mono_ns):
        failed = FailedAttempt(
            seq, group.name, lease.attempt, max_attempts(seq), "lease ran out", timed_out=True
        )
        events.append(decide_failure(group, failed, now_ns, retry_delay))
    if group.dead:
        events += decide_stale_dead(group, settings.dead_retention_s, now_ns)
        events += decide_excess_dead(group, settings.dead_max_messages, settings.dead_max_bytes)
    return events


def decide_expired_keyed(group: Group, now_ns: int) -> list[Event]:
    """Remove waiting messages with keys that have expired, so that the next of their keys may go.

    Expired messages without keys hold up no other: a consumer skips them when it comes to them.
    """
    seqs = group.expired_keyed(now_ns)
    return [about(EventType.EXPIRED, group, sorted(seqs))] if seqs else []


def decide_failure(
    group: Group,
    failed: FailedAttempt,
    now_ns: int,
    retry_delay: RetryDelay,
    *,
    final: bool = False,
) -> Event:
    """Return what a failed attempt leads to: a retry, or a dead letter."""
    delivery = group.deliveries.get(failed.seq)
    was_dead = delivery is not None and delivery.cause > 0
    delay_ns = None
    if not (final or was_dead or failed.attempt >= failed.max_attempts):
        delay_ns = retry_delay(failed)
    cause = Cause.TIMEOUT if failed.timed_out else Cause.NACK
    event = Event(
        EventType.DEAD,
        group=group.number,
        attempt=failed.attempt,
        runs=((failed.seq, 1),),
        reason=failed.reason,
        cause=cause,
    )
    if delay_ns is None:
        return event
    kind = EventType.TIMED_OUT if failed.timed_out else EventType.NACKED
    return event._replace(type=kind, cause=0, retry_at_ns=now_ns + delay_ns)


def decide_dependents(group: Group, name_of: Callable[[int | bytes], str]) -> list[Event]:
    """Let messages die that come after one that failed, and redrive those that died so, if that
    one is redriven. Cancel those whose gate is gone. `name_of` returns the id of a message, given
    by seq or as bytes.

    All of them at once: also those that come after these, and so on.
    """
    dependencies, events = group.dependencies, list[Event]()
    if seqs := dependencies.abandoned(group.deliveries):
        event = about(EventType.CANCELLED, group, seqs)
        events.append(event._replace(group=ALL_GROUPS, reason=ABANDONED))
    for failure, seqs in dependencies.doomed(group.deliveries).items():
        reason = f"it comes after {name_of(failure.of)}, which is {failure.how}"
        event = about(EventType.DEAD, group, seqs)
        events.append(event._replace(cause=Cause.DEPENDENCY, reason=as_written("reason", reason)))
    running = dependencies.running_anyway(group.deliveries)
    if running:
        events.append(about(EventType.RESOLVED, group, running)._replace(cause=Outcome.IGNORED))
    returning = dependencies.returning(group.deliveries)
    if returning:
        events.append(about(EventType.REDRIVEN, group, returning))
    return events


def decide_resolved(group: Group, earlier: bytes, outcome: Outcome, how: str) -> list[Event]:
    """Note what became of a message of another queue. Return nothing if no message waits for it,
    or if that is known."""
    seqs = group.dependencies.unaware(earlier, outcome)
    if not seqs:
        return []
    reason = f"{id_text(earlier)}: {how}" if how else id_text(earlier)
    event = about(EventType.RESOLVED, group, seqs)
    return [event._replace(cause=outcome, reason=as_written("reason", reason))]


def decide_stale_dead(group: Group, retention_s: float, now_ns: int) -> list[Event]:
    """Discard dead letters older than `dead_retention_s`."""
    if not retention_s:
        return []
    limit_ns = now_ns - round(retention_s * NS)
    stale = []
    for seq, delivery in group.dead.items():
        if delivery.last_failure_ns > limit_ns:
            break
        stale.append((seq, 1))
    return [_discarded(group, stale, "older than dead_retention_s")] if stale else []


def decide_excess_dead(group: Group, max_messages: int, max_bytes: int) -> list[Event]:
    """Discard the oldest dead letters beyond a bound (0: no bound)."""
    over = len(group.dead) - max_messages if max_messages else 0
    over_bytes = group.dead_bytes - max_bytes if max_bytes else 0
    runs: dict[str, list[tuple[int, int]]] = {}
    for seq, delivery in group.dead.items():
        if over <= 0 and over_bytes <= 0:
            break
        name = "dead_max_messages" if over > 0 else "dead_max_bytes"
        runs.setdefault(name, []).append((seq, 1))
        over, over_bytes = over - 1, over_bytes - delivery.size_bytes
    return [_discarded(group, found, f"beyond {name}") for name, found in runs.items()]


def _discarded(group: Group, runs: Sequence[tuple[int, int]], reason: str) -> Event:
    return Event(EventType.DISCARDED, group=group.number, runs=tuple(runs), reason=reason)


# -- publishing ------------------------------------------------------------------------------------


def exceeded_bound(
    state: QueueState, settings: QueueSettings, count: int, bytes_after: Callable[[], int]
) -> str:
    """Return the bound that `count` more messages would exceed: "bytes", "messages", or "".

    `bytes_after` returns the size of the message log with them.
    """
    if settings.max_bytes and bytes_after() > settings.max_bytes:
        return "bytes"
    most = settings.max_messages
    return "messages" if most and most_undelivered(state) + count > most else ""


def most_undelivered(state: QueueState) -> int:
    """Return the number of undelivered messages of the group that has most."""
    return max(group.undelivered for group in state.groups.values())


def decide_drop_oldest(state: QueueState, count: int, max_messages: int) -> list[Event] | None:
    """Drop the oldest waiting messages of each group that has no room for `count` more.

    Return None if a group has too few that wait.
    """
    events = []
    for group in state.groups.values():
        excess = group.undelivered + count - max_messages
        if excess > group.undelivered - len(group.leases):
            return None
        if excess > 0:
            events.append(about(EventType.DROPPED, group, group.waiting.oldest(excess)))
    return events


# -- delivering ------------------------------------------------------------------------------------


def choose(
    group: Group,
    seqs: Iterable[int],
    entry_of: Callable[[int], Entry],
    message_of: Callable[[Entry], Message],
    *,
    count: int,
    now_ns: int,
    skipped: set[int],
    max_bytes: int = NO_BYTE_LIMIT,
) -> tuple[list[Message], list[Event]]:
    """Choose messages to deliver: up to `count`, at least one, and not more than `max_bytes`.

    `seqs` are ready messages in their order. Return also the events of messages that cannot be
    delivered: expired, lost or unreadable. They are added to `skipped` before the next of `seqs` is
    asked for. `entry_of` raises EntryGone, `message_of` PayloadUnreadable.
    """
    chosen: list[Message] = []
    expired: list[int] = []
    events: list[Event] = []
    size = 0
    for seq in seqs:
        try:
            entry = entry_of(seq)
            if 0 < entry.expires_at_ns <= now_ns:
                expired.append(seq)
                skipped.add(seq)
                continue
            if chosen and size + entry.size > max_bytes:
                break  # before it is decompressed
            message = message_of(entry)
        except EntryGone as error:
            reason = as_written("reason", str(error))
            events.append(about(EventType.LOST, group, [seq])._replace(reason=reason))
            skipped.add(seq)
            continue
        except PayloadUnreadable as error:
            reason = as_written("reason", str(error))
            event = about(EventType.DEAD, group, [seq])
            events.append(event._replace(cause=Cause.UNREADABLE, reason=reason))
            skipped.add(seq)
            continue
        if max_bytes != NO_BYTE_LIMIT:
            size += size_of(message)
            if chosen and size > max_bytes:
                break
        chosen.append(message)
        if len(chosen) == count:
            break
    if expired:
        events.append(about(EventType.EXPIRED, group, expired))
    return chosen, events


def choose_dead(
    group: Group,
    letter_of: Callable[[int, Delivery], DeadLetter | None],
    *,
    count: int,
    max_bytes: int = NO_BYTE_LIMIT,
) -> list[Message]:
    """Choose dead letters, oldest death first, within `count` and `max_bytes` as `choose` does.

    `letter_of` returns None for a dead letter whose bytes are gone.
    """
    chosen: list[Message] = []
    size = 0
    for seq, delivery in group.dead.items():
        if len(chosen) == count:
            break
        letter = letter_of(seq, delivery)
        if letter is None:
            continue
        size += size_of(letter.message)
        if chosen and size > max_bytes:
            break
        chosen.append(letter.message)
    return chosen


def by_attempt(group: Group, seqs: list[int]) -> dict[int, list[int]]:
    """Return messages by the number of their next delivery. For most, it is the first."""
    deliveries = group.deliveries
    if not deliveries or deliveries.keys().isdisjoint(seqs):
        return {1: seqs}
    found: dict[int, list[int]] = {}
    for seq in seqs:
        attempt = deliveries[seq].attempt + 1 if seq in deliveries else 1
        found.setdefault(min(attempt, MOST_ATTEMPTS), []).append(seq)
    return found


def decide_lease(
    kind: EventType,
    group: Group,
    parts: Sequence[tuple[int, Sequence[tuple[int, int]]]],
    *,
    nonce: int,
    now_ns: int,
    length_ns: int,
    holder: str,
) -> list[Event]:
    """Lease messages, given as runs by attempt: LEASED, or DEAD_LEASED for dead letters."""
    return [
        Event(
            kind,
            group=group.number,
            attempt=attempt,
            runs=tuple(runs),
            nonce=nonce,
            deadline_ns=now_ns + length_ns,
            length_ns=length_ns,
            holder=holder,
        )
        for attempt, runs in parts
    ]


# -- settling --------------------------------------------------------------------------------------


def decide_settle(kind: EventType, held: Iterable[Held]) -> list[Event]:
    """Ack or release held messages."""
    return [about(kind, one.group, one.seqs, one.attempt) for one in held]


def decide_extend(
    held: Iterable[Held], now_ns: int, length_ns: int, said: Said | None = None
) -> list[Event]:
    """Let leases end `length_ns` from now. `said`: how far their consumer is."""
    kind = EventType.EXTENDED if said is None else EventType.PROGRESSED
    progress_ppm, note = (0, "") if said is None else said
    return [
        event._replace(
            deadline_ns=now_ns + length_ns,
            length_ns=length_ns,
            progress_ppm=progress_ppm,
            reason=note,
        )
        for event in decide_settle(kind, held)
    ]


def decide_nack(
    held: Iterable[Held],
    reason: str,
    now_ns: int,
    *,
    max_attempts: Callable[[int], int],
    retry_delay: RetryDelay,
    final: bool,
) -> list[Event]:
    """Return what the failure of held messages leads to: a retry or a dead letter for each."""
    return [
        decide_failure(
            group,
            FailedAttempt(seq, group.name, attempt, max_attempts(seq), reason, timed_out=False),
            now_ns,
            retry_delay,
            final=final,
        )
        for group, attempt, seqs in held
        for seq in seqs
    ]


# -- operating -------------------------------------------------------------------------------------


def decide_cancel(state: QueueState, seq: int, now_ns: int) -> list[Event]:
    """Cancel a message in every group. Return nothing if it is done in all of them."""
    if all(group.state_of(seq, now_ns) is State.DONE for group in state.groups.values()):
        return []
    return [Event(EventType.CANCELLED, group=ALL_GROUPS, runs=((seq, 1),))]


def decide_cancel_deliverable(group: Group, limit: int) -> list[Event]:
    """Cancel up to `limit` messages that are leased, parked, blocked or ready; no leased dead
    letters."""
    seqs = list(islice(_deliverable(group), limit))
    return [about(EventType.CANCELLED, group, seqs)] if seqs else []


def _deliverable(group: Group) -> Iterator[int]:
    for seq in group.leases:
        delivery = group.deliveries.get(seq)
        if delivery is None or not delivery.cause:
            yield seq
    held_back = (State.PARKED, State.BLOCKED)
    yield from (seq for seq, one in group.deliveries.items() if one.state in held_back)
    for first, end in group.waiting.fresh_pairs():
        yield from range(first, end)
    yield from group.waiting.due_seqs()


def decide_purge(state: QueueState, group: Group | None) -> list[Event]:
    """Remove all waiting messages of one group, or of all groups. Leased and dead ones stay.

    Messages published since the state was last fed are newer than the purge and stay as well.
    """
    number = ALL_GROUPS if group is None else group.number
    return [Event(EventType.PURGED, group=number, target_seq=state.ingested_upto)]


def count_purged(state: QueueState, group: Group | None) -> int:
    """Return how many messages `decide_purge` removes."""
    groups = state.groups.values() if group is None else [group]
    return sum(one.undelivered - len(one.leases) for one in groups)


def decide_pause(state: QueueState, paused: bool) -> list[Event]:
    """Stop or resume delivery. Return nothing if the queue is in that state."""
    if state.paused == paused:
        return []
    return [Event(EventType.PAUSED if paused else EventType.RESUMED, group=ALL_GROUPS)]


def decide_seek(group: Group, target_seq: int) -> list[Event]:
    """Move a group to a seq: deliver everything from there on, and nothing before it."""
    return [Event(EventType.SOUGHT, group=group.number, target_seq=target_seq)]


def decide_dead(
    kind: EventType,
    group: Group,
    wanted: Sequence[int] | None,
    found: "DeadFilter",
    limit: int | None,
) -> list[Event]:
    """Redrive or discard dead letters: those wanted (None: all) that match, up to a limit.

    Raise NoSuchMessage if a wanted one is no dead letter.
    """
    for seq in wanted or ():
        if seq not in group.dead:
            raise NoSuchMessage(f"message {seq} is not a dead letter of {group.name!r}")
    seqs = group.dead if wanted is None else dict.fromkeys(wanted)
    matching = [seq for seq in seqs if found.matches(group.dead[seq])][:limit]
    return [about(kind, group, matching)] if matching else []


class DeadFilter(NamedTuple):
    """Dead letters whose reason contains a text and whose death lies in [since, until)."""

    reason: str | None = None
    since: float | None = None  # Unix seconds
    until: float | None = None
    reason_group: str | None = None

    def matches(self, delivery: Delivery) -> bool:
        at = delivery.last_failure_ns / NS
        return (
            (self.reason is None or self.reason in delivery.reason)
            and (self.reason_group is None or self.reason_group == reason_group(delivery.reason))
            and (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
        )


def decide_create_group(state: QueueState, name: str, target_seq: int) -> list[Event]:
    """Create a group that starts at a seq."""
    if len(state.groups) >= MAX_GROUPS:
        raise QueueError(f"a queue has at most {MAX_GROUPS} groups; delete some")
    number = state.next_group
    if number >= ALL_GROUPS:  # after 65,000 groups: use a free number again
        number = next(n for n in range(1, ALL_GROUPS) if n not in state.groups)
    return [Event(EventType.GROUP_CREATED, group=number, target_seq=target_seq, name=name)]


def decide_delete_group(group: Group) -> list[Event]:
    """Forget a group and everything about it. Raise InvalidInput for `main`."""
    if group.number == MAIN_GROUP:
        raise InvalidInput("the group 'main' cannot be deleted")
    return [Event(EventType.GROUP_DELETED, group=group.number)]


def count_messages(events: Iterable[Event]) -> int:
    """Return the number of messages that events are about."""
    return sum(count for event in events for _, count in event.runs)
