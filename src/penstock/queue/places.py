"""Where every message stands for one consumer group. Pure: no file, no clock, no lock.

What simply waits is a number in a packed array; only what is in flight, was retried, has a key or
is dead costs an object (a `Flight`). `group.py` says what each event changes here.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from penstock.codec.layout import DEFAULT_PRIORITY, MAX_PRIORITY
from penstock.queue.delays import Delays
from penstock.queue.events import EventType
from penstock.queue.flight import Flight, Lease, State
from penstock.queue.lane import Lane, PublishedNs
from penstock.queue.lines import Lines
from penstock.queue.oldest import Oldest
from penstock.queue.timetable import NEVER_NS, Timetable

_SPARE_LEASE_ENDS = 1024


class Moment:
    """What the monotonic clock shows; told by the caller, before it lets anything happen."""

    __slots__ = ("mono_ns",)

    def __init__(self) -> None:
        self.mono_ns = 0


class Places:
    """The messages of one group, each in its place."""

    def __init__(self, number: int, name: str, start_seq: int, moment: Moment) -> None:
        self.number = number
        self.name = name
        self.fed_upto = start_seq  # messages below it were fed, or are not this group's
        self.totals = [0] * (max(EventType) + 1)  # by the type of event; a list, for its speed
        self._moment = moment
        self._lease_number = 0
        self._empty()

    def _empty(self) -> None:
        """No message is anywhere."""
        self.lanes = [Lane() for _ in range(MAX_PRIORITY + 1)]
        self.plain = self.lanes[DEFAULT_PRIORITY].fresh
        self.special = 0  # how many wait in the lanes otherwise than in `plain`
        self.leases: dict[int, Lease] = {}
        self.flights: dict[int, Flight] = {}
        self.dead: dict[int, Flight] = {}  # those of the flights that are dead, oldest first
        self.dead_bytes = 0  # of those of the dead whose size is known
        self.retrying = 0  # flights that failed and are not given up
        self.parked = 0
        self.scheduled = 0
        self._timetable = Timetable()  # of what is scheduled
        self._delays = Delays()  # of what was delayed and has no flight, scheduled or due
        self._lines = Lines()
        self._oldest = Oldest()
        self._lease_ends: list[tuple[int, int, Lease]] = []  # a heap; some are over long since

    # -- counts ------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return len(self.plain) + self.special

    @property
    def has_keys(self) -> bool:
        """Does any message wait for its turn among those of its key, or have it?"""
        return len(self._lines) > 0

    @property
    def undelivered(self) -> int:
        """All that is neither done nor dead: what a bounded queue counts."""
        return self.ready + self.scheduled + self.parked + len(self.leases)

    @property
    def first_fresh(self) -> int | None:
        """The lowest seq that waits in line and was never handed out."""
        return min((lane.fresh.first for lane in self.lanes if lane.fresh.first), default=None)

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
            flight = self.flights[seq] = Flight(State.READY, priority, due_ns, key)
            self._join_line(seq, flight, key)
        elif deliver_at_ns > published_ns:
            self._delays.add(seq, due_ns, priority)
            self._timetable.add(due_ns, seq)
            self.scheduled += 1
        else:
            self._add_fresh(priority, seq)

    def _add_fresh(self, priority: int, seq: int) -> None:
        self.lanes[priority].fresh.add(seq, seq + 1)
        self.special += priority != DEFAULT_PRIORITY

    # -- time --------------------------------------------------------------------------------------

    def is_quiet(self, now_ns: int, mono_ns: int) -> bool:
        """Is nothing due by now, neither a message nor the end of a lease?"""
        ends = self._lease_ends
        return self._timetable.next_ns > now_ns and (not ends or ends[0][0] > mono_ns)

    def promote(self, now_ns: int) -> None:
        """Let what has become due wait in its lane."""
        if self._timetable.next_ns > now_ns:
            return
        for due_ns, seq in self._timetable.pop_upto(now_ns):
            flight = self.flights.get(seq)
            if flight is not None:
                flight.state = State.READY
            self.lanes[self._priority_of(seq, flight)].due.add(due_ns, seq)
            self.scheduled -= 1
            self.special += 1

    def next_due_ns(self) -> int | None:
        """When the next scheduled message is due."""
        next_ns = self._timetable.next_ns
        return None if next_ns == NEVER_NS else next_ns

    def next_lease_end_ns(self) -> int | None:
        """When the next lease ends, on the monotonic clock."""
        ends = self._lease_ends
        while ends and not self._holds_any(ends[0][2]):
            heappop(ends)
        return ends[0][0] if ends else None

    def overdue(self, mono_ns: int) -> list[tuple[int, Lease]]:
        """The messages whose lease has ended, in the order of their ends."""
        ends, held = self._lease_ends, []
        while ends and ends[0][0] <= mono_ns:
            end = heappop(ends)
            if self._holds_any(end[2]):
                held.append(end)
        for end in held:  # until the event of their end is applied
            heappush(ends, end)
        return [
            (seq, lease)
            for _, _, lease in held
            for seq in lease.seqs
            if self.leases.get(seq) is lease
        ]

    def rebase(self, now_ns: int, mono_ns: int) -> None:
        """After a restart: a lease ends at its stored deadline, at most its length from now."""
        self._lease_ends = []
        for lease in dict.fromkeys(self.leases.values()):
            left_ns = max(min(lease.deadline_ns - now_ns, lease.length_ns), 0)
            lease.ends_mono_ns = mono_ns + left_ns
            self._watch(lease)

    def _watch(self, lease: Lease) -> None:
        """Let its end be noticed."""
        ends = self._lease_ends
        if len(ends) > 2 * len(self.leases) + _SPARE_LEASE_ENDS:
            # Most were settled long before their end: keep those that were not.
            ends[:] = [end for end in ends if self._holds_any(end[2])]
            heapify(ends)
        self._lease_number += 1
        heappush(ends, (lease.ends_mono_ns, self._lease_number, lease))

    def _holds_any(self, lease: Lease) -> bool:
        leases = self.leases
        if len(lease.seqs) == 1:  # without a generator: it is asked of every lease there was
            return leases.get(lease.seqs[0]) is lease
        return any(leases.get(seq) is lease for seq in lease.seqs)

    # -- looking -----------------------------------------------------------------------------------

    def candidates(self, lane_order: Iterable[int], published_ns: PublishedNs) -> Iterator[int]:
        """Ready messages in the order of their delivery. Do not change the group meanwhile."""
        for priority in lane_order:
            yield from self.lanes[priority].in_order(published_ns)

    def state_of(self, seq: int, now_ns: int) -> State:
        """Where a message stands."""
        if seq in self.leases:
            return State.LEASED
        flight = self.flights.get(seq)
        if flight is not None:
            ready_by_now = flight.state is State.SCHEDULED and flight.due_ns <= now_ns
            return State.READY if ready_by_now else flight.state
        if any(seq in lane.fresh for lane in self.lanes):
            return State.READY
        delay = self._delays.get(seq)
        if delay is None:
            return State.DONE
        return State.READY if delay[0] <= now_ns else State.SCHEDULED

    def scheduled_items(self) -> Iterator[tuple[int, int]]:
        """(due_ns, seq) of all that is scheduled, in order. Do not change the group meanwhile."""
        return iter(self._timetable)

    @property
    def delays(self) -> Delays:
        """What was published with a delay, and has no flight."""
        return self._delays

    def restore_waiting(self, delays: Delays) -> None:
        """From a snapshot: all that follows from the flights, which are there, and the delays."""
        self._delays = delays
        self._timetable = delays.timetable()
        parked = []
        for seq, flight in sorted(self.flights.items()):
            if flight.state is State.SCHEDULED:
                self._timetable.add(flight.due_ns, seq)
            if flight.state is State.PARKED:
                parked.append((seq, flight))
            elif flight.key is not None and not flight.cause:  # a dead letter is in no line
                self._lines.join(flight.key, seq)
        for seq, flight in parked:
            if self._lines.join(flight.key or b"", seq):
                raise ValueError(f"message {seq} is parked, and no other is before it")
        self.parked = len(parked)
        self.retrying = sum(flight.is_retried for flight in self.flights.values())
        self.scheduled = len(self._timetable)
        self.special = sum(map(len, self.lanes)) - len(self.plain)

    def oldest_waiting(self, count: int) -> list[int]:
        """The lowest seqs that wait and are handed to nobody."""
        seqs: list[int] = []
        for lane in self.lanes:
            seqs += islice(lane.fresh, count)
        seqs += islice(self._delays, count)
        seqs += self._oldest.lowest(count, self.flights)
        return sorted(seqs)[:count]

    def ahead_in_line(self, seq: int) -> list[int]:
        """The messages of the same key that go before a parked one."""
        return self._lines.ahead(self.flights[seq].key or b"", seq)

    # -- moving one message ------------------------------------------------------------------------

    def _take_waiting(self, seq: int) -> tuple[int, int, bool] | None:
        """Take a message out of where it waits: (priority, due, was fresh); None if it does not."""
        flight = self.flights.get(seq)
        if flight is not None:
            if flight.state not in (State.READY, State.SCHEDULED):
                return None
            self._take_due(flight.due_ns, flight.priority, seq)
            return flight.priority, flight.due_ns, False
        if self.plain.discard(seq, seq + 1):
            return DEFAULT_PRIORITY, 0, True
        delay = self._delays.pop(seq)
        if delay is not None:
            due_ns, priority = delay
            self._take_due(due_ns, priority, seq)
            return priority, due_ns, False
        if self.special:
            for priority, lane in enumerate(self.lanes):
                if lane.fresh.discard(seq, seq + 1):
                    self.special -= 1
                    return priority, 0, True
        return None

    def _take_due(self, due_ns: int, priority: int, seq: int) -> None:
        """Take out what waits with a due time of its own, scheduled or due already."""
        if self._timetable.remove(due_ns, seq):
            self.scheduled -= 1
        elif self.lanes[priority].due.remove(due_ns, seq):
            self.special -= 1

    def _schedule(self, seq: int, flight: Flight, due_ns: int) -> None:
        """Let a message wait until it is due. `promote` puts it in its lane, now or later."""
        flight.state, flight.due_ns = State.SCHEDULED, due_ns
        self._oldest.add(seq)
        self._timetable.add(due_ns, seq)
        self.scheduled += 1

    def _finish(self, seq: int) -> None:
        """Forget a message that is done; the next of its key may go."""
        flight = self._forget(seq)
        self._exhume(seq)
        if flight is not None and flight.state is not State.DEAD:
            self._leave_line(seq, flight)

    def _forget(self, seq: int) -> Flight | None:
        flight = self.flights.pop(seq, None)
        if flight is not None:
            self.retrying -= flight.is_retried
        return flight

    def _bury(self, seq: int, flight: Flight) -> None:
        """Put it among the dead, as the newest."""
        flight.state = State.DEAD
        self.dead[seq] = flight
        self.dead_bytes += flight.size_bytes

    def _exhume(self, seq: int) -> Flight | None:
        """Take it out of the dead; None if it is not one of them."""
        flight = self.dead.pop(seq, None)
        if flight is not None:
            self.dead_bytes -= flight.size_bytes
        return flight

    def weigh_dead(self, seq: int, size_bytes: int) -> None:
        """Note how large a dead letter is, for a bound by size; also of one that is leased."""
        flight = self.flights.get(seq)
        if flight is not None:
            self.dead_bytes += size_bytes - flight.size_bytes if seq in self.dead else 0
            flight.size_bytes = size_bytes

    def _priority_of(self, seq: int, flight: Flight | None) -> int:
        """Of a message that waits with a due time of its own."""
        if flight is not None:
            return flight.priority
        delay = self._delays.get(seq)
        assert delay is not None
        return delay[1]

    # -- keys --------------------------------------------------------------------------------------

    def _join_line(self, seq: int, flight: Flight, key: bytes) -> None:
        """Wait for its turn, which may be now."""
        if self._lines.join(key, seq):
            self._schedule(seq, flight, flight.due_ns)
            return
        flight.state = State.PARKED
        self._oldest.add(seq)
        self.parked += 1

    def _leave_line(self, seq: int, flight: Flight) -> None:
        """Go, parked or not; the next may have its turn then."""
        if flight.key is None:
            return
        self.parked -= flight.state is State.PARKED
        following = self._lines.leave(flight.key, seq)
        if following is not None:
            self._take_turn(following)

    def _keep_line_in_order(self, flight: Flight) -> None:
        """If the first in line is not being worked on, and not the lowest: let the lowest go."""
        first = None if flight.key is None else self._lines.first_behind(flight.key)
        if first is None or first in self.leases:
            return
        assert flight.key is not None
        self._take_waiting(first)
        following = self._lines.leave(flight.key, first)
        assert following is not None
        self._join_line(first, self.flights[first], flight.key)
        self._take_turn(following)

    def _take_turn(self, seq: int) -> None:
        self.parked -= 1
        flight = self.flights[seq]
        self._schedule(seq, flight, flight.due_ns)
