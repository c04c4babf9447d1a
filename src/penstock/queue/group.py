"""One consumer group: what each event changes about where its messages stand.

A group changes in two ways only: `feed_…` (a message was published) and `apply` (an event
happened). Both are called with what is in the logs, live and at recovery alike; whatever the caller
decides, it decides by writing an event.
"""

from collections.abc import Callable

from penstock.codec.layout import DEFAULT_PRIORITY
from penstock.queue.events import Cause, Event, EventType
from penstock.queue.flight import Flight, Lease, State
from penstock.queue.places import Moment, Places

__all__ = ["Group", "Moment"]

_LEASED, _TAKEN, _ACKED = EventType.LEASED, EventType.TAKEN, EventType.ACKED


class Group(Places):
    """The fold of one group's events."""

    # -- events ------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """The one way in which an event changes the group."""
        self.promote(event.timestamp_ns)
        _HANDLERS[event.type](self, event)

    def _leased(self, event: Event) -> None:
        if len(event.runs) == 1 and event.attempt == 1:
            first, run = event.runs[0]
            if self.plain.holds(first, first + run):
                self.lease_plain(
                    first,
                    first + run,
                    event.nonce,
                    event.deadline_ns,
                    event.length_ns,
                    event.holder,
                )
                return
        shared: dict[int, Lease] = {}
        count = 0
        for seq in event.seqs:
            place = self._take_waiting(seq)
            if place is None:
                continue
            priority, due_ns, was_fresh = place
            flight = self.flights.get(seq)
            if flight is None and not was_fresh:
                flight = self.flights[seq] = Flight(State.LEASED, priority, due_ns)
            if flight is not None:
                flight.state = State.LEASED
                flight.attempt, flight.nonce, flight.timed_out = event.attempt, event.nonce, False
            lease = shared.get(priority)
            if lease is None:
                lease = shared[priority] = self._new_lease(event, priority)
            lease.seqs.append(seq)
            self.leases[seq] = lease
            count += 1
        self.totals[EventType.LEASED] += count

    def _dead_leased(self, event: Event) -> None:
        for seq in event.seqs:
            flight = self._exhume(seq)
            if flight is None:
                continue
            flight.state = State.LEASED
            flight.attempt, flight.nonce, flight.timed_out = event.attempt, event.nonce, False
            lease = self._new_lease(event, flight.priority)
            lease.seqs.append(seq)
            self.leases[seq] = lease
            self.totals[EventType.DEAD_LEASED] += 1

    def lease_plain(
        self, first: int, end: int, nonce: int, deadline_ns: int, length_ns: int, holder: str
    ) -> None:
        """What a LEASED event does to a run of plain messages."""
        self.plain.discard(first, end)
        seqs = [first] if end == first + 1 else list(range(first, end))
        ends_mono_ns = self._moment.mono_ns + length_ns
        lease = Lease(
            1, nonce, deadline_ns, length_ns, ends_mono_ns, holder, DEFAULT_PRIORITY, seqs
        )
        self._watch(lease)
        for seq in seqs:
            self.leases[seq] = lease
        self.totals[_LEASED] += end - first

    def _new_lease(self, event: Event, priority: int) -> Lease:
        lease = Lease(
            attempt=event.attempt,
            nonce=event.nonce,
            deadline_ns=event.deadline_ns,
            length_ns=event.length_ns,
            ends_mono_ns=self._moment.mono_ns + event.length_ns,
            holder=event.holder,
            priority=priority,
            seqs=[],
        )
        self._watch(lease)
        return lease

    def _taken(self, event: Event) -> None:
        done = 0
        for first, count in event.runs:
            if self.plain.holds(first, first + count):
                self.take_plain(first, first + count)
                continue
            for seq in range(first, first + count):
                if self._take_waiting(seq) is not None:
                    self._finish(seq)
                    done += 1
        self.totals[EventType.TAKEN] += done

    def take_plain(self, first: int, end: int) -> None:
        """What a TAKEN event does to a run of plain messages."""
        self.plain.discard(first, end)
        self.totals[_TAKEN] += end - first

    def ack_plain(self, seq: int) -> None:
        """What an ACKED event does to a leased message that has no flight."""
        lease, ends = self.leases.pop(seq), self._lease_ends
        if ends and ends[-1][2] is lease and len(lease.seqs) == 1:
            ends.pop()  # given last, and over: the last item can be taken off a heap
        self.totals[_ACKED] += 1

    def _acked(self, event: Event) -> None:
        leases, flights = self.leases, self.flights
        done = 0
        for seq in event.seqs:
            if leases.pop(seq, None) is not None:
                done += 1
                if seq in flights:
                    self._finish(seq)
            elif self._take_waiting(seq) is not None or seq in self.dead:
                # A late ack, of a lease that ran out and was given to nobody since. At recovery
                # also one that came with follow-up messages, before its lease was replayed.
                done += 1
                self._finish(seq)
            elif seq in flights and flights[seq].state is State.PARKED:  # late as well
                done += 1
                self._leave_line(seq, flights[seq])
                self._forget(seq)
        self.totals[EventType.ACKED] += done

    def _nacked(self, event: Event) -> None:
        self._failed(event, lambda: event.reason, timed_out=False)

    def _timed_out(self, event: Event) -> None:
        self._failed(event, lambda: "lease ran out", timed_out=True)

    def _failed(self, event: Event, reason: Callable[[], str], *, timed_out: bool) -> None:
        for seq in event.seqs:
            lease = self.leases.pop(seq, None)
            if lease is None:
                continue
            flight = self._note_failure(seq, lease, event, reason())
            flight.timed_out = timed_out
            self._schedule(seq, flight, event.retry_at_ns)
            self._keep_line_in_order(flight)
            self.totals[event.type] += 1

    def _note_failure(self, seq: int, lease: Lease, event: Event, reason: str) -> Flight:
        flight = self.flights.get(seq)
        if flight is None:
            flight = self.flights[seq] = Flight(State.LEASED, lease.priority, 0)
        flight.attempt, flight.nonce = lease.attempt, lease.nonce
        was_retried = flight.is_retried
        flight.first_failure_ns = flight.first_failure_ns or event.timestamp_ns
        self.retrying += flight.is_retried - was_retried
        flight.last_failure_ns = event.timestamp_ns
        flight.reason = reason
        return flight

    def _died(self, event: Event) -> None:
        for seq in event.seqs:
            lease = self.leases.pop(seq, None)
            if lease is None:
                place = self._take_waiting(seq)
                if place is None:
                    continue
                lease = self._new_lease(event, place[0])
            flight = self._note_failure(seq, lease, event, event.reason)
            self.retrying -= flight.is_retried
            if not flight.cause:  # else it was a dead letter already, and leased as one
                self.totals[EventType.DEAD] += 1
            flight.cause = event.cause
            flight.timed_out = event.cause == Cause.TIMEOUT
            self._bury(seq, flight)
            self._leave_line(seq, flight)

    def _extended(self, event: Event) -> None:
        for seq in event.seqs:
            lease = self.leases.get(seq)
            if lease is None:
                continue
            longer = self._new_lease(event, lease.priority)
            longer.attempt, longer.nonce, longer.holder = lease.attempt, lease.nonce, lease.holder
            longer.seqs.append(seq)
            self.leases[seq] = longer
            self.totals[EventType.EXTENDED] += 1

    def _released(self, event: Event) -> None:
        for seq in event.seqs:
            lease = self.leases.pop(seq, None)
            if lease is None:
                continue
            flight = self.flights.get(seq)
            if flight is None:
                self._add_fresh(lease.priority, seq)
            elif flight.cause:
                flight.attempt, flight.nonce = lease.attempt - 1, 0
                self._bury(seq, flight)
            else:
                flight.attempt = lease.attempt - 1  # this delivery does not count
                flight.nonce = 0
                self._schedule(seq, flight, flight.due_ns)
                self._keep_line_in_order(flight)
            self.totals[EventType.RELEASED] += 1

    def _redriven(self, event: Event) -> None:
        for seq in event.seqs:
            flight = self._exhume(seq)
            if flight is None:
                continue
            fresh = Flight(State.READY, flight.priority, event.timestamp_ns, flight.key)
            self.flights[seq] = fresh
            self.totals[EventType.REDRIVEN] += 1
            if flight.key is not None:
                self._join_line(seq, fresh, flight.key)
                self._keep_line_in_order(fresh)
            else:
                self._schedule(seq, fresh, event.timestamp_ns)

    def _removed(self, event: Event) -> None:
        """Expired, cancelled, dropped, discarded or lost: done, whatever it was before."""
        for seq in event.seqs:
            if (
                self.leases.pop(seq, None) is None
                and self._take_waiting(seq) is None
                and seq not in self.flights
            ):
                continue
            self._finish(seq)
            self.totals[event.type] += 1

    def _purged(self, event: Event) -> None:
        target = event.target_seq
        # The parked ones first: when those before them go, they would not be parked any more.
        parked = [s for s, f in self.flights.items() if s < target and f.state is State.PARKED]
        for seq in parked:
            self._leave_line(seq, self.flights[seq])
            self._forget(seq)
        self.totals[EventType.PURGED] += len(parked)
        for lane in self.lanes:
            purged = lane.fresh.discard(0, target)
            self.totals[EventType.PURGED] += purged
            self.special -= purged if lane.fresh is not self.plain else 0
            due = lane.due.pop_below(target)
            self.special -= len(due)
            self._purge_these(due)
        scheduled = self._timetable.pop_below(target)
        self.scheduled -= len(scheduled)
        self._purge_these(scheduled)
        self._delays.pop_below(target)

    def _purge_these(self, seqs: list[int]) -> None:
        for seq in seqs:
            self._finish(seq)
        self.totals[EventType.PURGED] += len(seqs)

    def _sought(self, event: Event) -> None:
        """Everything from the target on is to be delivered (again), nothing before it."""
        target = event.target_seq
        kept = {seq: flight for seq, flight in self.dead.items() if seq < target}
        for seq in self.leases:
            flight = self.flights.get(seq)
            if flight is not None and flight.cause and seq < target:  # a dead letter, handed out
                flight.state = State.DEAD
                kept[seq] = flight
        self._empty()
        self.flights = dict(kept)
        self.dead = kept
        self.dead_bytes = sum(flight.size_bytes for flight in kept.values())
        self.fed_upto = target
        self.totals[EventType.SOUGHT] += 1


_HANDLERS: dict[EventType, Callable[[Group, Event], None]] = {
    EventType.LEASED: Group._leased,
    EventType.TAKEN: Group._taken,
    EventType.ACKED: Group._acked,
    EventType.NACKED: Group._nacked,
    EventType.TIMED_OUT: Group._timed_out,
    EventType.DEAD: Group._died,
    EventType.DEAD_LEASED: Group._dead_leased,
    EventType.EXTENDED: Group._extended,
    EventType.RELEASED: Group._released,
    EventType.REDRIVEN: Group._redriven,
    EventType.EXPIRED: Group._removed,
    EventType.CANCELLED: Group._removed,
    EventType.DISCARDED: Group._removed,
    EventType.DROPPED: Group._removed,
    EventType.LOST: Group._removed,
    EventType.PURGED: Group._purged,
    EventType.SOUGHT: Group._sought,
}
