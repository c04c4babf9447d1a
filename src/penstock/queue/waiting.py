"""The messages of one group that wait: ready, scheduled, or parked behind others of their key.

A plain message that waits is part of a run in a packed array. Only messages that were leased,
retried or keyed have an object of their own (a `Delivery`). The first of a key is part of a run too
if it was neither delayed nor retried. Pure: no file, no clock, no lock.

In a queue that shares between tenants the ready messages are not in the lanes, but in a
`FairShare`.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from penstock.codec.layout import DEFAULT_PRIORITY, MAX_PRIORITY
from penstock.queue.delivery import WAITING_STATES, Delivery, State
from penstock.queue.fair_share import FairShare
from penstock.queue.runs import Runs
from penstock.queue.schedule import NEVER_NS, Delays, Timetable
from penstock.queue.upcoming import Upcoming

TimeOf = Callable[[int], int]  # seq -> nanoseconds
_SPARE = 1024
# A global is faster than an attribute.
_READY, _SCHEDULED, _PARKED = State.READY, State.SCHEDULED, State.PARKED


class Lane:
    """The ready messages of one priority, delivered by due time, then by seq.

    A message that was never delayed is due when it is published, so seq order is due order and
    runs of seqs suffice (`fresh`). All others carry their due time (`due`).
    """

    __slots__ = ("due", "fresh")

    def __init__(self) -> None:
        self.fresh = Runs()
        self.due = Timetable()

    def __len__(self) -> int:
        return len(self.fresh) + len(self.due)

    def in_order(self, published_ns: TimeOf) -> Iterator[int]:
        """Yield the seqs in the order of their delivery. Do not change the lane meanwhile."""
        return self._merged(published_ns) if self.due else iter(self.fresh)

    def head(self, published_ns: TimeOf) -> tuple[int, int] | None:
        """Return (due_ns, seq) of the next message."""
        first, due = self.fresh.first, self.due.first
        if first is None:
            return due
        fresh = (published_ns(first), first)
        return fresh if due is None else min(fresh, due)

    def _merged(self, published_ns: TimeOf) -> Iterator[int]:
        fresh = iter(self.fresh)
        seq = next(fresh, None)
        for due in self.due:
            while seq is not None and (published_ns(seq), seq) < due:
                yield seq
                seq = next(fresh, None)
            yield due[1]
        if seq is not None:
            yield seq
            yield from fresh


class Waiting:
    """All waiting messages of a group, by priority and due time."""

    __slots__ = (
        "_deliveries",
        "_oldest",
        "_promoted_ns",
        "delays",
        "fair",
        "lanes",
        "plain",
        "scheduled",
        "special",
        "timetable",
        "upcoming",
    )

    def __init__(self, deliveries: Mapping[int, Delivery], fair: FairShare | None = None) -> None:
        self._deliveries = deliveries
        self.fair = fair
        self.lanes = [Lane() for _ in range(MAX_PRIORITY + 1)]
        self.plain = self.lanes[DEFAULT_PRIORITY].fresh
        self.special = 0  # ready messages that are not in `plain`
        self.scheduled = 0
        self.timetable = Timetable()  # of scheduled messages
        self.delays = Delays()  # of delayed messages without a Delivery, scheduled or due
        self._oldest = _Oldest()
        self._promoted_ns = 0  # what is due by then is in the lanes
        self.upcoming = Upcoming()

    @property
    def ready(self) -> int:
        return len(self.plain) + self.special

    @property
    def first_fresh(self) -> int | None:
        """Return the lowest seq that is ready and was never leased."""
        if not self.special:
            return self.plain.first
        if self.fair is not None:
            return min(self.fair.lowest(1), default=None)
        return min((lane.fresh.first for lane in self.lanes if lane.fresh.first), default=None)

    # -- adding and taking -------------------------------------------------------------------------

    def add_plain(self, first: int, end: int) -> None:
        """Add messages [first, end) that were just published, of the default priority."""
        if self.fair is not None:
            self.fair.add_run(first, end)
            self.special += end - first
            return
        self.plain.add(first, end)
        if self.upcoming.seqs:
            self.upcoming.added(DEFAULT_PRIORITY, NEVER_NS, first)

    def add_fresh(self, priority: int, seq: int, *, is_new: bool) -> None:
        """Add a message that is due since it was published: just now, or earlier."""
        if self.fair is not None:
            self.fair.add(priority, seq)
            self.special += 1
            return
        self.lanes[priority].fresh.add(seq, seq + 1)
        if priority != DEFAULT_PRIORITY:
            self.special += 1
        if self.upcoming.seqs:
            self.upcoming.added(priority, NEVER_NS if is_new else 0, seq)

    def add_all_fresh(self, priority: int, seqs: Sequence[int]) -> None:
        """Add messages that were just published, rising. Only if `upcoming` is empty, and nothing
        is shared between tenants."""
        self.lanes[priority].fresh.extend(seqs)
        if priority != DEFAULT_PRIORITY:
            self.special += len(seqs)

    def add_delayed(self, seq: int, due_ns: int, priority: int) -> None:
        """Add a new message that is due later."""
        self.delays.add(seq, due_ns, priority)
        self.timetable.add(due_ns, seq)
        self.scheduled += 1

    def schedule(self, seq: int, delivery: Delivery, due_ns: int) -> None:
        """Add a message that has a Delivery: to its lane if it is due, else to the timetable."""
        delivery.due_ns = due_ns
        if self._oldest.is_kept:
            self._oldest.add(seq)
        if not due_ns:
            delivery.state = _READY
            self.add_fresh(delivery.priority, seq, is_new=False)
        elif due_ns <= self._promoted_ns:
            delivery.state = _READY
            self._add_due(due_ns, seq, delivery.priority)
        else:
            delivery.state = _SCHEDULED
            self.timetable.add(due_ns, seq)
            self.scheduled += 1

    def park(self, seq: int, delivery: Delivery) -> None:
        """Mark a message as parked behind another of its key."""
        delivery.state = _PARKED
        if self._oldest.is_kept:
            self._oldest.add(seq)

    def block(self, seq: int, delivery: Delivery) -> None:
        """Mark a message as blocked by others that it comes after."""
        delivery.state = State.BLOCKED
        if self._oldest.is_kept:
            self._oldest.add(seq)

    def unpark(self, seq: int, delivery: Delivery) -> None:
        """Add a parked message that is now the first of its key."""
        if (
            delivery.due_ns
            or delivery.priority != DEFAULT_PRIORITY
            or self.upcoming.seqs
            or self.fair is not None
        ):
            self.schedule(seq, delivery, delivery.due_ns)
        else:  # the same, in fewer steps
            delivery.state = _READY
            self.plain.add(seq, seq + 1)

    def promote(self, now_ns: int) -> None:
        """Move messages that are due to their lanes."""
        if now_ns > self._promoted_ns:
            self._promoted_ns = now_ns
        if self.timetable.next_ns > now_ns:
            return
        for due_ns, seq in self.timetable.pop_upto(now_ns):
            delivery = self._deliveries.get(seq)
            if delivery is not None:
                delivery.state, priority = State.READY, delivery.priority
            else:
                delay = self.delays.get(seq)
                assert delay is not None
                priority = delay[1]
            self._add_due(due_ns, seq, priority)
            self.scheduled -= 1

    def _add_due(self, due_ns: int, seq: int, priority: int) -> None:
        self.special += 1
        if self.fair is not None:
            self.fair.add_due(priority, due_ns, seq)
            return
        self.lanes[priority].due.add(due_ns, seq)
        if self.upcoming.seqs:
            self.upcoming.added(priority, due_ns, seq)

    def take(self, seq: int) -> tuple[int, int, bool] | None:
        """Remove a ready or scheduled message.

        Return its priority, its due time, and whether it was never delayed; None if it is not here.
        """
        delivery = self._deliveries.get(seq)
        if delivery is not None:
            is_taken = self.take_delivery(seq, delivery)
            return (delivery.priority, delivery.due_ns, False) if is_taken else None
        delay = self.take_delayed(seq)
        if delay is not None:
            due_ns, priority = delay
            return priority, due_ns, False
        if self.fair is not None:
            found = self.fair.priority_of(seq)
            return (found, 0, True) if found is not None and self.take_fresh(seq, found) else None
        for priority, lane in enumerate(self.lanes):
            if lane.fresh.first == seq:  # the usual case
                self.take_fresh(seq, priority)
                return priority, 0, True
        for priority in range(MAX_PRIORITY + 1) if self.special else [DEFAULT_PRIORITY]:
            if self.take_fresh(seq, priority):
                return priority, 0, True
        return None

    def take_fresh(self, seq: int, priority: int) -> bool:
        """Remove a message that has no Delivery and is due since it was published.

        Return False if there is no such message in the lane of that priority.
        """
        if self.fair is None:
            is_taken = self.lanes[priority].fresh.discard(seq, seq + 1) > 0
        else:
            is_taken = self.fair.discard(priority, seq)
        if not is_taken:
            return False
        seqs = self.upcoming.seqs
        if seqs and seqs.pop() != seq:
            self.upcoming.clear()
        if priority != DEFAULT_PRIORITY or self.fair is not None:
            self.special -= 1
        return True

    def take_delayed(self, seq: int) -> tuple[int, int] | None:
        """Remove a message that has no Delivery and was published with a delay.

        Return its due time and priority, or None if it is not here.
        """
        delay = self.delays.pop(seq)
        if delay is not None:
            seqs = self.upcoming.seqs
            if seqs and seqs.pop() != seq:
                self.upcoming.clear()
            due_ns, priority = delay
            self._take_due(due_ns, priority, seq)
        return delay

    def take_delivery(self, seq: int, delivery: Delivery) -> bool:
        """Remove a message that has a Delivery. Return False if it is not ready or scheduled."""
        if delivery.state is _READY:
            if self.upcoming.seqs:
                self.upcoming.taken(seq, seq + 1)
            priority = delivery.priority
            if self.fair is not None:
                if not delivery.due_ns:
                    self.special -= self.fair.discard(priority, seq)
                    return True
            elif not delivery.due_ns:
                self.lanes[priority].fresh.discard(seq, seq + 1)
                self.special -= priority != DEFAULT_PRIORITY
                return True
            elif self.lanes[priority].due.remove(delivery.due_ns, seq):
                self.special -= 1
                return True
        elif delivery.state is not _SCHEDULED:
            return False
        self._take_due(delivery.due_ns, delivery.priority, seq)
        return True

    def take_plain(self, first: int, end: int) -> None:
        """Remove a run of plain messages."""
        self.plain.discard(first, end)
        if self.upcoming.seqs:
            self.upcoming.taken(first, end)

    def _take_due(self, due_ns: int, priority: int, seq: int) -> None:
        if self.fair is None:
            is_ready = self.lanes[priority].due.remove(due_ns, seq)
        else:
            is_ready = self.fair.remove_due(priority, due_ns, seq)
        if is_ready:
            self.special -= 1
        elif self.timetable.remove(due_ns, seq):
            self.scheduled -= 1

    def take_below(self, target: int) -> tuple[int, list[int]]:
        """Remove ready and scheduled messages below a seq.

        Return the number of those that have neither a Delivery nor a delay, and the seqs of the
        others.
        """
        others = [seq for seq, _ in self.keyed_fresh() if seq < target]
        count = -len(others)
        self.upcoming.clear()
        if self.fair is not None:
            fresh, due = self.fair.pop_below(target)
            self.special -= len(fresh) + len(due)
            count += len(fresh)
            for seq in fresh:
                self.fair.leave(seq)
            others += due
        for lane in self.lanes:
            taken = lane.fresh.discard(0, target)
            count += taken
            due = lane.due.pop_below(target)
            self.special -= len(due) + (taken if lane.fresh is not self.plain else 0)
            others += due
        scheduled = self.timetable.pop_below(target)
        self.scheduled -= len(scheduled)
        self.delays.pop_below(target)
        return count, others + scheduled

    def restore(self, delays: Delays) -> None:
        """Fill in what follows from the runs, deliveries and delays of a snapshot."""
        self.delays = delays
        self.timetable = delays.timetable()
        fresh: list[list[int]] = [[] for _ in self.lanes]
        for seq, delivery in sorted(self._deliveries.items()):
            if delivery.state is State.SCHEDULED:
                if delivery.due_ns:
                    self.timetable.add(delivery.due_ns, seq)
                else:
                    delivery.state = State.READY
                    fresh[delivery.priority].append(seq)
        for lane, seqs in zip(self.lanes, fresh, strict=True):
            if seqs:
                lane.fresh.add_many(seqs)
        self.scheduled = len(self.timetable)
        self.special = sum(map(len, self.lanes)) - len(self.plain)

    def share(self, fair: FairShare) -> None:
        """After `restore`: share what is ready between tenants from now on."""
        self.fair = fair
        for priority, lane in enumerate(self.lanes):
            for seq in lane.fresh:
                fair.add(priority, seq)
        self.special += len(self.plain)
        for lane in self.lanes:
            lane.fresh.discard(0, NEVER_NS)

    # -- looking -----------------------------------------------------------------------------------

    def in_order(
        self,
        published_ns: TimeOf,
        due_ns: TimeOf,
        *,
        now_ns: int,
        level_ns: int,
        skipped: Container[int] = frozenset(),
    ) -> Iterator[int]:
        """Yield ready messages in the order of their delivery. Do not change them meanwhile.

        Of a queue that shares between tenants, only those that their limits let go now; those that
        the caller adds to `skipped` do not count for the limits.
        A message that waited `level_ns` is served one priority higher (0: strict priorities).
        """
        if self.fair is not None:
            return self.fair.in_order(
                published_ns, now_ns=now_ns, level_ns=level_ns, skipped=skipped
            )
        lanes = self._used_lanes()
        if len(lanes) > 1 and level_ns:
            aged = _Aged(self, lanes, published_ns, due_ns, now_ns, level_ns)
            return (seq for seq, _ in aged)
        return chain.from_iterable(
            self.lanes[priority].in_order(published_ns) for priority in reversed(lanes)
        )

    def since_ns(self, seq: int, due_ns: TimeOf) -> int:
        """Return since when a ready message has been ready."""
        delivery = self._deliveries.get(seq)
        return due_ns(seq) if delivery is None or not delivery.due_ns else delivery.due_ns

    def keyed_fresh(self) -> Iterator[tuple[int, int]]:
        """Yield (seq, priority) of messages in runs that have a Delivery."""
        for seq, delivery in self._deliveries.items():
            if delivery.state is _READY and not delivery.due_ns:
                yield seq, delivery.priority

    def find_upcoming(
        self, published_ns: TimeOf, due_ns: TimeOf, *, now_ns: int, level_ns: int
    ) -> None:
        """Fill `upcoming` with the next messages, more each time the list is used up."""
        if self.fair is not None:  # one: the lease of it decides whose turn is next
            seq = self.fair.next(published_ns, now_ns=now_ns, level_ns=level_ns)
            found = [] if seq is None else [seq]
            self.upcoming.fill(found, [], is_fresh=False, lowest_priority=0, until_ns=0)
            return
        count, lanes = self.upcoming.count, self._used_lanes()
        seqs: list[int] = []
        since_ns: list[int] = []
        lowest, until_ns, is_fresh = MAX_PRIORITY, NEVER_NS, False
        if len(lanes) > 1 and level_ns:
            aged = _Aged(self, lanes, published_ns, due_ns, now_ns, level_ns)
            lowest, until_ns, is_fresh = aged.fill(seqs, count)
        elif len(lanes) == 1:
            lowest = lanes[0]
            lane = self.lanes[lowest]
            if lane.fresh.first is None:  # their due times are at hand
                since_ns, seqs = lane.due.lowest(count)
            elif not lane.due:
                seqs, is_fresh = lane.fresh.lowest(count), True
            else:
                seqs += islice(lane.in_order(published_ns), count)
                since_ns = [self.since_ns(seq, due_ns) for seq in seqs]
        else:
            for lowest in reversed(lanes):
                seqs += islice(self.lanes[lowest].in_order(published_ns), count - len(seqs))
                if len(seqs) == count:
                    break
        self.upcoming.fill(
            seqs, since_ns, is_fresh=is_fresh, lowest_priority=lowest, until_ns=until_ns
        )

    def _used_lanes(self) -> list[int]:
        """Return the priorities that have ready messages, rising."""
        return [
            priority
            for priority, lane in enumerate(self.lanes)
            if lane.fresh.first is not None or lane.due.next_ns != NEVER_NS
        ]

    def state_of(self, seq: int, now_ns: int) -> State:
        """Return the state of a message that has no Delivery and is not leased."""
        if self.fair is not None and self.fair.priority_of(seq) is not None:
            return State.READY
        if seq in self.plain or (self.special and any(seq in lane.fresh for lane in self.lanes)):
            return State.READY
        delay = self.delays.get(seq)
        if delay is None:
            return State.DONE
        return State.READY if delay[0] <= now_ns else State.SCHEDULED

    def fresh_pairs(self) -> list[tuple[int, int]]:
        """Return ready messages that were never delayed as runs [first, end), in any order."""
        pairs = [] if self.fair is None else self.fair.fresh_pairs()
        return pairs + [pair for lane in self.lanes for pair in lane.fresh.pairs()]

    def due_seqs(self) -> list[int]:
        """Return ready messages that were delayed or retried."""
        pairs = [] if self.fair is None else self.fair.due_pairs()
        return [seq for _, seq in chain(pairs, *(lane.due for lane in self.lanes))]

    def next_due_ns(self) -> int | None:
        """Return when the next scheduled message is due."""
        next_ns = self.timetable.next_ns
        return None if next_ns == NEVER_NS else next_ns

    def oldest(self, count: int) -> list[int]:
        """Return the lowest waiting seqs, parked messages included."""
        seqs: list[int] = [] if self.fair is None else self.fair.lowest(count)
        for lane in self.lanes:
            seqs += islice(lane.fresh, count)
        seqs += islice(self.delays, count)
        seqs += self._oldest.lowest(count, self._deliveries)
        return sorted(set(seqs))[:count]


class _Aged:
    """Ready messages of several lanes, as (seq, priority), the next first.

    A message that waited `level_ns` counts as one priority higher.
    """

    def __init__(
        self,
        waiting: Waiting,
        lanes: Sequence[int],
        published_ns: TimeOf,
        due_ns: TimeOf,
        now_ns: int,
        level_ns: int,
    ) -> None:
        self._until_ns = NEVER_NS
        self._waiting, self._due_ns = waiting, due_ns
        self._now_ns, self._level_ns = now_ns, level_ns
        self._heads: list[tuple[tuple[int, int, int], int, Iterator[int]]] = []
        for priority in lanes:
            self._push_head(priority, waiting.lanes[priority].in_order(published_ns))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        heads = self._heads
        while heads:
            (_, _, negative), seq, seqs = heappop(heads)
            self._push_head(-negative, seqs)
            yield seq, -negative

    def fill(self, found: list[int], count: int) -> tuple[int, int, bool]:
        """Append the next seqs.

        Return their lowest priority, when the order may change, and whether all are of one lane
        and due since they were published.
        """
        (_, _, negative), seq, seqs = self._heads[0]
        run = [seq, *islice(seqs, count - 1)]
        self._heads[0] = (self._heads[0][0], seq, chain(run[1:], seqs))
        others = self._heads[1:]
        highest = max(-head[0] for head, _, _ in others)
        level = -negative  # at least
        if highest >= level:
            level = self._level(level, self._waiting.since_ns(run[-1], self._due_ns))
        if highest < level:
            # All of one lane: its youngest goes before the oldest of every other lane.
            found += run
            rises = [head[1] + (level + head[2]) * self._level_ns for head, _, _ in others]
            return -negative, min(rises), not self._waiting.lanes[-negative].due
        lowest = MAX_PRIORITY
        for seq, priority in islice(self, count):
            found.append(seq)
            lowest = min(lowest, priority)
        return lowest, self._until_ns, False

    def _level(self, priority: int, since_ns: int) -> int:
        levels = max(self._now_ns - since_ns, 0) // self._level_ns
        return min(priority + levels, MAX_PRIORITY)

    def _push_head(self, priority: int, seqs: Iterator[int]) -> None:
        seq = next(seqs, None)
        if seq is None:
            return
        since_ns, level_ns = self._waiting.since_ns(seq, self._due_ns), self._level_ns
        level = self._level(priority, since_ns)
        if level < MAX_PRIORITY:  # when it rises by a level, the order may change
            self._until_ns = min(self._until_ns, since_ns + (level - priority + 1) * level_ns)
        heappush(self._heads, ((-level, since_ns, -priority), seq, seqs))


class _Oldest:
    """A heap of the waiting seqs that have a Delivery. It may hold stale and repeated seqs.

    Nothing is kept before the first call of `lowest`: only a queue that drops its oldest needs it.
    """

    __slots__ = ("_heap", "is_kept")

    def __init__(self) -> None:
        self._heap: list[int] | None = None
        self.is_kept = False

    def add(self, seq: int) -> None:
        if self._heap is not None:
            heappush(self._heap, seq)

    def lowest(self, count: int, deliveries: Mapping[int, Delivery]) -> list[int]:
        """Return up to `count` of the lowest waiting seqs, rising."""
        heap = self._heap
        if heap is None or len(heap) > 2 * len(deliveries) + _SPARE:
            heap = [seq for seq, one in deliveries.items() if one.state in WAITING_STATES]
            self._heap, self.is_kept = heap, True
            heapify(heap)
        found: list[int] = []
        while heap and len(found) < count:
            seq = heappop(heap)
            delivery = deliveries.get(seq)
            waits = delivery is not None and delivery.state in WAITING_STATES
            if waits and (not found or seq != found[-1]):
                found.append(seq)
        for seq in found:  # the caller may leave them waiting
            heappush(heap, seq)
        return found
