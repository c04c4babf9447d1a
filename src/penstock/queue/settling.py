"""Settling: ack, nack, extend, release, each of one or many leased messages."""

from collections.abc import Iterable, Sequence

from penstock.checking import check_number
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.model import NS, LeasedMessage, Receipt
from penstock.queue.core import QueueCore
from penstock.queue.events import Cause, Event, EventType
from penstock.queue.flight import State
from penstock.queue.group import Group
from penstock.queue.publishing import NewMessage, Publishing
from penstock.queue.runs import as_runs
from penstock.queue.settings import MAX_LEASE_S, MIN_LEASE_S, YEARS_S
from penstock.queue.settlement import pack_settlement
from penstock.queue.tags import SETTLES

Leased = LeasedMessage | str  # a leased message, or its receipt


class Settling:
    """The settling side of a queue. Every call settles all it was given, or nothing."""

    def __init__(self, core: QueueCore, publishing: Publishing) -> None:
        self._core = core
        self._publishing = publishing

    def ack(self, leased: Iterable[Leased], emit: Sequence[NewMessage] = ()) -> list[str]:
        """The work is done. With `emit`, follow-up messages are published in the same write."""
        core = self._core
        with core.lock:
            core.catch_up()
            now_ns = core.now()
            receipts = self._valid(leased, late_is_fine=True)
            events = [
                Event(EventType.ACKED, group=group, attempt=attempt, runs=tuple(as_runs(seqs)))
                for (group, attempt), seqs in _by_group_and_attempt(receipts).items()
            ]
            self._count_work(receipts, now_ns)
            core.metrics.acked += len(receipts)
            if not emit:
                core.record(events)
                return []
            if len(events) != 1:
                raise InvalidInput("ack with emit settles messages of one group and one attempt")
            return self._ack_and_emit(events[0], emit)

    def _ack_and_emit(self, event: Event, emit: Sequence[NewMessage]) -> list[str]:
        core = self._core
        drafts = self._publishing.drafts(emit)
        next_event_seq = core.ledger.events.next_seq
        settles = {SETTLES: pack_settlement(event, next_event_seq)}
        first = drafts[0]
        drafts[0] = first._replace(attributes={**(first.attributes or {}), **settles})
        ids = self._publishing.write(drafts)
        timestamp_ns = core.ledger.messages.last_timestamp_ns
        core.state.apply(event._replace(timestamp_ns=timestamp_ns, event_seq=next_event_seq))
        return ids

    def nack(self, leased: Iterable[Leased], reason: str = "", delay: float | None = None) -> None:
        """The work failed: try again after the backoff (or `delay`), or give up after too many."""
        core = self._core
        delay_ns = None if delay is None else round(check_number("delay", delay, 0, YEARS_S) * NS)
        with core.lock:
            core.catch_up()
            now_ns = core.now()
            receipts = self._valid(leased)
            core.record(
                [
                    core.failure(
                        core.state.groups[receipt.group],
                        receipt.seq,
                        receipt.attempt,
                        now_ns,
                        Cause.NACK,
                        reason,
                        delay_ns,
                    )
                    for receipt in receipts
                ]
            )
            core.metrics.nacked += len(receipts)

    def extend(self, leased: Iterable[Leased], lease_s: float) -> None:
        """More time, from now."""
        core = self._core
        length_ns = round(check_number("lease_s", lease_s, MIN_LEASE_S, MAX_LEASE_S) * NS)
        with core.lock:
            core.catch_up()
            now_ns = core.now()
            receipts = self._valid(leased)
            core.record(
                [
                    Event(
                        EventType.EXTENDED,
                        group=group,
                        attempt=attempt,
                        runs=tuple(as_runs(seqs)),
                        deadline_ns=now_ns + length_ns,
                        length_ns=length_ns,
                    )
                    for (group, attempt), seqs in _by_group_and_attempt(receipts).items()
                ]
            )

    def release(self, leased: Iterable[Leased]) -> None:
        """Give back untouched: ready again at once, and the attempt does not count."""
        core = self._core
        with core.lock:
            core.catch_up()
            core.now()
            receipts = self._valid(leased)
            core.record(
                [
                    Event(
                        EventType.RELEASED, group=group, attempt=attempt, runs=tuple(as_runs(seqs))
                    )
                    for (group, attempt), seqs in _by_group_and_attempt(receipts).items()
                ]
            )

    # -- fencing -----------------------------------------------------------------------------------

    def _valid(self, leased: Iterable[Leased], *, late_is_fine: bool = False) -> list[Receipt]:
        """The receipts, each of which holds its message now; ReceiptInvalid says why not."""
        core = self._core
        receipts = []
        for item in [leased] if isinstance(leased, LeasedMessage | str) else leased:
            if isinstance(item, LeasedMessage):
                ticket = item.ticket
                receipt = Receipt(
                    ticket.identity, ticket.group, ticket.attempt, item.message.seq, ticket.nonce
                )
            else:
                receipt = Receipt.unpack(item)
            group = core.state.groups.get(receipt.group)
            if receipt.identity != core.identity or group is None:
                raise ReceiptInvalid("the receipt is of another queue, or its group was deleted")
            lease = group.leases.get(receipt.seq)
            held = (
                lease is not None
                and lease.nonce == receipt.nonce
                and lease.attempt == receipt.attempt
            )
            if not held and not (late_is_fine and _is_late_but_free(group, receipt)):
                raise ReceiptInvalid(_why_not(group, receipt))
            receipts.append(receipt)
        if not receipts:
            raise InvalidInput("nothing to settle: give a leased message, a receipt, or several")
        if len(set(receipts)) != len(receipts):
            raise InvalidInput("the same receipt is there twice")
        return receipts

    def _count_work(self, receipts: Sequence[Receipt], now_ns: int) -> None:
        for receipt in receipts[:1]:
            lease = self._core.state.groups[receipt.group].leases.get(receipt.seq)
            if lease is not None:
                started_ns = lease.deadline_ns - lease.length_ns
                self._core.metrics.work.add(max(now_ns - started_ns, 0), len(receipts))


def _is_late_but_free(group: Group, receipt: Receipt) -> bool:
    """The lease ran out, and the message was given to nobody since."""
    flight = group.flights.get(receipt.seq)
    return (
        flight is not None
        and flight.timed_out
        and flight.state in (State.READY, State.SCHEDULED, State.DEAD)
        and flight.nonce == receipt.nonce
        and flight.attempt == receipt.attempt
    )


def _why_not(group: Group, receipt: Receipt) -> str:
    lease = group.leases.get(receipt.seq)
    flight = group.flights.get(receipt.seq)
    if lease is not None:
        return (
            f"message {receipt.seq} was given to another holder since (attempt {lease.attempt}, "
            f"this receipt is of attempt {receipt.attempt}): its outcome is theirs now"
        )
    if flight is not None:
        return (
            f"message {receipt.seq} is {flight.state.name.lower()} after attempt "
            f"{flight.attempt}: this receipt was already used, or its lease ran out"
        )
    return f"message {receipt.seq} is settled, was cancelled, or was never leased with this receipt"


def _by_group_and_attempt(receipts: Iterable[Receipt]) -> dict[tuple[int, int], list[int]]:
    grouped: dict[tuple[int, int], list[int]] = {}
    for receipt in receipts:
        grouped.setdefault((receipt.group, receipt.attempt), []).append(receipt.seq)
    return grouped
