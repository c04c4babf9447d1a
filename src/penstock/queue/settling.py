"""Settling: ack, nack, extend or release leased messages. Each call settles all or nothing."""

from collections.abc import Iterable, Sequence

from penstock.checking import Duration, check_seconds
from penstock.codec import parse_id
from penstock.errors import InvalidInput, LedgerError, LedgerStopped, ReceiptInvalid
from penstock.model import NS, LeasedMessage, NewMessage
from penstock.queue.attributes import SETTLES, pack_carried
from penstock.queue.core import QueueCore
from penstock.queue.decisions import decide_extend, decide_nack, decide_settle
from penstock.queue.delivering import lease_length_ns
from penstock.queue.events import Event, EventType, as_written
from penstock.queue.progress import check_progress
from penstock.queue.publishing import Publishing, deduplicated
from penstock.queue.receipts import Held, Leased, held_by, held_by_holder
from penstock.queue.settings import YEARS_S

__all__ = ["Leased", "Settling"]


class Settling:
    """The settling side of a queue."""

    def __init__(self, core: QueueCore, publishing: Publishing) -> None:
        self._core = core
        self._publishing = publishing

    def ack(self, leased: Iterable[Leased], emit: Sequence[NewMessage] = ()) -> list[str]:
        """Settle messages as done. With `emit`, publish follow-up messages in the same write.

        Return the ids of the follow-up messages.
        """
        core = self._core
        with core.lock, core.change:
            now_ns = core.now()
            held = self._held(leased, late_is_fine=True)
            events = decide_settle(EventType.ACKED, held)
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
            core.metrics.acked += sum(len(one.seqs) for one in held)
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
        settles = {SETTLES: pack_carried(event, next_event_seq)}
        answers = self._publishing.write_prepared(prepared, settles)
        last_seq = max(parse_id(answer.id)[2] for answer in answers if not answer.duplicate)
        event = event._replace(target_seq=last_seq + 1)
        try:
            # The ack is durable with the messages. It is written to the event log as well because
            # the messages may be compacted away sooner than the events of an old snapshot.
            core.record([event])
        except LedgerStopped:
            raise
        except LedgerError:  # no room, or too many open files: the ack counts anyway
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
        """Settle messages as failed: retry after `delay`, or when the retry policy says.

        After `max_attempts`, or with `final`, a message becomes a dead letter.
        """
        core = self._core
        reason = as_written("reason", reason)
        delay_ns = None if delay is None else round(check_delay(delay) * NS)
        retry_delay = core.retry_delay if delay_ns is None else lambda _: delay_ns
        with core.lock, core.change:
            now_ns = core.now()
            events = decide_nack(
                self._held(leased),
                reason,
                now_ns,
                max_attempts=core.max_attempts_of,
                retry_delay=retry_delay,
                final=final,
            )
            core.record(events)
            core.metrics.nacked += len(events)

    def extend(
        self,
        leased: Iterable[Leased],
        lease_s: Duration | None = None,
        *,
        progress: float | None = None,
        note: str = "",
    ) -> None:
        """Extend leases: `lease_s` from now, by default the queue's own."""
        core = self._core
        length_ns = lease_length_ns(lease_s, core.settings.lease_s)
        said = check_progress(progress, note)
        with core.lock, core.change:
            now_ns = core.now()
            core.record(decide_extend(self._held(leased), now_ns, length_ns, said))

    def release(self, leased: Iterable[Leased]) -> None:
        """Give messages back: ready again at once, and the attempt does not count."""
        core = self._core
        with core.lock, core.change:
            core.now()
            core.record(decide_settle(EventType.RELEASED, self._held(leased)))

    def give_back(self, leased: Iterable[LeasedMessage]) -> None:
        """Release messages that were not handed out. Ignore those whose lease has ended."""
        leased = list(leased)
        if not leased:
            return
        try:
            self.release(leased)
        except ReceiptInvalid:
            for one in leased:
                try:
                    self.release([one])
                except ReceiptInvalid:
                    pass  # it is delivered again in any case

    def release_of(self, holder: str, group_name: str) -> int:
        """Release all messages of a holder that disconnected. Return their number."""
        core = self._core
        holder = as_written("holder", holder)
        with core.lock, core.change:
            core.now()
            held = held_by_holder(core.group(group_name), holder)
            core.record(decide_settle(EventType.RELEASED, held))
            return sum(len(one.seqs) for one in held)

    def _held(self, leased: Iterable[Leased], *, late_is_fine: bool = False) -> list[Held]:
        core = self._core
        return held_by(core.state, core.identity, leased, late_is_fine=late_is_fine)

    def _count_work(self, held: Held, now_ns: int) -> None:
        lease = held.group.leases.get(held.seqs[0])
        if lease is not None:
            started_ns = lease.deadline_ns - lease.length_ns
            self._core.metrics.work.add(max(now_ns - started_ns, 0), len(held.seqs))


def check_delay(delay: Duration) -> float:
    """Check the delay of a nack. Return it in seconds."""
    return check_seconds("delay", delay, 0, YEARS_S)
