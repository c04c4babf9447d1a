"""Decisions: which events a command leads to.

    events = decide_…(state, command, now)

Pure: no file, no clock, no lock, and nothing here changes the state. What must be read from the
message log is given as a function or a value. `QueueCore.record` writes the events and applies
them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, cast

from penstock.codec import Entry
from penstock.errors import EntryGone, InvalidInput, PayloadUnreadable, QueueError, ReceiptInvalid
from penstock.model import NS, LeasedMessage, Message, Receipt, Ticket
from penstock.queue.delivery import Delivery, State
from penstock.queue.events import ALL_GROUPS, Cause, Event, EventType, as_written
from penstock.queue.group import Group
from penstock.queue.messages import NO_BYTE_LIMIT, size_of
from penstock.queue.retry import FailedAttempt
from penstock.queue.runs import as_runs
from penstock.queue.settings import MOST_ATTEMPTS, QueueSettings
from penstock.queue.state import QueueState

Leased = LeasedMessage | str  # a leased message, or its receipt
RetryDelay = Callable[[FailedAttempt], int | None]  # nanoseconds; None: dead letter
MAX_GROUPS = 1000
_ONLY_LEASED = {LeasedMessage}


class Held(NamedTuple):
    """Messages of one group and attempt that one event settles."""

    group: Group
    attempt: int
    seqs: list[int]


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


# -- delivering ------------------------------------------------------------------------------------


def choose(
    group: Group,
    seqs: Iterable[int],
    entry_of: Callable[[int], Entry],
    message_of: Callable[[Entry], Message],
    *,
    count: int,
    now_ns: int,
    max_bytes: int = NO_BYTE_LIMIT,
) -> tuple[list[Message], list[Event]]:
    """Choose messages to deliver: up to `count`, at least one, and not more than `max_bytes`.

    `seqs` are ready messages in their order. Return also the events of messages that cannot be
    delivered: expired, lost or unreadable. `entry_of` raises EntryGone, `message_of`
    PayloadUnreadable.
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
                continue
            if chosen and size + entry.size > max_bytes:
                break  # before it is decompressed
            message = message_of(entry)
        except EntryGone as error:
            reason = as_written("reason", str(error))
            events.append(about(EventType.LOST, group, [seq])._replace(reason=reason))
            continue
        except PayloadUnreadable as error:
            reason = as_written("reason", str(error))
            event = about(EventType.DEAD, group, [seq])
            events.append(event._replace(cause=Cause.UNREADABLE, reason=reason))
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
    attempts: dict[int, list[int]],
    *,
    nonce: int,
    now_ns: int,
    length_ns: int,
    holder: str,
) -> list[Event]:
    """Lease messages, given by attempt: LEASED, or DEAD_LEASED for dead letters."""
    return [
        Event(
            kind,
            group=group.number,
            attempt=attempt,
            runs=tuple(as_runs(seqs)),
            nonce=nonce,
            deadline_ns=now_ns + length_ns,
            length_ns=length_ns,
            holder=holder,
        )
        for attempt, seqs in attempts.items()
    ]


# -- settling --------------------------------------------------------------------------------------


def held_by(
    state: QueueState, identity: int, leased: Iterable[Leased], *, late_is_fine: bool = False
) -> list[Held]:
    """Return the messages that receipts hold now, by group and attempt.

    Raise ReceiptInvalid if a receipt holds nothing, with the reason. With `late_is_fine`, the
    receipt of an ended lease still counts if the message was not leased again.
    """
    leased = list(leased)
    together = _held_together(state, identity, leased)
    if together is not None:
        return [together]
    found: dict[tuple[int, int], Held] = {}
    seen: set[tuple[int, int]] = set()
    ticket: Ticket | None = None
    held: Held | None = None
    for item in leased:
        if isinstance(item, LeasedMessage):
            seq = item.message.seq
            if item.ticket is not ticket or held is None:
                ticket = item.ticket
                held = _held(state, identity, ticket, found)
            nonce = ticket.nonce
        else:
            receipt = Receipt.unpack(item)
            seq, nonce, ticket = receipt.seq, receipt.nonce, None
            held = _held(state, identity, receipt, found)
        lease = held.group.leases.get(seq)
        if (lease is None or lease.nonce != nonce or lease.attempt != held.attempt) and not (
            late_is_fine and _is_late_but_free(held, seq, nonce)
        ):
            raise ReceiptInvalid(_why_not(held, seq))
        seen.add((held.group.number, seq))
        held.seqs.append(seq)
    if not found:
        raise InvalidInput("nothing to settle: give a leased message, a receipt, or several")
    if len(seen) != sum(len(one.seqs) for one in found.values()):
        raise InvalidInput("the same receipt is given twice")
    return list(found.values())


def _held_together(state: QueueState, identity: int, leased: list[Leased]) -> Held | None:
    """Return the messages of one lease call that are all still held by it: the usual case."""
    if set(map(type, leased)) != _ONLY_LEASED:
        return None
    jobs = cast("list[LeasedMessage]", leased)
    ticket = jobs[0].ticket
    seqs = [message.seq for message, own in jobs if own is ticket]
    if len(set(seqs)) != len(leased):
        return None
    held = _held(state, identity, ticket, {})
    leases = held.group.leases
    lease = leases.get(seqs[0])
    if lease is None or (lease.nonce, lease.attempt) != (ticket.nonce, ticket.attempt):
        return None
    if [leases.get(seq) for seq in seqs].count(lease) != len(seqs):
        return None
    held.seqs.extend(seqs)
    return held


def _held(
    state: QueueState,
    identity: int,
    of: Ticket | Receipt,
    found: dict[tuple[int, int], Held],
) -> Held:
    group = state.groups.get(of.group)
    if of.identity != identity or group is None:
        raise ReceiptInvalid("the receipt is of another queue, or its group was deleted")
    return found.setdefault((of.group, of.attempt), Held(group, of.attempt, []))


def _is_late_but_free(held: Held, seq: int, nonce: int) -> bool:
    """Return whether the lease ran out and the message was not leased since."""
    delivery = held.group.deliveries.get(seq)
    return (
        delivery is not None
        and delivery.timed_out
        and delivery.state is not State.LEASED
        and delivery.nonce == nonce
        and delivery.attempt == held.attempt
    )


def _why_not(held: Held, seq: int) -> str:
    lease, delivery = held.group.leases.get(seq), held.group.deliveries.get(seq)
    if lease is not None:
        return (
            f"message {seq} was given to another holder since (attempt {lease.attempt}, this "
            f"receipt is of attempt {held.attempt}): its outcome is theirs now"
        )
    if delivery is not None:
        return (
            f"message {seq} is {delivery.state.name.lower()} after attempt {delivery.attempt}: "
            f"this receipt was already used, or its lease ran out"
        )
    return f"message {seq} is settled, was cancelled, or was never leased with this receipt"


def decide_settle(kind: EventType, held: Iterable[Held]) -> list[Event]:
    """Ack, extend or release held messages."""
    return [about(kind, one.group, one.seqs, one.attempt) for one in held]


def held_by_holder(group: Group, holder: str) -> list[Held]:
    """Return all messages of a group that a holder has leased."""
    found: dict[int, Held] = {}
    for seq, lease in group.leases.items():
        if lease.holder == holder:
            found.setdefault(lease.attempt, Held(group, lease.attempt, [])).seqs.append(seq)
    return list(found.values())


# -- operating -------------------------------------------------------------------------------------


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


def decide_cancel(state: QueueState, seq: int, now_ns: int) -> list[Event]:
    """Cancel a message in every group. Return nothing if it is done in all of them."""
    if all(group.state_of(seq, now_ns) is State.DONE for group in state.groups.values()):
        return []
    return [Event(EventType.CANCELLED, group=ALL_GROUPS, runs=((seq, 1),))]


def decide_cancel_deliverable(group: Group, limit: int) -> list[Event]:
    """Cancel up to `limit` messages that are leased, parked or ready; no leased dead letters."""
    seqs = list(islice(_deliverable(group), limit))
    return [about(EventType.CANCELLED, group, seqs)] if seqs else []


def _deliverable(group: Group) -> Iterator[int]:
    for seq in group.leases:
        delivery = group.deliveries.get(seq)
        if delivery is None or not delivery.cause:
            yield seq
    yield from (seq for seq, one in group.deliveries.items() if one.state is State.PARKED)
    for lane in group.waiting.lanes:
        yield from lane.fresh
        yield from (seq for _, seq in lane.due)


def dead_matching(
    group: Group,
    seqs: Iterable[int],
    *,
    reason: str | None,
    since: float | None,
    until: float | None,
) -> list[int]:
    """Return dead letters whose reason contains a text and whose death lies in [since, until)."""

    def matches(delivery: Delivery) -> bool:
        at = delivery.last_failure_ns / NS
        return (
            (reason is None or reason in delivery.reason)
            and (since is None or at >= since)
            and (until is None or at < until)
        )

    return [seq for seq in seqs if matches(group.dead[seq])]


def decide_create_group(state: QueueState, name: str, target_seq: int) -> Event:
    """Create a group that starts at a seq."""
    if len(state.groups) >= MAX_GROUPS:
        raise QueueError(f"a queue has at most {MAX_GROUPS} groups; delete some")
    number = state.next_group
    if number >= ALL_GROUPS:  # after 65,000 groups: use a free number again
        number = next(n for n in range(1, ALL_GROUPS) if n not in state.groups)
    return Event(EventType.GROUP_CREATED, group=number, target_seq=target_seq, name=name)
