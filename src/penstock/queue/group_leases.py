"""What a delivery changes about a group: messages are leased or taken, leases extended or released.

`lease_one`, `lease_next` and `take_plain` apply an event that is not made, for the fast path.
"""

from penstock.codec.layout import DEFAULT_PRIORITY
from penstock.model import Message
from penstock.queue.delivery import Delivery, Lease, State
from penstock.queue.events import Cause, Event, EventType
from penstock.queue.group import Group
from penstock.queue.group_after import free_after

_LEASED, _TAKEN = EventType.LEASED, EventType.TAKEN
_STATE_LEASED = State.LEASED


def leased(group: Group, event: Event) -> None:
    """Lease messages that wait."""
    if len(event.runs) == 1 and event.attempt == 1:
        first, run = event.runs[0]
        if group.waiting.plain.holds(first, first + run):
            lease_plain(
                group,
                first,
                first + run,
                event.nonce,
                event.deadline_ns,
                event.length_ns,
                event.holder,
            )
            return
    shared: dict[int, Lease] = {}
    for seq in event.seqs:
        priority = _take_to_lease(group, seq, event.attempt, event.nonce)
        if priority is not None:
            if priority not in shared:
                shared[priority] = group.new_lease(event, priority)
            shared[priority].seqs.append(seq)
            group.leases[seq] = shared[priority]
            group.totals[_LEASED] += 1
            if group.gate is not None:
                group.count_lease(seq, priority, event.deadline_ns - event.length_ns)


def lease_one(
    group: Group,
    message: Message,
    delivery: Delivery | None,
    attempt: int,
    nonce: int,
    deadline_ns: int,
    length_ns: int,
    holder: str,
) -> None:
    """Apply a LEASED event about one ready message of any kind."""
    seq, priority, waiting = message[1], message[3], group.waiting
    if delivery is not None:
        waiting.take_delivery(seq, delivery)
        delivery.state = _STATE_LEASED
        delivery.attempt, delivery.nonce, delivery.timed_out = attempt, nonce, False
    elif not message[5] or not (delay := waiting.take_delayed(seq)):
        waiting.take_fresh(seq, priority)
    else:
        delivery = group.deliveries[seq] = Delivery(_STATE_LEASED, priority, delay[0])
        delivery.attempt, delivery.nonce = attempt, nonce
    ends_mono_ns = group.moment.mono_ns + length_ns
    lease = Lease(attempt, nonce, deadline_ns, length_ns, ends_mono_ns, holder, priority, [seq])
    group.lease_ends.add(lease)
    group.leases[seq] = lease
    group.totals[_LEASED] += 1
    if group.gate is not None:
        group.count_lease(seq, priority, deadline_ns - length_ns)


def lease_plain(
    group: Group, first: int, end: int, nonce: int, deadline_ns: int, length_ns: int, holder: str
) -> None:
    """Apply a LEASED event about a run of plain messages."""
    group.waiting.take_plain(first, end)
    seqs = [first] if end == first + 1 else list(range(first, end))
    ends_mono_ns = group.moment.mono_ns + length_ns
    lease = Lease(1, nonce, deadline_ns, length_ns, ends_mono_ns, holder, DEFAULT_PRIORITY, seqs)
    group.lease_ends.add(lease)
    for seq in seqs:
        group.leases[seq] = lease
    if group.deliveries:  # it may have keys
        for seq in seqs:
            delivery = group.deliveries.get(seq)
            if delivery is not None:
                delivery.state = _STATE_LEASED
                delivery.attempt, delivery.nonce = 1, nonce
    group.totals[_LEASED] += end - first
    if group.gate is not None:
        for seq in seqs:
            group.count_lease(seq, DEFAULT_PRIORITY, deadline_ns - length_ns)


def lease_next(
    group: Group, seq: int, nonce: int, deadline_ns: int, length_ns: int, holder: str
) -> None:
    """Do as `lease_plain` for the first plain message, in fewer steps.

    `upcoming` must be empty.
    """
    plain, end = group.waiting.plain, seq + 1
    if end < plain.front_end:
        plain.first = end
    else:
        plain.discard(seq, end)
    ends_mono_ns = group.moment.mono_ns + length_ns
    lease = Lease(1, nonce, deadline_ns, length_ns, ends_mono_ns, holder, DEFAULT_PRIORITY, [seq])
    group.lease_ends.add(lease)
    group.leases[seq] = lease
    if group.deliveries:  # it may have a key
        delivery = group.deliveries.get(seq)
        if delivery is not None:
            delivery.state = _STATE_LEASED
            delivery.attempt, delivery.nonce = 1, nonce
    group.totals[_LEASED] += 1
    if group.gate is not None:
        group.count_lease(seq, DEFAULT_PRIORITY, deadline_ns - length_ns)


def _take_to_lease(group: Group, seq: int, attempt: int, nonce: int) -> int | None:
    """Take a waiting message to lease it. Return its priority, or None if it does not wait."""
    waited = group.waiting.take(seq)
    if waited is None:
        return None
    priority, due_ns, was_fresh = waited
    if not was_fresh:
        delivery = group.deliveries.get(seq)
        if delivery is None:
            delivery = group.deliveries[seq] = Delivery(_STATE_LEASED, priority, due_ns)
        delivery.state = _STATE_LEASED
        delivery.attempt, delivery.nonce, delivery.timed_out = attempt, nonce, False
    return priority


def dead_leased(group: Group, event: Event) -> None:
    """Lease dead letters."""
    for seq in event.seqs:
        delivery = group.leave_dead(seq)
        if delivery is None:
            continue
        delivery.state = State.LEASED
        delivery.attempt, delivery.nonce, delivery.timed_out = event.attempt, event.nonce, False
        lease = group.new_lease(event, delivery.priority)
        lease.seqs.append(seq)
        group.leases[seq] = lease
        group.totals[EventType.DEAD_LEASED] += 1


def taken(group: Group, event: Event) -> None:
    """Settle messages that wait: leased and acked in one event."""
    done = 0
    for first, count in event.runs:
        if group.waiting.plain.holds(first, first + count):
            take_plain(group, first, first + count)
            if group.gate is not None:
                for _ in range(count):
                    group.gate.delivered(event.timestamp_ns)
            continue
        for seq in range(first, first + count):
            waited = group.waiting.take(seq)
            if waited is not None:
                if group.gate is not None:
                    group.gate.delivered(event.timestamp_ns)
                if group.fair is not None:
                    at_ns = event.timestamp_ns
                    group.fair.delivered(seq, waited[0], at_ns, is_leased=False)
                group.finish(seq)
                done += 1
    group.totals[EventType.TAKEN] += done
    if group.dependents:
        free_after(group, event.seqs, event.timestamp_ns)


def take_plain(group: Group, first: int, end: int) -> None:
    """Apply a TAKEN event about a run of plain messages."""
    group.waiting.take_plain(first, end)
    if group.deliveries:  # it may have keys
        for seq in range(first, end):
            if seq in group.deliveries:
                group.finish(seq)
    group.totals[_TAKEN] += end - first


def extended(group: Group, event: Event) -> None:
    """Let leases end later."""
    for seq in event.seqs:
        lease = group.leases.get(seq)
        if lease is None:
            continue
        longer = group.new_lease(event, lease.priority)
        longer.attempt, longer.nonce, longer.holder = lease.attempt, lease.nonce, lease.holder
        longer.seqs.append(seq)
        group.leases[seq] = longer
        group.totals[event.type] += 1


def progressed(group: Group, event: Event) -> None:
    """Note how far the consumers of leased messages are, and extend their leases."""
    extended(group, event)
    for seq in event.seqs:
        if seq in group.leases:
            group.progress.note(seq, event, group.leases)


def released(group: Group, event: Event) -> None:
    """Let leased messages wait again, as if they had not been leased."""
    for seq in event.seqs:
        lease = group.end_lease(seq)
        if lease is None:
            continue
        delivery = group.deliveries.get(seq)
        if delivery is None:
            group.waiting.add_fresh(lease.priority, seq, is_new=False)
        elif delivery.cause:
            delivery.attempt, delivery.nonce = lease.attempt - 1, 0
            group.join_dead(seq, delivery)
            if delivery.cause == Cause.DEPENDENCY:  # that one may have been redriven
                group.dependencies.touched.add(seq)
        else:
            delivery.attempt = lease.attempt - 1  # this delivery does not count
            delivery.nonce = 0
            group.waiting.schedule(seq, delivery, delivery.due_ns)
            group.watch_expiry(seq, delivery)
            group.keyed.keep_order(delivery)
        group.totals[EventType.RELEASED] += 1
