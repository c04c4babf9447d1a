"""The table `state`: messages, and where each stands in a consumer group.

The state of a queue is the fold of its logs. The driver folds once, as a reader beside the writer
would, and sends each task what concerns its range: waiting messages as runs, and the few that have
a history one by one. What is in neither is done.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.codec import Columns
from penstock.queue.delivery import State
from penstock.queue.group import Group
from penstock.queue.queue import open_core
from penstock.spark.http_files import files_of
from penstock.spark.message_columns import MessageColumns
from penstock.spark.places import QueueAt
from penstock.spark.segments import QueueFacts

_TIME = pa.timestamp("us", tz="UTC")
_MICROSECOND_NS = 1000


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one message stands that is not simply waiting or done."""

    state: str
    attempts: int = 0
    reason: str | None = None
    due_ns: int = 0
    until_ns: int = 0
    holder: str | None = None
    first_failure_ns: int = 0
    last_failure_ns: int = 0


@dataclass(frozen=True, slots=True)
class QueueStates:
    """What a group says of a range of messages."""

    group: str
    now_ns: int
    ready: Sequence[tuple[int, int]]  # runs [first, end), rising
    standings: dict[int, Standing]

    def within(self, first_seq: int, end_seq: int) -> "QueueStates":
        """The part that concerns some seqs."""
        ready = [
            (max(first, first_seq), min(end, end_seq))
            for first, end in self.ready
            if first < end_seq and end > first_seq
        ]
        standings = {s: it for s, it in self.standings.items() if first_seq <= s < end_seq}
        return QueueStates(self.group, self.now_ns, ready, standings)

    def of(self, seq: int) -> Standing:
        standing = self.standings.get(seq)
        if standing is not None:
            return standing
        at = bisect_left(self.ready, (seq + 1,)) - 1
        if at >= 0 and seq < self.ready[at][1]:
            return _READY
        return _DONE


_READY, _DONE = Standing("ready"), Standing("done", attempts=-1)


def fold_states(queue: QueueAt, group_name: str) -> tuple[QueueStates, int]:
    """The state of a group now, and the seq up to which the messages are known."""
    core = open_core(
        queue.path,
        {"on_corruption": "quarantine"},
        files=files_of(queue),
        read_only=True,
        create=False,
    )
    try:
        with core.lock, core.change:
            core.catch_up()
            group = core.group(group_name)
            now_ns = core.clock.now_ns()
            group.waiting.promote(now_ns)
            ready = sorted(pair for lane in group.waiting.lanes for pair in lane.fresh.pairs())
            standings = _standings(group, now_ns)
            return QueueStates(group_name, now_ns, ready, standings), core.state.ingested_upto
    finally:
        core.close()


def _standings(group: Group, now_ns: int) -> dict[int, Standing]:
    found: dict[int, Standing] = {}
    for seq in group.waiting.delays:
        due_ns, _ = group.waiting.delays.get(seq) or (0, 0)
        found[seq] = Standing("ready" if due_ns <= now_ns else "scheduled", due_ns=due_ns)
    for seq, delivery in group.deliveries.items():
        due = delivery.state in (State.READY, State.SCHEDULED)
        ready = due and delivery.due_ns <= now_ns
        found[seq] = Standing(
            "ready" if ready else delivery.state.name.lower(),
            delivery.attempt,
            delivery.reason or None,
            delivery.due_ns if due else 0,
            first_failure_ns=delivery.first_failure_ns,
            last_failure_ns=delivery.last_failure_ns,
        )
    for seq, lease in group.leases.items():
        before = found.get(seq, _READY)
        found[seq] = Standing(
            "leased",
            lease.attempt,
            before.reason,
            0,
            lease.deadline_ns,
            lease.holder or None,
            before.first_failure_ns,
            before.last_failure_ns,
        )
    return found


class StateColumns:
    """Messages with where they stand."""

    def __init__(
        self,
        facts: QueueFacts,
        segment: int,
        names: Sequence[str],
        states: QueueStates,
        *,
        unpack: bool,
    ) -> None:
        self._names = names
        self._states = states
        own = [name for name in names if name not in _MAKERS]
        self._messages = MessageColumns(facts, segment, own, unpack=unpack)
        self._own = own
        self.needed = [*dict.fromkeys([*self._messages.needed, "expires_at_ns"])]

    def arrays(self, found: Columns) -> list[pa.Array]:
        plain = dict(zip(self._own, self._messages.arrays(found), strict=True))
        standings = self._standings(found)
        return [
            plain[name] if name in plain else _MAKERS[name](self._states, standings)
            for name in self._names
        ]

    def _standings(self, found: Columns) -> list[Standing]:
        """With what is over by itself: nobody has written an event of its expiry yet."""
        expires = memoryview(found.buffers["expires_at_ns"]).cast("q")
        standings = []
        for seq, expires_ns in zip(
            memoryview(found.buffers["seq"]).cast("q"), expires, strict=True
        ):
            standing = self._states.of(seq)
            if 0 < expires_ns <= self._states.now_ns and standing.state in _EXPIRE:
                standing = Standing("expired", standing.attempts, standing.reason)
            standings.append(standing)
        return standings


_EXPIRE = frozenset(["ready", "scheduled", "parked"])


def _texts(standings: Sequence[Standing], name: str) -> pa.Array:
    return pa.array([getattr(standing, name) for standing in standings], pa.string())


def _times(standings: Sequence[Standing], name: str) -> pa.Array:
    values: list[int | None] = [
        getattr(standing, name) // _MICROSECOND_NS or None for standing in standings
    ]
    return pa.array(values, pa.int64()).view(_TIME)


def _attempts(standings: Sequence[Standing]) -> pa.Array:
    """Of what is done, nobody remembers the attempts but the events."""
    values = [None if s.attempts < 0 else s.attempts for s in standings]
    return pa.array(values, pa.int32())


_MAKERS: dict[str, Callable[[QueueStates, Sequence[Standing]], Any]] = {
    "group": lambda states, rows: pa.repeat(states.group, len(rows)),
    "state": lambda _, rows: _texts(rows, "state"),
    "attempts": lambda _, rows: _attempts(rows),
    "reason": lambda _, rows: _texts(rows, "reason"),
    "due_at": lambda _, rows: _times(rows, "due_ns"),
    "leased_until": lambda _, rows: _times(rows, "until_ns"),
    "holder": lambda _, rows: _texts(rows, "holder"),
    "first_failure": lambda _, rows: _times(rows, "first_failure_ns"),
    "last_failure": lambda _, rows: _times(rows, "last_failure_ns"),
}
