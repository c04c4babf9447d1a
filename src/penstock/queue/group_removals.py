"""What operators change about a group: dead letters redriven, messages removed, a group moved."""

from penstock.queue.delivery import Delivery, State
from penstock.queue.events import MAIN_GROUP, Event, EventType
from penstock.queue.group import Group
from penstock.queue.group_after import blocks_again, note_gone


def redriven(group: Group, event: Event) -> None:
    """Let dead letters wait again, as if they were new."""
    for seq in event.seqs:
        delivery = group.leave_dead(seq)
        if delivery is None:
            continue
        fresh = Delivery(State.READY, delivery.priority, event.timestamp_ns, delivery.key)
        fresh.expires_at_ns = delivery.expires_at_ns
        group.deliveries[seq] = fresh
        group.watch_expiry(seq, fresh)
        group.totals[EventType.REDRIVEN] += 1
        if seq in group.dependents:
            group.dependencies.redriven(seq)
        if not blocks_again(group, seq, fresh):
            group.enter(seq, fresh)


def removed(group: Group, event: Event) -> None:
    """Apply an event that ends a message in any state: expired, cancelled, dropped …"""
    for seq in event.seqs:
        if (
            group.end_lease(seq) is None
            and group.waiting.take(seq) is None
            and seq not in group.deliveries
        ):
            continue
        group.finish(seq)
        group.totals[event.type] += 1
        if group.number == MAIN_GROUP:
            note_gone(group, seq, event)


def purged(group: Group, event: Event) -> None:
    """Remove all messages that wait, below a seq."""
    target = event.target_seq
    # Parked and blocked messages first: they are freed when those before them are removed.
    parked = [
        seq
        for seq, one in group.deliveries.items()
        if seq < target and one.state in (State.PARKED, State.BLOCKED)
    ]
    for seq in parked:
        delivery = group.deliveries[seq]
        group.blocked -= delivery.state is State.BLOCKED
        group.keyed.leave(seq, delivery)
        group.forget(seq)
    group.totals[EventType.PURGED] += len(parked)
    plain = group.waiting.fresh_pairs()
    count, others = group.waiting.take_below(target)
    for seq in others:
        group.finish(seq)
    group.totals[EventType.PURGED] += count + len(others)
    if group.number == MAIN_GROUP:
        for first, end in plain:
            if first < target:
                group.gone.add(event.type, first, min(end, target))
        later = group.dependents.keys() & {*others, *parked}
        later |= {seq for seq in group.dependents if group.gone.how(seq)}
        for seq in (*others, *parked):
            group.gone.add(event.type, seq, seq + 1)
        for seq in sorted(later):
            note_gone(group, seq, event)


def sought(group: Group, event: Event) -> None:
    """Deliver everything from the target on, again if need be, and nothing before it."""
    target = event.target_seq
    kept = {seq: delivery for seq, delivery in group.dead.items() if seq < target}
    for seq in group.leases:
        delivery = group.deliveries.get(seq)
        if delivery is not None and delivery.cause and seq < target:  # a dead letter, handed out
            delivery.state = State.DEAD
            kept[seq] = delivery
    dependencies = group.dependencies.keep(kept)
    group.gone.forget_from(target)
    if group.gate is not None:
        group.gate.in_flight = 0
    if group.fair is not None:
        group.fair.clear(kept)
    group.empty()
    group.set_dependencies(dependencies)
    group.deliveries.update(kept)
    group.dead = kept
    group.dead_bytes = sum(delivery.size_bytes for delivery in kept.values())
    group.fed_upto = target
    group.totals[EventType.SOUGHT] += 1
