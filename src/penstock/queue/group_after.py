"""Messages of a group that come after others: blocked until those are done, or gone."""

import struct
from collections.abc import Iterable

from penstock.errors import InvalidInput
from penstock.queue.after import After, id_bytes, unpack_after
from penstock.queue.delivery import Delivery, State
from penstock.queue.dependencies import HOW, Failure
from penstock.queue.events import Event, Outcome
from penstock.queue.group import Group

_ID_LENGTH = 26


def feed_after(group: Group, seq: int, delivery: Delivery, data: bytes, published_ns: int) -> None:
    """Add a message that comes after others: blocked, unless those are done."""
    try:
        after = unpack_after(data)
    except (ValueError, struct.error):  # only a damaged or foreign file has one
        after = After()
    unsettled: list[int] = []
    gone: list[Failure] = []
    for earlier in after.seqs(seq):
        if not group.is_settled(earlier):
            unsettled.append(earlier)
        elif how := group.gone.how(earlier):
            gone.append(Failure(earlier, how))
    dead = {one for one in unsettled if one in group.deliveries and group.deliveries[one].cause}
    waits = group.dependencies.add(
        seq, after, published_ns, unsettled=unsettled, dead=dead, gone=gone
    )
    if waits:
        group.waiting.block(seq, delivery)
        group.blocked += 1
    else:
        group.enter(seq, delivery)


def free_after(group: Group, seqs: Iterable[int], at_ns: int) -> None:
    """Let go the messages that come after these, as far as these are done."""
    group.waiting.promote(at_ns)
    for seq in seqs:
        if seq in group.dependents and group.is_settled(seq):
            unblock(group, group.dependencies.done(seq), at_ns)


def unblock(group: Group, seqs: Iterable[int], at_ns: int) -> None:
    """Let blocked messages wait for their delivery. Those that died stay dead for now."""
    for seq in seqs:
        delivery = group.deliveries[seq]
        if delivery.state is not State.BLOCKED:
            group.dependencies.touched.add(seq)
            continue
        wait = group.dependencies.waits.pop(seq)
        group.blocked -= 1
        # At recovery a message is fed before the events that came before it: as if it had never
        # been blocked.
        if at_ns > wait.published_ns and at_ns > delivery.due_ns:
            delivery.due_ns = at_ns
        group.enter(seq, delivery)


def blocks_again(group: Group, seq: int, delivery: Delivery) -> bool:
    """Block a redriven message if it still waits for others. What is gone does not count."""
    wait = group.dependencies.waits.get(seq)
    if wait is None:
        return False
    wait.is_lost = False
    group.dependencies.touched.add(seq)
    if not wait.missing:
        del group.dependencies.waits[seq]
        return False
    group.waiting.block(seq, delivery)
    group.blocked += 1
    return True


def note_gone(group: Group, seq: int, event: Event) -> None:
    """Note a message of the group that will never be done."""
    group.gone.add(event.type, seq, seq + 1)
    if seq in group.dependents:
        unblock(group, group.dependencies.gone(seq, HOW[event.type]), event.timestamp_ns)


def resolved(group: Group, event: Event) -> None:
    """Note what became of a message of another queue, or that dead ones are ignored."""
    if event.cause == Outcome.IGNORED:
        blocked = [seq for seq in event.seqs if seq in group.dependencies.waits]
        unblock(group, blocked, event.timestamp_ns)
        return
    try:
        earlier, outcome = id_bytes(event.reason[:_ID_LENGTH]), Outcome(event.cause)
    except (InvalidInput, ValueError):
        return  # only a damaged log has one
    how = event.reason[_ID_LENGTH + 2 :] or outcome.name.lower()
    free = group.dependencies.resolved(earlier, event.seqs, outcome, how)
    unblock(group, free, event.timestamp_ns)
