"""A tenant, its ready messages of each priority, and their place in the order of turns.

Pure: no file, no clock, no lock.
"""

from collections.abc import Callable, Iterator
from heapq import merge

from penstock.model import NS
from penstock.queue.limits import Gate
from penstock.queue.schedule import Timetable
from penstock.queue.tenants import Seqs

TimeOf = Callable[[int], int]  # seq -> nanoseconds
HEAD_START_NS = 5 * NS  # of a message whose tenant was not served lately


class Tenant:
    """A tenant that has messages, or had some lately."""

    __slots__ = ("count", "gate", "is_delayed", "name", "number", "turns")

    def __init__(self, number: int, name: bytes, gate: Gate) -> None:
        self.number = number
        self.name = name
        self.gate = gate
        self.count = 0  # messages that are not settled
        self.turns: dict[int, Turn] = {}  # by priority
        self.is_delayed = False  # is among those that wait for the rate

    def __str__(self) -> str:
        return f"tenant {self.name.decode()!r}" if self.name else "no tenant"


class Turn:
    """The ready messages of one tenant at one priority, and when one was last served."""

    __slots__ = (
        "due",
        "entry",
        "fresh",
        "is_covered",
        "priority",
        "served_no",
        "served_ns",
        "tenant",
    )

    def __init__(self, tenant: Tenant, priority: int) -> None:
        self.tenant = tenant
        self.priority = priority
        self.fresh = Seqs()  # never delayed: due when they were published
        self.due = Timetable()  # all others
        self.served_ns = 0
        self.served_no = 0  # tells services at the same time apart
        self.entry: Entry | None = None  # in the heap of its priority
        self.is_covered = False  # its messages were ready when it was last served

    def __len__(self) -> int:
        return len(self.fresh) + len(self.due)

    def ahead(self, published_ns: TimeOf, *, is_timed: bool) -> Iterator[tuple[int, int]]:
        """Yield (since when it is ready, seq), in order. The time is 0 if it is not asked for."""
        if not self.due:
            if is_timed:
                return ((published_ns(seq), seq) for seq in self.fresh)
            return ((0, seq) for seq in self.fresh)
        if self.fresh.first is None:
            return iter(self.due)
        return merge(((published_ns(seq), seq) for seq in self.fresh), self.due)


# Its place in the order, number of its last service, seq of its next message, itself, and since
# when it waits for its turn.
Entry = tuple[int, int, int, Turn, int]


def rotated(since_ns: int, served_ns: int, served_no: int, seq: int, turn: Turn) -> Entry:
    """Return the entry of a turn whose next message has been ready since a time."""
    place_ns = max(since_ns - HEAD_START_NS, served_ns)
    return place_ns, served_no, seq, turn, max(since_ns, served_ns)
