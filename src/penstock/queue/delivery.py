"""What a group remembers of messages that are leased, keyed, retried, delayed or dead."""

from collections.abc import Mapping
from enum import IntEnum
from heapq import heapify, heappop, heappush

_SPARE_ENDS = 1024


class State(IntEnum):
    """The states of a message in a group; `docs/states.md` draws them."""

    READY = 1
    SCHEDULED = 2  # due later: delayed, or backing off
    LEASED = 3
    PARKED = 4  # an earlier message of its key is not settled
    DEAD = 5
    DONE = 6
    EXPIRED = 7
    CANCELLED = 8
    BLOCKED = 9  # a message that it comes after is not done


WAITING_STATES = (State.READY, State.SCHEDULED, State.PARKED, State.BLOCKED)


class Delivery:
    """The delivery state of one message: its attempts, failures and key."""

    __slots__ = (
        "attempt",
        "cause",
        "due_ns",
        "expires_at_ns",
        "first_failure_ns",
        "key",
        "last_failure_ns",
        "nonce",
        "priority",
        "reason",
        "size_bytes",
        "state",
        "timed_out",
    )

    def __init__(self, state: State, priority: int, due_ns: int, key: bytes | None = None) -> None:
        self.state = state
        self.priority = priority
        # Its position in its lane, now or when it waits again. 0: due since it was published, so it
        # is among the `fresh` ones of its lane.
        self.due_ns = due_ns
        self.key = key
        self.expires_at_ns = 0  # of a message with a key and a time to live
        self.attempt = 0  # deliveries so far
        self.nonce = 0  # of the newest lease
        self.timed_out = False  # the newest lease ran out: a late ack may still count
        self.first_failure_ns = 0
        self.last_failure_ns = 0
        self.reason = ""
        self.size_bytes = 0  # in the log; known of dead letters if a setting bounds their size
        self.cause = 0  # of death (events.Cause); a leased dead letter keeps it

    @property
    def is_retried(self) -> bool:
        """Return whether it failed before and is not dead."""
        return self.first_failure_ns > 0 and not self.cause


class Lease:
    """One lease, shared by the messages that were leased together."""

    __slots__ = (
        "attempt",
        "deadline_ns",
        "ends_mono_ns",
        "holder",
        "length_ns",
        "nonce",
        "priority",
        "seqs",
    )

    def __init__(
        self,
        attempt: int,
        nonce: int,
        deadline_ns: int,
        length_ns: int,
        ends_mono_ns: int,
        holder: str,
        priority: int,
        seqs: "list[int]",
    ) -> None:
        self.attempt = attempt
        self.nonce = nonce
        self.deadline_ns = deadline_ns
        self.length_ns = length_ns
        self.ends_mono_ns = ends_mono_ns  # the deadline on the monotonic clock
        self.holder = holder
        self.priority = priority
        self.seqs = seqs  # as leased; `Group.leases` says which are still held


class LeaseEnds:
    """When leases end: a heap, from which settled leases are removed late."""

    __slots__ = ("_leases", "_number", "heap")

    def __init__(self, leases: Mapping[int, Lease]) -> None:
        self._leases = leases
        self._number = 0
        self.heap: list[tuple[int, int, Lease]] = []

    def add(self, lease: Lease) -> None:
        heap = self.heap
        if len(heap) > 2 * len(self._leases) + _SPARE_ENDS:
            # Most leases were settled long before their end: keep the others.
            heap[:] = [end for end in heap if self._is_held(end[2])]
            heapify(heap)
        self._number += 1
        heappush(heap, (lease.ends_mono_ns, self._number, lease))

    def next_ns(self) -> int | None:
        """Return when the next lease ends, on the monotonic clock."""
        heap = self.heap
        while heap and not self._is_held(heap[0][2]):
            heappop(heap)
        return heap[0][0] if heap else None

    def overdue(self, mono_ns: int) -> list[tuple[int, Lease]]:
        """Return (seq, lease) of the messages whose lease has ended, first end first."""
        heap, held = self.heap, []
        while heap and heap[0][0] <= mono_ns:
            end = heappop(heap)
            if self._is_held(end[2]):
                held.append(end)
        for end in held:  # they stay until the event of their end is applied
            heappush(heap, end)
        leases = self._leases
        return [(seq, end[2]) for end in held for seq in end[2].seqs if leases.get(seq) is end[2]]

    def are_more_overdue(self, most: int, mono_ns: int) -> bool:
        """Return whether the ended leases have more than `most` messages.

        Look only at items that have ended: in a heap, no item ends before its parent.
        """
        heap, count, indexes = self.heap, 0, [0]
        while indexes:
            at = indexes.pop()
            if at < len(heap) and heap[at][0] <= mono_ns:
                if self._is_held(heap[at][2]):
                    count += len(heap[at][2].seqs)
                    if count > most:
                        return True
                indexes += (2 * at + 1, 2 * at + 2)
        return False

    def rebase(self, now_ns: int, mono_ns: int) -> None:
        """After a restart: end each lease at its stored deadline, at most its length from now."""
        self.heap.clear()
        for lease in dict.fromkeys(self._leases.values()):
            left_ns = max(min(lease.deadline_ns - now_ns, lease.length_ns), 0)
            lease.ends_mono_ns = mono_ns + left_ns
            self.add(lease)

    def _is_held(self, lease: Lease) -> bool:
        leases = self._leases
        if len(lease.seqs) == 1:  # the usual case, without a generator
            return leases.get(lease.seqs[0]) is lease
        return any(leases.get(seq) is lease for seq in lease.seqs)
