"""Which messages receipts hold. Pure: nothing here changes the state."""

from collections.abc import Iterable
from typing import NamedTuple, cast

from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.model import LeasedMessage, Receipt, Ticket
from penstock.queue.delivery import State
from penstock.queue.group import Group
from penstock.queue.state import QueueState

Leased = LeasedMessage | str  # a leased message, or its receipt
_ONLY_LEASED = {LeasedMessage}


class Held(NamedTuple):
    """Messages of one group and attempt that one event settles."""

    group: Group
    attempt: int
    seqs: list[int]


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


def held_by_holder(group: Group, holder: str) -> list[Held]:
    """Return all messages of a group that a holder has leased."""
    found: dict[int, Held] = {}
    for seq, lease in group.leases.items():
        if lease.holder == holder:
            found.setdefault(lease.attempt, Held(group, lease.attempt, [])).seqs.append(seq)
    return list(found.values())
