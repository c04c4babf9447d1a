"""What is remembered of messages that do not simply wait in the order they came."""

from enum import IntEnum


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


class Lease:
    """A handing-out, until a deadline; shared by the messages that were handed out together."""

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
        self.seqs = seqs  # those that were given with it; `Group.leases` says which still are


class Flight:
    """A message that has a history or a key: retried, delayed and leased, keyed, or dead."""

    __slots__ = (
        "attempt",
        "cause",
        "due_ns",
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
        self.due_ns = due_ns  # where it stands in its lane, or will
        self.key = key
        self.attempt = 0  # deliveries so far
        self.nonce = 0  # of the newest lease
        self.timed_out = False  # the newest lease ran out: a late ack may still count
        self.first_failure_ns = 0
        self.last_failure_ns = 0
        self.reason = ""
        self.size_bytes = 0  # in the log; known of dead letters, where they are bounded by size
        self.cause = 0  # of being dead (events.Cause); a dead letter that is leased keeps it

    @property
    def is_retried(self) -> bool:
        """Did it fail, and is not given up?"""
        return self.first_failure_ns > 0 and not self.cause
