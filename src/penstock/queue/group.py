"""One consumer group: where every message stands for it. Pure: no file, no clock, no lock.

It changes in two ways only: `feed_…` (a message was published) and `apply` (an event happened).
Both are called with what is in the logs, live and at recovery alike; whatever the caller decides,
it decides by writing an event.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from penstock.codec.layout import DEFAULT_PRIORITY, MAX_PRIORITY
from penstock.queue.events import Cause, Event, EventType
from penstock.queue.flight import Flight, Lease, State
from penstock.queue.lane import Lane, PublishedNs

_PRIORITY_SHIFT = 64
_DUE_SHIFT = 68
_SEQ_MASK = (1 << 64) - 1
_SPARE_LEASE_ENDS = 1024
_SPARE_STALE = 1024
_LEASED, _TAKEN, _ACKED = EventType.LEASED, EventType.TAKEN, EventType.ACKED


def _pack_scheduled(due_ns: int, priority: int, seq: int) -> int:
    """One integer per scheduled message: 52 bytes, sorted by due time by the C heap."""
    return due_ns << _DUE_SHIFT | priority << _PRIORITY_SHIFT | seq


class Moment:
    """What the monotonic clock shows; told by the caller, before it lets anything happen."""

    __slots__ = ("mono_ns",)

    def __init__(self) -> None:
        self.mono_ns = 0


class Group:
    """The fold of one group's events."""

    def __init__(self, number: int, name: str, start_seq: int, moment: Moment) -> None:
        self.number = number
        self.name = name
        self.fed_upto = start_seq  # messages below it were fed, or are not this group's
        self.lanes = [Lane() for _ in range(MAX_PRIORITY + 1)]
        self.plain = self.lanes[DEFAULT_PRIORITY].fresh
        self.special = 0  # how many wait in the lanes otherwise than in `plain`
        self.leases: dict[int, Lease] = {}
        self.flights: dict[int, Flight] = {}
        self.dead: dict[int, Flight] = {}  # those of the flights that are dead, oldest first
        self.parked = 0
        self._moment = moment
        self.totals: dict[EventType, int] = dict.fromkeys(EventType, 0)
        self.scheduled = 0
        # A heap. An item may be stale: of a flight that is no longer scheduled for that time, or
        # of a message without flight that is in `_unscheduled`.
        self._scheduled: list[int] = []
        self._unscheduled: set[int] = set()
        self._lines: dict[bytes, deque[int]] = {}  # key -> seqs, the first one's turn is now
        self._lease_ends: list[tuple[int, int, Lease]] = []
        self._lease_number = 0

    # -- counts ------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return len(self.plain) + self.special

    @property
    def undelivered(self) -> int:
        """All that is neither done nor dead: what a bounded queue counts."""
        return self.ready + self.scheduled + self.parked + len(self.leases)

    # -- publishing --------------------------------------------------------------------------------

    def feed_plain(self, first: int, end: int) -> None:
        """Messages of the default priority, due at once, without key."""
        self.plain.add(first, end)
        self.fed_upto = end

    def feed(
        self, seq: int, *, priority: int, published_ns: int, deliver_at_ns: int, key: bytes | None
    ) -> None:
        """Any other message."""
        due_ns = max(deliver_at_ns, published_ns)
        self.fed_upto = seq + 1
        if key is not None:
            self._feed_keyed(seq, Flight(State.READY, priority, due_ns, key))
        elif deliver_at_ns > published_ns:
            heapq.heappush(self._scheduled, _pack_scheduled(due_ns, priority, seq))
            self.scheduled += 1
        else:
            self._add_fresh(priority, seq)

    def _add_fresh(self, priority: int, seq: int) -> None:
        self.lanes[priority].fresh.add(seq, seq + 1)
        self.special += priority != DEFAULT_PRIORITY

    def _feed_keyed(self, seq: int, flight: Flight) -> None:
        self.flights[seq] = flight
        line = self._lines.get(flight.key or b"")
        if line is not None:
            line.append(seq)
            flight.state = State.PARKED
            self.parked += 1
            return
        self._lines[flight.key or b""] = deque([seq])
        self._schedule(seq, flight, flight.due_ns)

    # -- choosing ----------------------------------------------------------------------------------

    def is_quiet(self, now_ns: int, mono_ns: int) -> bool:
        """Is nothing due by now, neither a message nor the end of a lease?"""
        scheduled, ends = self._scheduled, self._lease_ends
        return (not scheduled or scheduled[0] >> _DUE_SHIFT > now_ns) and (
            not ends or ends[0][0] > mono_ns
        )

    @property
    def has_timers(self) -> bool:
        """May something ever happen by itself?"""
        return bool(self._scheduled or self._lease_ends)

    def promote(self, now_ns: int) -> None:
        """Let what has become due wait in its lane."""
        if len(self._unscheduled) > len(self._scheduled) // 2 + _SPARE_STALE:
            self._drop_stale()
        scheduled, limit = self._scheduled, (now_ns + 1) << _DUE_SHIFT
        while scheduled and scheduled[0] < limit:
            item = heapq.heappop(scheduled)
            if not self._is_stale(item):
                seq = item & _SEQ_MASK
                self.lanes[item >> _PRIORITY_SHIFT & 0xF].add_due(item >> _DUE_SHIFT, seq)
                self.scheduled -= 1
                self.special += 1
                if seq in self.flights:
                    self.flights[seq].state = State.READY

    def _drop_stale(self) -> None:
        """Most of the heap is stale: keep the rest, so that nothing is remembered for ever."""
        self._scheduled = [item for item in set(self._scheduled) if not self._is_stale(item)]
        heapq.heapify(self._scheduled)
        self._unscheduled.clear()

    def _is_stale(self, item: int) -> bool:
        flight = self.flights.get(item & _SEQ_MASK)
        if flight is None:
            return item & _SEQ_MASK in self._unscheduled
        return flight.state is not State.SCHEDULED or flight.due_ns != item >> _DUE_SHIFT

    def next_due_ns(self) -> int | None:
        """When the next scheduled message is due."""
        while self._scheduled and self._is_stale(self._scheduled[0]):
            heapq.heappop(self._scheduled)
        return self._scheduled[0] >> _DUE_SHIFT if self._scheduled else None

    def waiting_items(self) -> Iterator[tuple[int, int, int]]:
        """(due_ns, priority, seq) of all that waits with a due time of its own, due or not.

        In order, and packed until they are handed out: a million tuples are a hundred megabytes.
        """
        items = [item for item in self._scheduled if not self._is_stale(item)]
        for priority, lane in enumerate(self.lanes):
            items += [_pack_scheduled(due, priority, seq) for due, seq in lane.due_items()]
        items.sort()
        last = -1
        for item in items:
            if item != last:
                yield item >> _DUE_SHIFT, item >> _PRIORITY_SHIFT & 0xF, item & _SEQ_MASK
            last = item

    def restore_waiting(self, items: Iterable[tuple[int, int, int]]) -> None:
        """From a snapshot: what `waiting_items` gave, and the lines of the keys."""
        self._scheduled = [_pack_scheduled(due, priority, seq) for due, priority, seq in items]
        heapq.heapify(self._scheduled)
        self.scheduled = len(self._scheduled)
        parked = []
        for seq, flight in sorted(self.flights.items()):
            if flight.state is State.PARKED:
                parked.append((seq, flight))
            elif flight.key is not None and not flight.cause:  # a dead letter is in no line
                self._lines[flight.key] = deque([seq])
        for seq, flight in parked:
            self._lines[flight.key or b""].append(seq)
        self.parked = len(parked)
        self.special = sum(map(len, self.lanes)) - len(self.plain)

    def oldest_waiting(self, count: int) -> list[int]:
        """The lowest seqs that wait and are handed to nobody."""
        seqs: list[int] = []
        for lane in self.lanes:
            seqs += islice(lane.fresh, count)
        seqs += [seq for _, _, seq in self.waiting_items()]
        seqs += [seq for seq, f in self.flights.items() if f.state is State.PARKED]
        return sorted(seqs)[:count]

    def scheduled_items(self) -> list[tuple[int, int]]:
        """(due_ns, seq) of all that is scheduled, in order."""
        items = sorted(item for item in set(self._scheduled) if not self._is_stale(item))
        return [(item >> _DUE_SHIFT, item & _SEQ_MASK) for item in items]

    def next_lease_end_ns(self) -> int | None:
        """When the next lease ends, on the monotonic clock."""
        ends = self._lease_ends
        while ends and not self._holds_any(ends[0][2]):
            heapq.heappop(ends)
        return ends[0][0] if ends else None

    def overdue(self, mono_ns: int) -> list[tuple[int, Lease]]:
        """The messages whose lease has ended, in the order of their ends."""
        ends, held = self._lease_ends, []
        while ends and ends[0][0] <= mono_ns:
            end = heapq.heappop(ends)
            if self._holds_any(end[2]):
                held.append(end)
        for end in held:  # until the event of their end is applied
            heapq.heappush(ends, end)
        return [
            (seq, lease)
            for _, _, lease in held
            for seq in lease.seqs
            if self.leases.get(seq) is lease
        ]

    def candidates(self, lane_order: Iterable[int], published_ns: PublishedNs) -> Iterator[int]:
        """Ready messages in the order of their delivery. Do not change the group meanwhile."""
        for priority in lane_order:
            yield from self.lanes[priority].in_order(published_ns)

    def state_of(self, seq: int, deliver_at_ns: int, published_ns: int, now_ns: int) -> State:
        """Where a message stands."""
        if seq in self.leases:
            return State.LEASED
        flight = self.flights.get(seq)
        if flight is not None:
            ready_by_now = flight.state is State.SCHEDULED and flight.due_ns <= now_ns
            return State.READY if ready_by_now else flight.state
        if any(seq in lane.fresh for lane in self.lanes):
            return State.READY
        if deliver_at_ns > published_ns:
            if any(lane.has_due(deliver_at_ns, seq) for lane in self.lanes):
                return State.READY
            if self._find_scheduled(seq) is not None:
                return State.READY if deliver_at_ns <= now_ns else State.SCHEDULED
        return State.DONE

    def _find_scheduled(self, seq: int) -> int | None:
        """The heap's item of a message without flight; looks at all of them."""
        if seq in self._unscheduled:
            return None
        return next((item for item in self._scheduled if item & _SEQ_MASK == seq), None)

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
            flight = self.dead.pop(seq, None)
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

    def _watch(self, lease: Lease) -> None:
        ends = self._lease_ends
        if len(ends) > 2 * len(self.leases) + _SPARE_LEASE_ENDS:
            # Most were settled long before their end: keep those that were not.
            ends[:] = [end for end in ends if self._holds_any(end[2])]
            heapq.heapify(ends)
        self._lease_number += 1
        heapq.heappush(ends, (lease.ends_mono_ns, self._lease_number, lease))

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
                self._leave_line(seq, flights.pop(seq))
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
        flight.first_failure_ns = flight.first_failure_ns or event.timestamp_ns
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
            flight.state, flight.cause = State.DEAD, event.cause
            flight.timed_out = event.cause == Cause.TIMEOUT
            self.dead[seq] = flight
            self._next_in_line(seq, flight)
            self.totals[EventType.DEAD] += 1

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
                flight.state = State.DEAD
                self.dead[seq] = flight
            else:
                flight.attempt = lease.attempt - 1  # this delivery does not count
                flight.nonce = 0
                self._schedule(seq, flight, flight.due_ns)
                self._keep_line_in_order(flight)
            self.totals[EventType.RELEASED] += 1

    def _redriven(self, event: Event) -> None:
        for seq in event.seqs:
            flight = self.dead.pop(seq, None)
            if flight is None:
                continue
            fresh = Flight(State.READY, flight.priority, event.timestamp_ns, flight.key)
            self.flights[seq] = fresh
            self.totals[EventType.REDRIVEN] += 1
            if flight.key is not None:
                self._back_in_line(seq, fresh, flight.key)
            else:
                self._schedule(seq, fresh, event.timestamp_ns)

    def _removed(self, event: Event) -> None:
        """Expired, cancelled, dropped, discarded or lost: done, whatever it was before."""
        for seq in event.seqs:
            if self.leases.pop(seq, None) is None and self._take_waiting(seq) is None:
                flight = self.flights.get(seq)
                if flight is None:
                    continue
                if flight.state is State.PARKED:
                    self._leave_line(seq, flight)
            self._finish(seq)
            self.totals[event.type] += 1

    def _purged(self, event: Event) -> None:
        target = event.target_seq
        # The parked ones first: when those before them go, they would not be parked any more.
        parked = [s for s, f in self.flights.items() if s < target and f.state is State.PARKED]
        for seq in parked:
            self._leave_line(seq, self.flights.pop(seq))
        self.totals[EventType.PURGED] += len(parked)
        for lane in self.lanes:
            purged = lane.fresh.discard(0, target)
            self.totals[EventType.PURGED] += purged
            self.special -= purged if lane.fresh is not self.plain else 0
            for due_ns, seq in list(lane.due_items()):
                if seq < target:
                    self.special -= lane.remove_due(due_ns, seq)
                    self._finish(seq)
                    self.totals[EventType.PURGED] += 1
        for _, seq in self.scheduled_items():
            if seq < target:
                self._unscheduled.add(seq)
                self.scheduled -= 1
                self._finish(seq)
                self.totals[EventType.PURGED] += 1

    def _sought(self, event: Event) -> None:
        """Everything from the target on is to be delivered (again), nothing before it."""
        target = event.target_seq
        kept = {seq: flight for seq, flight in self.dead.items() if seq < target}
        for seq in self.leases:
            flight = self.flights.get(seq)
            if flight is not None and flight.cause and seq < target:  # a dead letter, handed out
                flight.state = State.DEAD
                kept[seq] = flight
        self.lanes = [Lane() for _ in range(MAX_PRIORITY + 1)]
        self.plain = self.lanes[DEFAULT_PRIORITY].fresh
        self.special = 0
        self.leases.clear()
        self.flights = dict(kept)
        self.dead = kept
        self.parked = 0
        self.scheduled = 0
        self._scheduled.clear()
        self._unscheduled.clear()
        self._lines.clear()
        self._lease_ends.clear()
        self.fed_upto = target
        self.totals[EventType.SOUGHT] += 1

    # -- moving one message ------------------------------------------------------------------------

    def _take_waiting(self, seq: int) -> tuple[int, int, bool] | None:
        """Take a message out of where it waits: (priority, due, was fresh); None if it does not."""
        flight = self.flights.get(seq)
        if flight is not None:
            if flight.state is State.READY:
                self.special -= self.lanes[flight.priority].remove_due(flight.due_ns, seq)
            elif flight.state is State.SCHEDULED:
                self._unscheduled.add(seq)  # should the flight be forgotten before the heap is
                self.scheduled -= 1
            else:
                return None
            return flight.priority, flight.due_ns, False
        if self.plain.discard(seq, seq + 1):
            return DEFAULT_PRIORITY, 0, True
        if self.special:
            for priority, lane in enumerate(self.lanes):
                if lane.fresh.discard(seq, seq + 1):
                    self.special -= 1
                    return priority, 0, True
            for priority, lane in enumerate(self.lanes):
                due_ns = lane.take_due(seq)
                if due_ns is not None:
                    self.special -= 1
                    return priority, due_ns, False
        item = self._find_scheduled(seq)
        if item is None:
            return None
        self._unscheduled.add(seq)
        self.scheduled -= 1
        return item >> _PRIORITY_SHIFT & 0xF, item >> _DUE_SHIFT, False

    def _schedule(self, seq: int, flight: Flight, due_ns: int) -> None:
        """Let a message wait until it is due. `promote` puts it in its lane, now or later."""
        flight.state, flight.due_ns = State.SCHEDULED, due_ns
        self.scheduled += 1
        heapq.heappush(self._scheduled, _pack_scheduled(due_ns, flight.priority, seq))

    def _finish(self, seq: int) -> None:
        """Forget a message that is done; the next of its key may go."""
        flight = self.flights.pop(seq, None)
        self.dead.pop(seq, None)
        if flight is not None and flight.state is not State.DEAD:
            self._next_in_line(seq, flight)

    # -- keys --------------------------------------------------------------------------------------

    def _next_in_line(self, seq: int, flight: Flight) -> None:
        line = self._lines.get(flight.key) if flight.key is not None else None
        if line is None or line[0] != seq:
            return
        line.popleft()
        if not line:
            del self._lines[flight.key or b""]
            return
        following = self.flights[line[0]]
        self.parked -= 1
        self._schedule(line[0], following, following.due_ns)

    def ahead_in_line(self, seq: int) -> list[int]:
        """The messages of the same key that go before a parked one."""
        line = self._lines[self.flights[seq].key or b""]
        return list(islice(line, line.index(seq)))

    def _leave_line(self, seq: int, flight: Flight) -> None:
        """A parked message goes before its turn."""
        self._lines[flight.key or b""].remove(seq)
        self.parked -= 1

    def _back_in_line(self, seq: int, flight: Flight, key: bytes) -> None:
        """A redriven message: behind the one being worked on, before those that came later."""
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque([seq])
            self._schedule(seq, flight, flight.due_ns)
            return
        line.insert(next((n for n, other in enumerate(line) if n and other > seq), len(line)), seq)
        flight.state = State.PARKED
        self.parked += 1
        self._keep_line_in_order(flight)

    def _keep_line_in_order(self, flight: Flight) -> None:
        """Whoever is first in line is being worked on, or is the lowest.

        So it makes no difference whether the later ones of the key are not published yet, as live,
        or known already, as at recovery.
        """
        line = self._lines.get(flight.key) if flight.key is not None else None
        if line is None or len(line) == 1 or line[0] < line[1] or line[0] in self.leases:
            return
        first = line.popleft()
        self._take_waiting(first)
        self.flights[first].state = State.PARKED
        line.insert(next((n for n, other in enumerate(line) if other > first), len(line)), first)
        following = self.flights[line[0]]
        self._schedule(line[0], following, following.due_ns)

    def _holds_any(self, lease: Lease) -> bool:
        leases = self.leases
        if len(lease.seqs) == 1:  # without a generator: it is asked of every lease there was
            return leases.get(lease.seqs[0]) is lease
        return any(leases.get(seq) is lease for seq in lease.seqs)

    def rebase(self, now_ns: int, mono_ns: int) -> None:
        """After a restart: a lease ends at its stored deadline, at most its length from now."""
        self._lease_ends = []
        for lease in dict.fromkeys(self.leases.values()):
            left_ns = max(min(lease.deadline_ns - now_ns, lease.length_ns), 0)
            lease.ends_mono_ns = mono_ns + left_ns
            self._watch(lease)


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
