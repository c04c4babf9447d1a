"""Lives of a whole queue over recorded files, each answer marked in their journal.

What a mark says is the state that the queue had when it answered, as the bytes of its snapshot.
After a crash the state must be that, or the one after the next answer: nothing in between. After a
power cut, the state before may have left out seqs: an event survived the messages of its call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from penstock.clock import ManualClock
from penstock.ledger.files import Files
from penstock.model import LeasedMessage
from penstock.operations import Schedule
from penstock.queue import NewMessage, Queue
from penstock.queue.queue import open_core
from penstock.queue.snapshot import dump_state
from penstock.queue.state import QueueState
from tests.harness.journal import RecordedFiles

PATH = "/queue"
SETTINGS = {
    "sync": "always",
    "segment_bytes": 700,
    "min_free_bytes": 0,
    "auto_compact": False,
    "max_attempts": 2,
    "snapshot_every": 25,
}

LIMITS = {"fair": True, "tenant_max_in_flight": 2, "tenant_rate_per_s": 0.5, "tenant_burst": 4}


def settings_of(seed: str) -> dict[str, Any]:
    """The settings of a life: those whose seed says so have limits."""
    return {**SETTINGS, **LIMITS} if seed.startswith("limited") else SETTINGS


class Standing(NamedTuple):
    """The next seq of a queue, and the rest of its state as the bytes of a snapshot."""

    next_seq: int
    rest: bytes


@dataclass(frozen=True)
class Answered:
    """The states of a life so far, and the one it was in when it gave its newest answer."""

    states: list[Standing]  # goes on growing after the mark is made
    number: int

    def allows(self, found: Standing, *, power_failed: bool) -> bool:
        """Return whether a crash before the next answer may leave this state."""
        allowed = self.states[self.number : self.number + 2]
        if found in allowed:
            return True
        # The logs are synced one after the other. If an event is left of a call, and the messages
        # that were written with it are not, the call did not happen, and their seqs stay unused.
        before, after = allowed[0], allowed[-1]
        is_before = found.rest == before.rest
        return power_failed and is_before and before.next_seq < found.next_seq <= after.next_seq


def open_queue_in(
    files: Files, clock: ManualClock | None = None, seed: str = "", **settings: Any
) -> Queue:
    core = open_core(
        PATH,
        {**settings_of(seed), **settings},
        files=files,
        clock=clock or ManualClock(),
        on_dirty=lambda: None,
        own_timer=False,
    )
    return Queue(core)


def state_of(queue: Queue) -> Standing:
    core = queue.core
    with core.lock:
        core.catch_up()
        next_seq = core.state.ingested_upto
        assert {group.fed_upto for group in core.state.groups.values()} == {next_seq}
        _place_at(core.state, 0)
        rest = dump_state(core.state)
        _place_at(core.state, next_seq)
        return Standing(next_seq, rest)


def _place_at(state: QueueState, next_seq: int) -> None:
    state.ingested_upto = next_seq
    for group in state.groups.values():
        group.fed_upto = next_seq


class QueueLife:
    """A queue that is told what to do by a seed."""

    def __init__(self, recorded: RecordedFiles, seed: str) -> None:
        self.recorded = recorded
        self._seed = seed
        self.random = Random(seed)
        self.clock = ManualClock()
        self.states: list[Standing] = []
        self.leased: list[LeasedMessage] = []
        self.ids: list[str] = []
        self._open()

    def _open(self) -> None:
        self.queue = open_queue_in(self.recorded, self.clock, self._seed)
        self.queue.core.firing.admit = self._ticked
        self._answered()

    def _ticked(self) -> None:
        """In the middle of a tick, after leases have ended and before schedules fire."""
        self.queue.sync()
        self._answered()

    def live(self, steps: int) -> None:
        actions = [*self._publishing(), *self._working(), *self._operating()]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            ((_, act),) = self.random.choices(actions, weights)
            act()
        self._tick()  # the last one may have let schedules fire, and made no call

    def _do(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """One call, answered and marked. What time alone brings about is a call of its own."""
        self._tick()
        answer = act(*args, **options)
        self._answered()
        return answer

    def _tick(self) -> None:
        self.queue.stats()  # lets leases end
        self.queue.sync()
        self._answered()

    def _answered(self) -> None:
        self.states.append(state_of(self.queue))
        self.recorded.mark(Answered(self.states, len(self.states) - 1))

    # -- what it can do ----------------------------------------------------------------------------

    def _publishing(self) -> list[tuple[int, Callable[[], None]]]:
        def plain() -> None:
            self.ids.append(self._do(self.queue.enqueue, b"plain"))

        def one() -> None:
            self.ids += [p.id for p in self._do(self.queue.publish, [self._new()])]

        def batch() -> None:
            new = [self._new() for _ in range(self.random.randint(2, 4))]
            self.ids += [p.id for p in self._do(self.queue.publish, new)]

        return [(2, plain), (2, one), (3, batch)]

    def _new(self) -> NewMessage:
        choose = self.random.choice
        return NewMessage(
            payload=b"." * choose((0, 10, 100)),
            priority=choose((None, 0, 9)),
            delay=choose((None, None, 1, 50)),
            key=choose((None, "a", "b")),
            dedup_id=choose((None, None, "x", "y")),
            max_attempts=choose((None, 1)),
            after=[choose(self.ids[-8:])] if self.ids and self.random.random() < 0.3 else None,
            tenant=(None, "acme", "acme", "bolt")[len(self.ids) % 4],
        )

    def _working(self) -> list[tuple[int, Callable[[], None]]]:
        def lease() -> None:
            self.leased += self._do(
                self.queue.lease, self.random.randint(1, 3), group=self._group()
            )

        def dequeue() -> None:
            self._do(self.queue.dequeue, group=self._group())

        def settle() -> None:
            self._tick()
            held = [one for one in self.leased if self._is_held(one)]
            if not held:
                return
            one = self.random.choice(held)
            self.random.choice(
                (
                    lambda: self._do(self.queue.ack, one),
                    lambda: self._do(self.queue.ack, one, emit=[self._new(), b"follow-up"]),
                    lambda: self._do(self.queue.nack, one, "it failed"),
                    lambda: self._do(self.queue.nack, held[-2:], "both failed"),
                    lambda: self._do(self.queue.extend, one, 60),
                    lambda: self._do(self.queue.release, one),
                )
            )()

        return [(4, lease), (1, dequeue), (6, settle)]

    def _is_held(self, one: LeasedMessage) -> bool:
        group = self.queue.core.state.groups.get(one.ticket.group)
        lease = group.leases.get(one.seq) if group else None
        return lease is not None and lease.nonce == one.ticket.nonce

    def _operating(self) -> list[tuple[int, Callable[[], None]]]:
        def operate() -> None:
            queue, group = self.queue, self._group()
            seq = self.random.randint(1, queue.stats().next_seq)
            self.random.choice(
                (
                    lambda: self._do(queue.redrive, group=group),
                    lambda: self._do(queue.discard, limit=1, group=group),
                    lambda: self._do(queue.lease_dead, group=group),
                    lambda: self._do(queue.cancel, self._some_id()),
                    lambda: self._do(queue.purge, group=group),
                    lambda: self._do(queue.seek, seq=seq, group=group),
                    lambda: self._do(queue.groups.create, "audit"),
                    lambda: self._do(queue.groups.create, "late", to="end"),
                    lambda: self._do(queue.groups.delete, group) if group != "main" else None,
                    lambda: self._do(queue.pause),
                    lambda: self._do(queue.resume),
                    lambda: self._do(queue.resume),
                )
            )()

        def schedule() -> None:
            queue, name = self.queue, self.random.choice("ab")
            every_s = self.random.choice((1, 30))
            self.random.choice(
                (
                    lambda: self._do(queue.put_schedule, Schedule(name, b"tick", every_s=every_s)),
                    lambda: self._do(queue.put_schedule, Schedule(name, b"t", every_s=every_s)),
                    lambda: self._do(queue.remove_schedule, name),
                    lambda: self._if_scheduled(queue.pause_schedule, name),
                    lambda: self._if_scheduled(queue.resume_schedule, name),
                )
            )()

        def compact() -> None:
            self._do(self.queue.compact)
            self.ids = [message.id for message in self.queue.browse()]

        def reopen() -> None:
            self.queue.close()
            self._open()

        def time_passes() -> None:
            self.clock.advance(self.random.choice((0.1, 1, 40)))

        return [(4, operate), (2, schedule), (1, compact), (1, reopen), (3, time_passes)]

    def _if_scheduled(self, act: Callable[..., Any], name: str) -> None:
        self._tick()
        if self.queue.core.state.schedules.get(name) is not None:
            self._do(act, name)

    def _group(self) -> str:
        names: list[str] = ["main", *self.queue.groups]
        return self.random.choice(names)

    def _some_id(self) -> str:
        if not self.ids:
            self.ids += [self._do(self.queue.enqueue, b"")]
        return self.random.choice(self.ids)
