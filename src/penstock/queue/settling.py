"""Settling: ack, nack, extend, release, each of one or many leased messages."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from penstock.checking import Duration, check_seconds
from penstock.codec import parse_id
from penstock.errors import InvalidInput, LedgerError, LedgerStopped, ReceiptInvalid
from penstock.model import NS, LeasedMessage, NewMessage, Receipt, Ticket
from penstock.queue.core import QueueCore
from penstock.queue.events import Cause, Event, EventType, as_written
from penstock.queue.flight import State
from penstock.queue.group import Group
from penstock.queue.publishing import Publishing, deduplicated
from penstock.queue.runs import as_runs
from penstock.queue.settings import MAX_LEASE_S, MIN_LEASE_S, YEARS_S
from penstock.queue.settlement import pack_settlement
from penstock.queue.tags import SETTLES

Leased = LeasedMessage | str  # a leased message, or its receipt
_ONLY_LEASED = {LeasedMessage}


class Settling:
    """The settling side of a queue. Every call settles all it was given, or nothing."""

    def __init__(self, core: QueueCore, publishing: Publishing) -> None:
        self._core = core
        self._publishing = publishing

    def ack(self, leased: Iterable[Leased], emit: Sequence[NewMessage] = ()) -> list[str]:
        """The work is done. With `emit`, follow-up messages are published in the same write."""
        core = self._core
        with core.lock, core.change:
            now_ns = core.now()
            held = self._held(leased, late_is_fine=True)
            events = [_about(EventType.ACKED, lot) for lot in held]
            if emit:
                if len(events) != 1:
                    raise InvalidInput(
                        "ack with emit settles messages of one group and one attempt"
                    )
                ids = self._ack_and_emit(events[0], emit, now_ns)
            else:
                self._count_work(held[0], now_ns)
                core.record(events)
                ids = []
            core.metrics.acked += sum(len(lot.seqs) for lot in held)
            return ids

    def _ack_and_emit(self, event: Event, emit: Sequence[NewMessage], now_ns: int) -> list[str]:
        core = self._core
        core.catch_up()
        most = core.settings.max_batch
        if len(emit) > most:
            raise InvalidInput(f"an ack emits at most {most} messages, not {len(emit)}")
        prepared = self._publishing.prepare(emit, now_ns)
        if not prepared.drafts:  # all were published before
            core.record([event, deduplicated(prepared.duplicates)])
            return [published.id for published in self._publishing.write_prepared(prepared)]
        next_event_seq = core.ledger.events.next_seq
        settles = {SETTLES: pack_settlement(event, next_event_seq)}
        answers = self._publishing.write_prepared(prepared, settles)
        last_seq = max(parse_id(answer.id)[2] for answer in answers if not answer.duplicate)
        event = event._replace(target_seq=last_seq + 1)
        try:
            # It is true by now. It is written once more because the messages may be done with and
            # compacted away sooner than the events; whoever folds from an old snapshot needs it.
            core.record([event])
        except LedgerStopped:
            raise
        except LedgerError:  # no room, or too many open files: it is true all the same
            timestamp_ns = core.ledger.messages.last_timestamp_ns
            core.state.apply(event.recorded(timestamp_ns, next_event_seq))
        return [published.id for published in answers]

    def nack(
        self,
        leased: Iterable[Leased],
        reason: str = "",
        delay: Duration | None = None,
        *,
        final: bool = False,
    ) -> None:
        """The work failed: try again after the backoff (or `delay`), or give up after too many.

        `final`: trying again makes no sense, it is a dead letter at once.
        """
        core = self._core
        reason = as_written("reason", reason)
        delay_ns = None if delay is None else round(check_seconds("delay", delay, 0, YEARS_S) * NS)
        with core.lock, core.change:
            now_ns = core.now()
            held = self._held(leased)
            core.record(
                [
                    core.failure(
                        lot.group,
                        seq,
                        lot.attempt,
                        now_ns,
                        Cause.NACK,
                        reason,
                        delay_ns,
                        final=final,
                    )
                    for lot in held
                    for seq in lot.seqs
                ]
            )
            core.metrics.nacked += sum(len(lot.seqs) for lot in held)

    def extend(self, leased: Iterable[Leased], lease_s: Duration | None = None) -> None:
        """More time, from now; as long as the queue's own lease if nothing is said."""
        core = self._core
        if lease_s is None:
            lease_s = core.settings.lease_s
        length_ns = round(check_seconds("lease_s", lease_s, MIN_LEASE_S, MAX_LEASE_S) * NS)
        with core.lock, core.change:
            deadline_ns = core.now() + length_ns
            core.record(
                [
                    _about(EventType.EXTENDED, lot)._replace(
                        deadline_ns=deadline_ns, length_ns=length_ns
                    )
                    for lot in self._held(leased)
                ]
            )

    def give_back(self, leased: Iterable[LeasedMessage]) -> None:
        """Release what was leased ahead and never handed on, as far as it is still held."""
        for one in leased:
            try:
                self.release([one])
            except ReceiptInvalid:
                pass  # its lease ran out; it comes again by itself

    def release(self, leased: Iterable[Leased]) -> None:
        """Give back untouched: ready again at once, and the attempt does not count."""
        core = self._core
        with core.lock, core.change:
            core.now()
            core.record([_about(EventType.RELEASED, lot) for lot in self._held(leased)])

    def release_of(self, holder: str, group_name: str) -> int:
        """Give back all that a holder has, who is known to be gone; how many that is."""
        core = self._core
        holder = as_written("holder", holder)
        with core.lock, core.change:
            core.now()
            group = core.group(group_name)
            lots: dict[int, _Lot] = {}
            for seq, lease in group.leases.items():
                if lease.holder == holder:
                    lots.setdefault(lease.attempt, _Lot(group, lease.attempt, [])).seqs.append(seq)
            if lots:
                core.record([_about(EventType.RELEASED, lot) for lot in lots.values()])
            return sum(len(lot.seqs) for lot in lots.values())

    # -- fencing -----------------------------------------------------------------------------------

    def _held(self, leased: Iterable[Leased], *, late_is_fine: bool = False) -> "list[_Lot]":
        """What is held by those receipts now, by group and attempt; ReceiptInvalid says why not."""
        leased = list(leased)
        together = self._held_together(leased)
        if together is not None:
            return [together]
        lots: dict[tuple[int, int], _Lot] = {}
        seen: set[tuple[int, int]] = set()
        ticket: Ticket | None = None
        lot: _Lot | None = None
        for item in leased:
            if isinstance(item, LeasedMessage):
                seq = item.message.seq
                if item.ticket is not ticket or lot is None:
                    ticket = item.ticket
                    lot = self._lot(lots, ticket.identity, ticket.group, ticket.attempt)
                nonce = ticket.nonce
            else:
                receipt = Receipt.unpack(item)
                seq, nonce, ticket = receipt.seq, receipt.nonce, None
                lot = self._lot(lots, receipt.identity, receipt.group, receipt.attempt)
            lease = lot.group.leases.get(seq)
            if (lease is None or lease.nonce != nonce or lease.attempt != lot.attempt) and not (
                late_is_fine and _is_late_but_free(lot, seq, nonce)
            ):
                raise ReceiptInvalid(_why_not(lot, seq))
            seen.add((lot.group.number, seq))
            lot.seqs.append(seq)
        if not lots:
            raise InvalidInput("nothing to settle: give a leased message, a receipt, or several")
        if len(seen) != sum(len(lot.seqs) for lot in lots.values()):
            raise InvalidInput("the same receipt is there twice")
        return list(lots.values())

    def _held_together(self, leased: list[Leased]) -> "_Lot | None":
        """The usual case, at once: messages of one lease call, all still held by it."""
        if set(map(type, leased)) != _ONLY_LEASED:
            return None
        jobs = cast("list[LeasedMessage]", leased)
        ticket = jobs[0].ticket
        seqs = [message.seq for message, own in jobs if own is ticket]
        if len(set(seqs)) != len(leased):
            return None
        lot = self._lot({}, ticket.identity, ticket.group, ticket.attempt)
        held = lot.group.leases
        lease = held.get(seqs[0])
        if lease is None or (lease.nonce, lease.attempt) != (ticket.nonce, ticket.attempt):
            return None
        if [held.get(seq) for seq in seqs].count(lease) != len(seqs):
            return None
        lot.seqs.extend(seqs)
        return lot

    def _lot(
        self, lots: "dict[tuple[int, int], _Lot]", identity: int, number: int, attempt: int
    ) -> "_Lot":
        group = self._core.state.groups.get(number)
        if identity != self._core.identity or group is None:
            raise ReceiptInvalid("the receipt is of another queue, or its group was deleted")
        lot = lots.get((number, attempt))
        if lot is None:
            lot = lots[number, attempt] = _Lot(group, attempt, [])
        return lot

    def _count_work(self, lot: "_Lot", now_ns: int) -> None:
        lease = lot.group.leases.get(lot.seqs[0])
        if lease is not None:
            started_ns = lease.deadline_ns - lease.length_ns
            self._core.metrics.work.add(max(now_ns - started_ns, 0), len(lot.seqs))


class _Lot(NamedTuple):
    """Messages that are settled by one event."""

    group: Group
    attempt: int
    seqs: list[int]


def _about(kind: EventType, lot: _Lot) -> Event:
    return Event(kind, group=lot.group.number, attempt=lot.attempt, runs=tuple(as_runs(lot.seqs)))


def _is_late_but_free(lot: _Lot, seq: int, nonce: int) -> bool:
    """The lease ran out, and the message was given to nobody since."""
    flight = lot.group.flights.get(seq)
    return (
        flight is not None
        and flight.timed_out
        and flight.state is not State.LEASED
        and flight.nonce == nonce
        and flight.attempt == lot.attempt
    )


def _why_not(lot: _Lot, seq: int) -> str:
    lease = lot.group.leases.get(seq)
    flight = lot.group.flights.get(seq)
    if lease is not None:
        return (
            f"message {seq} was given to another holder since (attempt {lease.attempt}, this "
            f"receipt is of attempt {lot.attempt}): its outcome is theirs now"
        )
    if flight is not None:
        return (
            f"message {seq} is {flight.state.name.lower()} after attempt {flight.attempt}: this "
            f"receipt was already used, or its lease ran out"
        )
    return f"message {seq} is settled, was cancelled, or was never leased with this receipt"
