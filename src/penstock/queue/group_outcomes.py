"""What the outcome of a delivery changes about a group: acked, failed, dead.

`ack_one` applies an event that is not made, for the fast path.
"""

from penstock.queue.delivery import Delivery, Lease, State
from penstock.queue.events import Cause, Event, EventType
from penstock.queue.group import Group
from penstock.queue.group_after import free_after

_ACKED = EventType.ACKED


def ack_one(group: Group, seq: int) -> None:
    """Apply an ACKED event about one leased message."""
    lease, ends = group.leases[seq], group.lease_ends.heap
    if group.gate is None:
        del group.leases[seq]
    else:
        group.end_lease(seq)
        if group.fair is not None:
            group.fair.leave(seq)
    if ends and ends[-1][2] is lease and len(lease.seqs) == 1:
        ends.pop()  # it was the newest; the last item can be taken off a heap
    group.totals[_ACKED] += 1
    delivery = group.deliveries.pop(seq, None)
    if delivery is None:
        return
    if delivery.first_failure_ns:
        group.retrying -= delivery.is_retried
        if delivery.cause:
            group.dependencies.waits.pop(seq, None)
    if delivery.expires_at_ns:
        group.expiries.remove(delivery.expires_at_ns, seq)
    if delivery.key is not None:
        following = group.keyed.order.leave(delivery.key, seq)
        if following is not None:
            group.keyed.unpark(following)


def acked(group: Group, event: Event) -> None:
    """Settle messages as done, leased or, after the end of their leases, waiting."""
    leases, deliveries = group.leases, group.deliveries
    if len(event.runs) == 1 and event.runs[0][1] == 1:
        seq = event.runs[0][0]
        if seq in leases:
            ack_one(group, seq)
            if group.dependents:
                free_after(group, event.seqs, event.timestamp_ns)
            return
    done = 0
    for seq in event.seqs:
        if group.end_lease(seq) is not None:
            done += 1
            if seq in deliveries:
                group.finish(seq)
            elif group.fair is not None:
                group.fair.leave(seq)
        elif group.waiting.take(seq) is not None or seq in group.dead:
            # A late ack: the lease ran out, and the message was not leased since. At recovery
            # also an ack with follow-up messages, before its lease was replayed.
            done += 1
            group.finish(seq)
        elif seq in deliveries and deliveries[seq].state is State.PARKED:  # late as well
            done += 1
            group.keyed.leave(seq, deliveries[seq])
            group.forget(seq)
        elif seq in deliveries and deliveries[seq].state is State.BLOCKED:
            done += 1
            group.finish(seq)
    group.totals[EventType.ACKED] += done
    if group.dependents:
        free_after(group, event.seqs, event.timestamp_ns)


def nacked(group: Group, event: Event) -> None:
    """Let messages that failed wait for their next attempt."""
    _failed(group, event, event.reason, timed_out=False)


def timed_out(group: Group, event: Event) -> None:
    """Let messages whose leases ended wait for their next attempt."""
    _failed(group, event, "lease ran out", timed_out=True)


def _failed(group: Group, event: Event, reason: str, *, timed_out: bool) -> None:
    for seq in event.seqs:
        lease = group.end_lease(seq)
        if lease is None:
            continue
        delivery = _note_failure(group, seq, lease, event, reason)
        delivery.timed_out = timed_out
        group.waiting.schedule(seq, delivery, event.retry_at_ns)
        group.watch_expiry(seq, delivery)
        group.keyed.keep_order(delivery)
        group.totals[event.type] += 1


def _note_failure(group: Group, seq: int, lease: Lease, event: Event, reason: str) -> Delivery:
    delivery = group.deliveries.get(seq)
    if delivery is None:
        delivery = group.deliveries[seq] = Delivery(State.LEASED, lease.priority, 0)
    delivery.attempt, delivery.nonce = lease.attempt, lease.nonce
    was_retried = delivery.is_retried
    delivery.first_failure_ns = delivery.first_failure_ns or event.timestamp_ns
    group.retrying += delivery.is_retried - was_retried
    delivery.last_failure_ns = event.timestamp_ns
    delivery.reason = reason
    return delivery


def died(group: Group, event: Event) -> None:
    """Make messages dead letters."""
    for seq in event.seqs:
        lease = group.end_lease(seq)
        if lease is None:
            priority = _take_to_die(group, seq)
            if priority is None:
                continue
            lease = group.new_lease(event, priority)
        delivery = _note_failure(group, seq, lease, event, event.reason)
        group.retrying -= delivery.is_retried
        if not delivery.cause:  # else it was a dead letter already, and leased as one
            group.totals[EventType.DEAD] += 1
            if seq in group.dependents:
                group.dependencies.died(seq)
        delivery.cause = event.cause
        delivery.timed_out = event.cause == Cause.TIMEOUT
        if event.cause == Cause.DEPENDENCY and seq in group.dependencies.waits:
            group.dependencies.waits[seq].failure = None  # the event has the reason
        group.join_dead(seq, delivery)
        group.keyed.leave(seq, delivery)


def _take_to_die(group: Group, seq: int) -> int | None:
    """Take a waiting or blocked message. Return its priority, or None if it is neither."""
    waited = group.waiting.take(seq)
    if waited is not None:
        return waited[0]
    delivery = group.deliveries.get(seq)
    if delivery is None or delivery.state is not State.BLOCKED:
        return None
    group.blocked -= 1
    return delivery.priority
