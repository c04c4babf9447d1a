"""The messages of one group that wait: ready, scheduled, or parked behind others of their key.

A plain message that waits is part of a run in a packed array. Only messages that were leased,
retried or keyed have an object of their own (a `Delivery`). Pure: no file, no clock, no lock.
"""

from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from penstock.codec.layout import DEFAULT_PRIORITY, MAX_PRIORITY
from penstock.queue.delivery import WAITING_STATES, Delivery, State
from penstock.queue.runs import Runs
from penstock.queue.schedule import NEVER_NS, Delays, Timetable

TimeOf = Callable[[int], int]  # seq -> nanoseconds
_SPARE = 1024


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
        "delays",
        "lanes",
        "plain",
        "scheduled",
        "special",
        "timetable",
    )

    def __init__(self, deliveries: Mapping[int, Delivery]) -> None:
        self._deliveries = deliveries
        self.lanes = [Lane() for _ in range(MAX_PRIORITY + 1)]
        self.plain = self.lanes[DEFAULT_PRIORITY].fresh
        self.special = 0  # ready messages that are not in `plain`
        self.scheduled = 0
        self.timetable = Timetable()  # of scheduled messages
        self.delays = Delays()  # of delayed messages without a Delivery, scheduled or due
        self._oldest = _Oldest()

    @property
    def ready(self) -> int:
        return len(self.plain) + self.special

    @property
    def first_fresh(self) -> int | None:
        """Return the lowest seq that is ready and was never leased."""
        return min((lane.fresh.first for lane in self.lanes if lane.fresh.first), default=None)

    # -- adding and taking -------------------------------------------------------------------------

    def add_fresh(self, priority: int, seq: int) -> None:
        """Add a message that is due since it was published."""
        self.lanes[priority].fresh.add(seq, seq + 1)
        self.special += priority != DEFAULT_PRIORITY

    def add_delayed(self, seq: int, due_ns: int, priority: int) -> None:
        """Add a new message that is due later."""
        self.delays.add(seq, due_ns, priority)
        self.timetable.add(due_ns, seq)
        self.scheduled += 1

    def schedule(self, seq: int, delivery: Delivery, due_ns: int) -> None:
        """Add a message that has a Delivery. `promote` moves it to its lane, now or later."""
        delivery.state, delivery.due_ns = State.SCHEDULED, due_ns
        self._oldest.add(seq)
        self.timetable.add(due_ns, seq)
        self.scheduled += 1

    def park(self, seq: int, delivery: Delivery) -> None:
        """Mark a message as parked behind another of its key."""
        delivery.state = State.PARKED
        self._oldest.add(seq)

    def promote(self, now_ns: int) -> None:
        """Move messages that are due to their lanes."""
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
            self.lanes[priority].due.add(due_ns, seq)
            self.scheduled -= 1
            self.special += 1

    def take(self, seq: int) -> tuple[int, int, bool] | None:
        """Remove a ready or scheduled message.

        Return its priority, its due time, and whether it was never delayed; None if it is not here.
        """
        delivery = self._deliveries.get(seq)
        if delivery is not None:
            if delivery.state not in (State.READY, State.SCHEDULED):
                return None
            self._take_due(delivery.due_ns, delivery.priority, seq)
            return delivery.priority, delivery.due_ns, False
        if self.plain.discard(seq, seq + 1):
            return DEFAULT_PRIORITY, 0, True
        delay = self.delays.pop(seq)
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
        if self.timetable.remove(due_ns, seq):
            self.scheduled -= 1
        elif self.lanes[priority].due.remove(due_ns, seq):
            self.special -= 1

    def take_below(self, target: int) -> tuple[int, list[int]]:
        """Remove ready and scheduled messages below a seq.

        Return the number of those that were never delayed, and the seqs of the others.
        """
        count, others = 0, []
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
        for seq, delivery in sorted(self._deliveries.items()):
            if delivery.state is State.SCHEDULED:
                self.timetable.add(delivery.due_ns, seq)
        self.scheduled = len(self.timetable)
        self.special = sum(map(len, self.lanes)) - len(self.plain)

    # -- looking -----------------------------------------------------------------------------------

    def in_order(
        self, published_ns: TimeOf, due_ns: TimeOf, *, now_ns: int, level_ns: int
    ) -> Iterator[int]:
        """Yield ready messages in the order of their delivery. Do not change them meanwhile.

        A message that waited `level_ns` is served one priority higher (0: strict priorities).
        """
        lanes = [priority for priority, lane in enumerate(self.lanes) if len(lane)]
        if len(lanes) > 1 and level_ns:
            return self._aged(lanes, published_ns, due_ns, now_ns, level_ns)
        return chain.from_iterable(
            self.lanes[priority].in_order(published_ns) for priority in reversed(lanes)
        )

    def _aged(
        self,
        lanes: Sequence[int],
        published_ns: TimeOf,
        due_ns: TimeOf,
        now_ns: int,
        level_ns: int,
    ) -> Iterator[int]:
        heads: list[tuple[tuple[int, int, int], int, Iterator[int]]] = []

        def push_head(priority: int, seqs: Iterator[int]) -> None:
            seq = next(seqs, None)
            if seq is not None:
                delivery = self._deliveries.get(seq)
                since_ns = due_ns(seq) if delivery is None else delivery.due_ns
                level = min(priority + max(now_ns - since_ns, 0) // level_ns, MAX_PRIORITY)
                heappush(heads, ((-level, since_ns, -priority), seq, seqs))

        for priority in lanes:
            push_head(priority, self.lanes[priority].in_order(published_ns))
        while heads:
            (_, _, negative), seq, seqs = heappop(heads)
            yield seq
            push_head(-negative, seqs)

    def state_of(self, seq: int, now_ns: int) -> State:
        """Return the state of a message that has no Delivery and is not leased."""
        if any(seq in lane.fresh for lane in self.lanes):
            return State.READY
        delay = self.delays.get(seq)
        if delay is None:
            return State.DONE
        return State.READY if delay[0] <= now_ns else State.SCHEDULED

    def next_due_ns(self) -> int | None:
        """Return when the next scheduled message is due."""
        next_ns = self.timetable.next_ns
        return None if next_ns == NEVER_NS else next_ns

    def oldest(self, count: int) -> list[int]:
        """Return the lowest waiting seqs, parked messages included."""
        seqs: list[int] = []
        for lane in self.lanes:
            seqs += islice(lane.fresh, count)
        seqs += islice(self.delays, count)
        seqs += self._oldest.lowest(count, self._deliveries)
        return sorted(seqs)[:count]


class _Oldest:
    """A heap of the waiting seqs that have a Delivery. It may hold stale and repeated seqs.

    Nothing is kept before the first call of `lowest`: only a queue that drops its oldest needs it.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] | None = None

    def add(self, seq: int) -> None:
        if self._heap is not None:
            heappush(self._heap, seq)

    def lowest(self, count: int, deliveries: Mapping[int, Delivery]) -> list[int]:
        """Return up to `count` of the lowest waiting seqs, rising."""
        heap = self._heap
        if heap is None or len(heap) > 2 * len(deliveries) + _SPARE:
            heap = [seq for seq, one in deliveries.items() if one.state in WAITING_STATES]
            self._heap = heap
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


class KeyOrder:
    """The unsettled messages of each key. One at a time is delivered, in seq order.

    The first message of a key is being worked on, or has the lowest seq. So it does not matter
    whether later ones are published yet, as live, or known already, as at recovery.

    >>> keys = KeyOrder()
    >>> keys.join(b"k", 1), keys.join(b"k", 2), keys.join(b"k", 3)
    (True, False, False)
    >>> keys.ahead(b"k", 3), keys.leave(b"k", 1), keys.leave(b"k", 3)
    ([1, 2], 2, None)
    """

    __slots__ = ("_seqs",)

    def __init__(self) -> None:
        self._seqs: dict[bytes, deque[int]] = {}

    def __len__(self) -> int:
        return len(self._seqs)

    def join(self, key: bytes, seq: int) -> bool:
        """Add a message behind the first. Return True if there is no other of its key."""
        seqs = self._seqs.get(key)
        if seqs is None:
            self._seqs[key] = deque([seq])
            return True
        if seq > seqs[-1] or len(seqs) == 1:
            seqs.append(seq)
        else:
            seqs.insert(bisect(seqs, seq, 1), seq)
        return False

    def leave(self, key: bytes, seq: int) -> int | None:
        """Remove a message. Return the next of its key if the first was removed."""
        seqs = self._seqs.get(key)
        if seqs is None:
            return None
        if seqs[0] != seq:
            try:
                seqs.remove(seq)
            except ValueError:
                pass  # a dead letter, which is not in the order
            return None
        seqs.popleft()
        if seqs:
            return seqs[0]
        del self._seqs[key]
        return None

    def first_behind(self, key: bytes) -> int | None:
        """Return the first message of a key if the second has a lower seq."""
        seqs = self._seqs.get(key)
        if seqs is None or len(seqs) == 1 or seqs[0] < seqs[1]:
            return None
        return seqs[0]

    def ahead(self, key: bytes, seq: int) -> list[int]:
        """Return the messages of a key that are delivered before one of them."""
        seqs = self._seqs[key]
        return list(islice(seqs, seqs.index(seq)))
