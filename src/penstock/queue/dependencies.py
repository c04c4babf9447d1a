"""Which messages come after which, and what that means for them.

A message with `after` is blocked until all messages that it names are done. If one of them fails,
it is to die, and so are those that come after it; if that one is redriven, they are to return.
Neither happens here: `decisions.decide_dependents` makes events of it. Pure: no file, no clock, no
lock.

Every pair of messages is stored once, under the earlier one, and is removed when that one is
settled. So a workflow of n messages costs n steps, whatever its shape.
"""

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from penstock.queue.after import After
from penstock.queue.delivery import Delivery, State
from penstock.queue.events import Cause, EventType, Outcome
from penstock.queue.runs import Runs

Earlier = int | bytes  # a seq of the own queue, or the id of a message of another
MOST_GONE = 65_536  # runs of failed messages that are remembered, of each kind
# How a message is said to have failed, by the event.
HOW = {
    EventType.DEAD: "dead",
    EventType.EXPIRED: "expired",
    EventType.CANCELLED: "cancelled",
    EventType.DISCARDED: "discarded",
    EventType.DROPPED: "dropped",
    EventType.LOST: "lost",
    EventType.PURGED: "purged",
}
_ABOVE_ALL = 1 << 63


class Failure(NamedTuple):
    """Which message failed, and how."""

    of: Earlier
    how: str


class Wait:
    """What one message waits for. Kept while the message is blocked, or dead because of it."""

    __slots__ = (
        "dead",
        "failure",
        "gate",
        "is_abandoned",
        "is_lost",
        "missing",
        "published_ns",
        "runs_anyway",
    )

    def __init__(self, published_ns: int, *, runs_anyway: bool) -> None:
        self.missing = 0  # messages before it that are not done, dead ones included
        self.dead = 0  # of these, the dead ones
        self.is_lost = False  # one of them will never be done
        self.failure: Failure | None = None  # the last one, until it died of it
        self.gate: Earlier | None = None  # of those before it, a gate that is closed
        self.is_abandoned = False  # the gate will never be opened
        self.runs_anyway = runs_anyway
        self.published_ns = published_ns

    @property
    def is_doomed(self) -> bool:
        """Return whether it cannot run, unless a dead message before it is redriven.

        That is not decided while a gate is closed.
        """
        return (self.dead > 0 or self.is_lost) and not self.runs_anyway and self.gate is None


class Dependencies:
    """The messages of a group that wait for others."""

    __slots__ = ("dead", "dead_elsewhere", "dependents", "elsewhere", "touched", "waits")

    def __init__(self) -> None:
        self.waits: dict[int, Wait] = {}
        self.dependents: dict[int, list[int]] = {}  # earlier message -> those that come after it
        self.elsewhere: dict[bytes, list[int]] = {}  # the same, for messages of other queues
        self.dead: set[int] = set()  # earlier messages that are dead
        self.dead_elsewhere: set[tuple[bytes, int]] = set()  # (earlier, later)
        self.touched: set[int] = set()  # messages about which there may be something to decide

    # -- adding ------------------------------------------------------------------------------------

    def add(
        self,
        seq: int,
        after: After,
        published_ns: int,
        *,
        unsettled: Iterable[int],
        dead: Container[int],
        gone: Iterable[Failure],
    ) -> bool:
        """Add a message. Return whether it has to wait.

        Of those before it in its own queue, these are `unsettled` (and `dead`), or `gone`.
        """
        wait = Wait(published_ns, runs_anyway=after.runs_anyway)
        gate = after.gate_of()
        for earlier in unsettled:
            if earlier == gate:
                wait.gate = gate
            if earlier in dead:
                self.dead.add(earlier)
                wait.dead += 1
                wait.failure = Failure(earlier, HOW[EventType.DEAD])
            self.dependents.setdefault(earlier, []).append(seq)
            wait.missing += 1
        if isinstance(gate, bytes):
            wait.gate = gate
        for earlier_id in after.elsewhere:
            self.elsewhere.setdefault(earlier_id, []).append(seq)
            wait.missing += 1
        for failure in gone:
            if failure.of == gate:
                wait.gate, wait.is_abandoned = gate, True
            elif not after.runs_anyway:
                wait.is_lost, wait.failure = True, failure
        if not wait.missing and not wait.is_lost and not wait.is_abandoned:
            return False
        self.waits[seq] = wait
        if wait.dead or wait.is_lost or wait.is_abandoned:
            self.touched.add(seq)
        return True

    # -- what happens to the messages before -------------------------------------------------------

    def done(self, earlier: int) -> list[int]:
        """Note that a message is done. Return those that wait for no other now."""
        was_dead = earlier in self.dead
        self.dead.discard(earlier)
        return [
            seq
            for seq in self.dependents.pop(earlier, ())
            if self._is_free(seq, earlier, was_dead=was_dead)
        ]

    def gone(self, earlier: int, how: str) -> list[int]:
        """Note that a message will never be done. Return those that run all the same, now."""
        was_dead = earlier in self.dead
        self.dead.discard(earlier)
        failure = Failure(earlier, how)
        return [
            seq
            for seq in self.dependents.pop(earlier, ())
            if self._is_free(seq, earlier, was_dead=was_dead, failure=failure)
        ]

    def died(self, earlier: int) -> None:
        """Note a dead letter, which may be redriven."""
        later = self.dependents.get(earlier)
        if later is None or earlier in self.dead:
            return
        self.dead.add(earlier)
        failure = Failure(earlier, HOW[EventType.DEAD])
        for seq in later:
            self._hit(seq, failure)

    def redriven(self, earlier: int) -> None:
        """Note that a dead letter waits again."""
        if earlier not in self.dead:
            return
        self.dead.discard(earlier)
        for seq in self.dependents.get(earlier, ()):
            self._spare(seq)

    def resolved(
        self, earlier: bytes, seqs: Iterable[int], outcome: Outcome, how: str
    ) -> list[int]:
        """Note what became of a message of another queue, for some of those that come after it.

        Return those that wait for no other now, or run all the same.
        """
        later = set(self.elsewhere.get(earlier, ()))
        free: list[int] = []
        for seq in seqs:
            if seq not in later:
                continue
            pair = (earlier, seq)
            was_dead = pair in self.dead_elsewhere
            if outcome is Outcome.WAITING:
                if was_dead:
                    self.dead_elsewhere.discard(pair)
                    self._spare(seq)
            elif outcome is Outcome.DEAD:
                if not was_dead:
                    self.dead_elsewhere.add(pair)
                    self._hit(seq, Failure(earlier, how))
            else:
                later.discard(seq)
                self.dead_elsewhere.discard(pair)
                failure = Failure(earlier, how) if outcome is Outcome.GONE else None
                if self._is_free(seq, earlier, was_dead=was_dead, failure=failure):
                    free.append(seq)
        if later:
            self.elsewhere[earlier] = sorted(later)
        else:
            self.elsewhere.pop(earlier, None)
        return free

    def unaware(self, earlier: bytes, outcome: Outcome) -> list[int]:
        """Return the messages for which this outcome of a message of another queue is new."""
        later = self.elsewhere.get(earlier, [])
        if outcome in (Outcome.DEAD, Outcome.WAITING):
            is_dead = outcome is Outcome.DEAD
            return [seq for seq in later if ((earlier, seq) in self.dead_elsewhere) != is_dead]
        return later

    def _is_free(
        self, seq: int, earlier: Earlier, *, was_dead: bool, failure: Failure | None = None
    ) -> bool:
        """Count off a message before this one. Return whether this one waits for no other now."""
        wait = self.waits.get(seq)
        if wait is None:
            return False
        wait.missing -= 1
        wait.dead -= was_dead
        if wait.gate is not None and wait.gate == earlier:
            if failure is not None:
                wait.is_abandoned = True
                self.touched.add(seq)
                return False
            wait.gate = None
        elif failure is not None and not wait.runs_anyway:
            wait.is_lost, wait.failure = True, failure
        self._clear_failure(wait)
        if was_dead or wait.dead or wait.is_lost:
            self.touched.add(seq)
        return not wait.missing and not wait.is_lost

    def _hit(self, seq: int, failure: Failure) -> None:
        """Count a dead message before this one."""
        wait = self.waits.get(seq)
        if wait is not None:
            wait.dead += 1
            wait.failure = failure
            self.touched.add(seq)

    def _spare(self, seq: int) -> None:
        """Count off a dead message before this one, which waits again."""
        wait = self.waits.get(seq)
        if wait is not None:
            wait.dead -= 1
            self._clear_failure(wait)
            self.touched.add(seq)

    def _clear_failure(self, wait: Wait) -> None:
        if not wait.dead and not wait.is_lost:
            wait.failure = None

    def keep(self, kept: Container[int]) -> "Dependencies":
        """Return what is left if only these messages, all dead, are left of the group."""
        left = Dependencies()
        for earlier, later in self.dependents.items():
            if earlier not in kept:
                continue
            for seq in later:
                wait = self.waits.get(seq)
                if seq in kept and wait is not None:
                    left.dependents.setdefault(earlier, []).append(seq)
                    left.dead.add(earlier)
                    own = left.waits.setdefault(seq, Wait(wait.published_ns, runs_anyway=False))
                    own.missing += 1
                    own.dead += 1
                    own.is_lost, own.failure = wait.is_lost, wait.failure
        return left

    # -- what there is to decide -------------------------------------------------------------------

    def doomed(self, deliveries: Mapping[int, Delivery]) -> dict[Failure, list[int]]:
        """Return the blocked messages that are to die, by what failed first."""
        found: dict[Failure, list[int]] = {}
        seen: set[int] = set()
        for first in sorted(self.touched):
            wait = self.waits.get(first)
            if wait is None or not wait.is_doomed or not _is_blocked(deliveries, first):
                continue
            failure = wait.failure or self._dead_before(first)
            todo = [first]
            while todo:
                seq = todo.pop()
                if seq in seen:
                    continue
                seen.add(seq)
                found.setdefault(failure, []).append(seq)
                for later in self.dependents.get(seq, ()):
                    its_wait = self.waits.get(later)
                    if (
                        its_wait
                        and not its_wait.runs_anyway
                        and its_wait.gate is None
                        and _is_blocked(deliveries, later)
                    ):
                        todo.append(later)
        return found

    def abandoned(self, deliveries: Mapping[int, Delivery]) -> list[int]:
        """Return the blocked messages whose gate will never be opened."""
        return [
            seq
            for seq in sorted(self.touched)
            if (wait := self.waits.get(seq)) is not None
            and wait.is_abandoned
            and _is_blocked(deliveries, seq)
        ]

    def _dead_before(self, seq: int) -> Failure:
        """Return the dead message because of which one dies again: it alone was redriven."""
        found: list[Earlier] = [
            one for one in sorted(self.dead) if seq in self.dependents.get(one, ())
        ]
        found += [one for one, later in sorted(self.dead_elsewhere) if later == seq]
        return Failure(found[0], HOW[EventType.DEAD])

    def running_anyway(self, deliveries: Mapping[int, Delivery]) -> list[int]:
        """Return the blocked messages that run although all that they wait for is dead."""
        return [
            seq
            for seq in sorted(self.touched)
            if (wait := self.waits.get(seq)) is not None
            and wait.runs_anyway
            and wait.missing == wait.dead
            and _is_blocked(deliveries, seq)
        ]

    def returning(self, deliveries: Mapping[int, Delivery]) -> list[int]:
        """Return the messages that died because of others, and may be redriven."""
        found: list[int] = []
        dead_before: dict[int, int] = {}  # what is left of `Wait.dead`
        todo = sorted(self.touched)
        seen: set[int] = set()
        while todo:
            seq = todo.pop()
            wait, delivery = self.waits.get(seq), deliveries.get(seq)
            if (
                seq in seen
                or wait is None
                or delivery is None
                or delivery.state is not State.DEAD
                or delivery.cause != Cause.DEPENDENCY
                or wait.is_lost
                or dead_before.get(seq, wait.dead)
            ):
                continue
            seen.add(seq)
            found.append(seq)
            for later in self.dependents.get(seq, ()):
                its_wait = self.waits.get(later)
                if its_wait is not None and seq in self.dead:
                    dead_before[later] = dead_before.get(later, its_wait.dead) - 1
                    todo.append(later)
        return found


def _is_blocked(deliveries: Mapping[int, Delivery], seq: int) -> bool:
    delivery = deliveries.get(seq)
    return delivery is not None and delivery.state is State.BLOCKED


class Gone:
    """The messages of a group that will never be done, and how that came, for those that come
    after them later. Of each kind the newest are remembered; an older one counts as done."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: dict[EventType, Runs] = {}

    def add(self, kind: EventType, first: int, end: int) -> None:
        """Add messages [first, end)."""
        for other in self.runs.values():
            other.discard(first, end)
        runs = self.runs.setdefault(kind, Runs())
        runs.add(first, end)
        while runs.count_runs() > MOST_GONE and runs.first is not None:
            runs.discard(runs.first, runs.front_end)

    def how(self, seq: int) -> str | None:
        """Return how a message ended; None if it is not known to be gone."""
        for kind, runs in self.runs.items():
            if seq in runs:
                return HOW[kind]
        return None

    def may_have_forgotten(self, seq: int) -> bool:
        """Return whether a message is older than those that are remembered of some kind."""
        return any(
            runs.first is not None and seq < runs.first and runs.count_runs() >= MOST_GONE
            for runs in self.runs.values()
        )

    def forget_from(self, seq: int) -> None:
        """Forget the messages from a seq on: they are delivered again."""
        for runs in self.runs.values():
            runs.discard(seq, _ABOVE_ALL)
