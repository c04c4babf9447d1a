"""One call of a queue, interrupted at one point; and what may have become of the queue.

The reference is the queue itself: a life in which the call was never made, and one in which it was
made and answered. An interrupted life must equal one of them, in every field of the state: at once,
after going on with the same handle, and after closing and opening it again. And the state in memory
must be what another process folds from the logs, without any snapshot.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.clock import ManualClock
from penstock.errors import PenstockError
from penstock.ledger.memory_files import Image, MemoryFiles
from penstock.ledger.segment_header import COMPACTED
from penstock.queue import NewMessage, Queue
from penstock.queue.core import QueueCore
from penstock.queue.fold import fold
from penstock.queue.queue import open_core
from penstock.queue.state import QueueState
from tests.harness.interrupts import Interrupter

PATH = "/queue"
SETTINGS: dict[str, Any] = {
    "segment_bytes": 700,
    "min_free_bytes": 0,
    "auto_compact": False,
    "max_attempts": 2,
    "backoff_jitter": 0.0,
    "dedup_window_s": 1000,
    "lease_s": 60,
    "sync_interval_s": 3600,
}
Verb = Callable[[Queue, "Scene"], Any]


class Scene(NamedTuple):
    """A queue's files as they were when it was closed, and what is known about it."""

    image: Image
    wall_s: float
    settings: dict[str, Any]
    receipts: list[str]
    ids: list[str]


def new(payload: bytes, **options: Any) -> NewMessage:
    return NewMessage(payload=payload, **options)


# Every verb; each is one call, so that it happens or does not.
VERBS: dict[str, Verb] = {
    "enqueue": lambda q, _: q.enqueue(b"plain"),
    "enqueue_large": lambda q, _: q.enqueue(b"large" * 200),  # needs a new segment
    "enqueue_batch": lambda q, _: q.enqueue_batch([b"one", b"two" * 100, b"three" * 100]),
    "publish_delayed": lambda q, _: q.enqueue(b"later", delay=30),
    "publish_keyed": lambda q, _: q.publish([new(b"k", key="a"), new(b"l", key="b")]),
    "publish_options": lambda q, _: q.publish(
        [new(b"p", priority=9), new(b"ttl", ttl=5), new(b"plain" * 90), new(b"d", dedup_id="n")]
    ),
    "publish_duplicate": lambda q, _: q.publish([new(b"d", dedup_id="x")]),
    "publish_mixed": lambda q, _: q.publish([new(b"d", dedup_id="x"), new(b"e", dedup_id="y")]),
    "publish_after": lambda q, s: q.publish(
        [new(b"f", after=[s.ids[3], s.ids[9]]), new(b"g", after=[0], priority=7)]
    ),
    "dequeue": lambda q, _: q.dequeue(),
    "dequeue_batch": lambda q, _: q.dequeue_batch(3),
    "lease": lambda q, _: q.lease(),
    "lease_many": lambda q, _: q.lease(6, lease_s=30, holder="me"),
    "lease_group": lambda q, _: q.lease(3, group="audit"),
    "lease_waiting": lambda q, _: q.lease(1, wait_s=5, group="audit"),
    "lease_dead": lambda q, _: q.lease_dead(),
    "ack": lambda q, s: q.ack(s.receipts[0]),
    "ack_many": lambda q, s: q.ack(s.receipts),
    "ack_emit": lambda q, s: q.ack(s.receipts[0], emit=[b"next", new(b"then", key="a")]),
    "nack": lambda q, s: q.nack(s.receipts[0], "failed"),
    "nack_many": lambda q, s: q.nack(s.receipts, "failed", delay=3),
    "extend": lambda q, s: q.extend(s.receipts, 500),
    "release": lambda q, s: q.release(s.receipts),
    "redrive": lambda q, _: q.redrive(),
    "discard": lambda q, _: q.discard(),
    "seek": lambda q, _: q.seek("beginning"),
    "seek_seq": lambda q, _: q.seek(seq=5, group="audit"),
    "purge": lambda q, _: q.purge(),
    "cancel": lambda q, s: q.cancel(s.ids[3]),
    "create_group": lambda q, _: q.groups.create("late"),
    "delete_group": lambda q, _: q.groups.delete("audit"),
    "pause": lambda q, _: q.pause(),
    "resume": lambda q, _: q.resume(),
    "compact": lambda q, _: q.compact(),
    "sync": lambda q, _: q.sync(),
    "stats": lambda q, _: q.stats(),
    "peek": lambda q, _: q.peek(5),
    "browse": lambda q, _: list(q.browse()),
    "why": lambda q, s: q.why(s.ids[2]),
    "dead": lambda q, _: list(q.dead()),
    "close": lambda q, _: q.close(),
}


def make_scene(sync: str, **settings: Any) -> Scene:
    """A queue with a message in every state, and segments and snapshots behind it."""
    files, clock = MemoryFiles(mapped_room_bytes=1 << 16, seed="7"), ManualClock()
    chosen = {**SETTINGS, "sync": sync, **settings}
    queue = Queue(open_core(PATH, chosen, files=files, clock=clock))
    ids = queue.enqueue_batch([b"%d" % n for n in range(6)])
    for _ in range(3):
        queue.dequeue()
    queue.groups.create("audit")
    ids += [one.id for one in queue.publish([new(b"k%d" % n, key="a") for n in range(3)])]
    ids.append(queue.enqueue(b"dead", max_attempts=1, priority=9))
    queue.nack(queue.lease(), "broken")
    ids.append(queue.enqueue(b"once", dedup_id="x"))
    ids += queue.enqueue_batch([b"more" * 20] * 8)
    ids.append(queue.enqueue(b"later", delay=1))
    ids.append(queue.enqueue(b"blocked", after=[ids[3], ids[-1]]))
    ids.append(queue.enqueue(b"blocked too", after=[ids[-1]], after_failed="run", key="a"))
    ids += [queue.enqueue(b"acme", tenant=tenant) for tenant in ("acme", "acme", "bolt")]
    clock.advance(0.5)
    receipts = [job.receipt for job in queue.lease(3)]
    queue.close()
    return Scene(files.image(), clock.now_ns() / 1e9, chosen, receipts, ids)


class Life:
    """A queue opened at a scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.files = MemoryFiles(scene.image, mapped_room_bytes=1 << 16)
        self.clock = ManualClock(now_s=scene.wall_s)
        self.queue = self._open()
        self.clock.advance(0.7)  # something has become due

    def _open(self) -> Queue:
        return Queue(open_core(PATH, self.scene.settings, files=self.files, clock=self.clock))

    def facts(self) -> dict[str, Any]:
        """What the open queue holds; it must be what the logs say, without any snapshot."""
        core = self.queue.core
        with core.lock, core.change:
            core.catch_up()
            facts = facts_of(core.state)
            state = fold_from_the_start(core)
            state.rebase(*core.clock.read())
            folded = facts_of(state)
        assert folded == facts, difference(folded, facts)
        return facts

    def go_on(self) -> list[Any]:
        """Use the same handle for all kinds of things; the answers."""
        queue = self.queue
        answers: list[Any] = [queue.enqueue(b"after"), queue.enqueue(b"after", key="a")]
        answers.append([one.duplicate for one in queue.publish([new(b"x", dedup_id="x")])])
        queue.resume()
        jobs = queue.lease(3)
        answers.append([(job.id, job.attempt) for job in jobs])
        for job in jobs:
            queue.nack(job, "again", delay=0)
        answers.append([letter.id for letter in queue.dead()])
        queue.redrive()
        if one := queue.lease():
            queue.ack(one, emit=[b"emitted"])
        taken = queue.dequeue()
        answers += [taken and taken.id, [message.id for message in queue.peek(20)]]
        return answers

    def reopen(self) -> None:
        self.queue.close()
        self.queue = self._open()

    def whole_story(self) -> list[Any]:
        """What can be seen of a life after its call: now, later, and after another opening."""
        if self.queue.core.ledger.refusal:  # the call was `close`
            self.reopen()
        story = [self.facts(), self.go_on()]
        self.reopen()
        story.append(self.facts())
        self.queue.close()
        return story


class References(NamedTuple):
    """The two lives that an interrupted one may equal, and at how many points to interrupt it."""

    points: int
    stories: list[list[Any]]


def references(scene: Scene, verb: Verb) -> References:
    stories = []
    life = Life(scene)
    stories.append(life.whole_story())
    counting = Interrupter(None)
    life = Life(scene)
    counting.run(lambda: verb(life.queue, scene))
    stories.append(life.whole_story())
    return References(counting.points, stories)


def interrupt_at(scene: Scene, verb: Verb, at: int, expected: References) -> bool:
    """Live a life whose call is interrupted at a point; False if it ended before that."""
    life = Life(scene)
    interrupter = Interrupter(at)
    try:
        interrupter.run(lambda: verb(life.queue, scene))
    except KeyboardInterrupt:
        pass
    except RuntimeError as error:  # so answers a condition of Python's own, as it starts a thread
        assert isinstance(error.__context__, KeyboardInterrupt)
    if not interrupter.where:
        life.queue.close()
        return False
    try:
        story = life.whole_story()
    except (AssertionError, PenstockError, RuntimeError) as error:
        raise AssertionError(f"interrupted at {interrupter.where} (point {at}): {error}") from error
    assert story in expected.stories, (
        f"interrupted at {interrupter.where} (point {at}): "
        f"{[difference(one, story) for one in expected.stories]}"
    )
    return True


def fold_from_the_start(core: QueueCore) -> QueueState:
    """Return the fold of the whole log if it is all there, or else from the newest snapshot on.

    Messages are removed by what the newest snapshot knows: leases of theirs between an older one
    and the newest would not be counted.
    """
    ledger, load = core.ledger, core.ledger.load_snapshot
    segments = [*ledger.events.segments.all, *ledger.messages.segments.all]
    whole = ledger.events.first_seq == ledger.messages.first_seq == 1
    if any(segment.header.flags & COMPACTED for segment in segments):
        whole = False
    start = 0 if whole else ledger.snapshot_seqs()[-1]
    ledger.load_snapshot = lambda: ledger.read_snapshot(start) if start else None  # type: ignore[method-assign]
    try:
        return fold(ledger, dedup_entries=core.settings.dedup_entries, limits=core.limits)
    finally:
        ledger.load_snapshot = load  # type: ignore[method-assign]


def facts_of(state: QueueState) -> dict[str, Any]:
    """All fields of a state, but for nonces, which are random."""
    return {
        "ingested_upto": state.ingested_upto,
        "next_group": state.next_group,
        "paused": state.paused,
        "dedup": state.dedup.items(),
        "deduplicated": state.deduplicated,
        "groups": {number: _group_facts(group) for number, group in state.groups.items()},
    }


def _group_facts(group: Any) -> dict[str, Any]:
    # Due or scheduled: when a message becomes the one is chance, so they are taken together.
    queued = group.waiting
    fair, gate = group.fair, group.gate
    waiting = sorted([*queued.timetable, *(pair for lane in queued.lanes for pair in lane.due)])
    waiting = sorted([*waiting, *(fair.due_pairs() if fair else ())])
    return {
        "name": group.name,
        "totals": list(group.totals),
        "fresh": [list(lane.fresh.pairs()) for lane in queued.lanes],
        "waiting": waiting,
        "counts": (queued.scheduled + queued.special, group.parked, len(queued.plain)),
        "delays": [(seq, queued.delays.get(seq)) for seq in queued.delays],
        "dead": list(group.dead),
        "deliveries": {
            seq: tuple(
                0 if name == "state" and delivery.state in (1, 2) else getattr(delivery, name)
                for name in delivery.__slots__
                if name != "nonce"
            )
            for seq, delivery in sorted(group.deliveries.items())
        },
        "leases": {
            seq: (lease.attempt, lease.deadline_ns, lease.length_ns, lease.holder, lease.priority)
            for seq, lease in sorted(group.leases.items())
        },
        "gone": {kind: list(runs.pairs()) for kind, runs in group.gone.runs.items() if runs},
        "blocked": group.blocked,
        "gate": gate and (gate.in_flight, gate.due_ns),
        "fair": fair
        and (
            fair.dump(),
            fair.freeze_column()(),
            [fair.freeze_fresh(priority, set())[0]() for priority in range(10)],
            [fair.tenant_of(seq).gate.in_flight for seq in sorted(group.leases)],
        ),
        # Those that wait no more stay in the lists until the earlier one ends, or a snapshot.
        "dependents": [
            (earlier, left)
            for earlier, later in sorted(group.dependents.items())
            if (left := sorted(seq for seq in later if seq in group.dependencies.waits))
        ],
        "waits": [
            (seq, *(getattr(wait, name) for name in wait.__slots__))
            for seq, wait in sorted(group.dependencies.waits.items())
        ],
    }


def difference(expected: Any, found: Any, path: str = "") -> str:
    """Where two stories differ first."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *found]:
            if expected.get(key) != found.get(key):
                return difference(expected.get(key), found.get(key), f"{path}.{key}")
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            if one != other:
                return difference(one, other, f"{path}[{number}]")
    return f"{path}: {expected!r} is {found!r}"
