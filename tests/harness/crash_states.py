"""The states that a crash can leave, built from a journal.

Two kinds of crash. Process death (kill -9) keeps everything that was executed; the last write may
be torn. Power loss keeps what was synced, and of the rest whatever it likes. After either a state
can be recorded in its turn, so a crash during recovery, and power loss after process death, are
crashes of the same kind: `state.recorded()` gives files that go on where the crash left off.

Every state has a name which tells how to make it again: the same life, point and number give the
same state in every run.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations
from random import Random
from typing import Any, Literal

from penstock.ledger.memory_files import BLOCK_BYTES, MemoryFiles
from tests.harness.disk import Disk, PowerCut, Sync, SyncDirectory, Write
from tests.harness.journal import CRASH_ROOM_BYTES, Journal, Mark, RecordedFiles
from tests.harness.power_cuts import SECTOR_BYTES, Aged, Only, Shredded, UpTo, Whole

# Up to so many pending changes every subset of them is built; beyond, subsets are drawn.
EXHAUSTIVE_CHANGES = 3

_LENGTH_FIELD_BYTES = 4  # what a mapped append stores last


class CrashState:
    """What is left, and what had been answered.

    What is left is worked out when it is first asked for: many more states are named than opened.
    """

    __slots__ = ("_before", "_disk", "_last", "cause", "marks", "name")

    def __init__(
        self,
        name: str,
        cause: Literal["kill", "power"],
        marks: tuple[Any, ...],
        before: Disk,
        last: PowerCut | Write | None = None,
    ) -> None:
        self.name = name
        self.cause = cause
        self.marks = marks  # the values marked before the crash
        self._before = before
        self._last = last  # what happened to `before`: a power cut, or a write that was torn
        self._disk: Disk | None = None

    @property
    def disk(self) -> Disk:
        if self._disk is None:
            if self._last is None:
                self._disk = self._before
            elif isinstance(self._last, Write):
                self._disk = self._before.copy()
                self._disk.apply(self._last)
            else:
                self._disk = self._before.after(self._last)
        return self._disk

    def files(self) -> MemoryFiles:
        """Fresh files in this state."""
        return MemoryFiles(self.disk.cached(), mapped_room_bytes=CRASH_ROOM_BYTES, seed="crashed")

    def recorded(self, *also: Any) -> RecordedFiles:
        """Fresh files in this state that record what recovery does, for it to crash again.

        The marks made so far, and `also`, stand before those of the new life.
        """
        return RecordedFiles(self.disk.copy(), marks=(*self.marks, *also))


def crash_states(
    journal: Journal, *, life: str, cuts: int = 4, tears: int = 3, seed: int = 0
) -> Iterator[CrashState]:
    """The states of a crash after every step: process death, then power loss.

    `cuts` and `tears` say how many states are drawn for a point where there are more than can
    be enumerated.
    """
    for point in points(journal):
        yield from kills(point, life=life, tears=tears, seed=seed)
        yield from power_losses(point, life=life, cuts=cuts, seed=seed)


@dataclass(frozen=True, slots=True)
class Point:
    """The moment after a step of the journal."""

    number: int  # how many steps were done
    step: Any  # the last of them
    before: Disk
    disk: Disk
    marks: tuple[Any, ...]


def points(journal: Journal) -> Iterator[Point]:
    """Every moment of a journal at which a crash could leave something new.

    A sync only takes choices away from a crash, so the moment after it says nothing that the
    moment before, or the next mark, does not say.
    """
    disk = journal.start.copy()
    marks = journal.marks
    yield Point(0, None, disk, disk, marks)
    for number, step in enumerate(journal.steps, start=1):
        before = disk
        if isinstance(step, Mark):
            marks = (*marks, step.value)
        else:
            disk = disk.copy()
            disk.apply(step)
        if not isinstance(step, Sync | SyncDirectory):
            yield Point(number, step, before, disk, marks)


def last_point(journal: Journal) -> Point:
    """The moment after all of it."""
    made = (step.value for step in journal.steps if isinstance(step, Mark))
    disk = journal.end()
    return Point(len(journal.steps), None, disk, disk, (*journal.marks, *made))


def kills(point: Point, *, life: str, tears: int = 3, seed: int = 0) -> Iterator[CrashState]:
    """The process dies: everything is there, but the last write may not be complete."""
    name = f"{life} @{point.number} kill"
    yield CrashState(name, "kill", point.marks, point.disk)
    if isinstance(point.step, Write):
        random = Random(f"{seed}/{name}")
        for number, torn in enumerate(torn_writes(point.step, tears, random)):
            yield CrashState(f"{name} torn {number}", "kill", point.marks, point.before, torn)


def torn_writes(write: Write, count: int, random: Random) -> Iterator[Write]:
    """First parts of a write; a mapped append may also lack only its first bytes."""
    size = len(write.data)
    if size <= count:
        ends = list(range(1, size))
    else:
        ends = sorted(random.sample(range(1, size), count))
    for end in ends:
        if write.mapped and end > _LENGTH_FIELD_BYTES and random.random() < 0.7:
            start = _LENGTH_FIELD_BYTES
            yield Write(write.number, write.offset + start, write.data[start:end], mapped=True)
        else:
            yield Write(write.number, write.offset, write.data[:end], mapped=write.mapped)


def power_losses(point: Point, *, life: str, cuts: int = 4, seed: int = 0) -> Iterator[CrashState]:
    """The power fails: what was not synced is there or not, as the disk likes."""
    name = f"{life} @{point.number} power"
    for kind, cut in _cuts(point, name, cuts, seed):
        yield CrashState(f"{name} {kind}", "power", point.marks, point.disk, cut)


def _cuts(point: Point, name: str, cuts: int, seed: int) -> Iterator[tuple[str, PowerCut]]:
    yield "nothing kept", Whole(names=False, content_too=False)
    pending = point.disk.pending_steps()
    if not pending:
        return
    if len(pending) <= EXHAUSTIVE_CHANGES:
        sizes = range(1, len(pending) + 1)
        for steps in chain.from_iterable(combinations(pending, size) for size in sizes):
            yield f"kept {','.join(map(str, steps))}", Only(frozenset(steps))
    else:
        yield "names kept", Whole(names=True, content_too=False)
        yield "content kept", Whole(names=False, content_too=True)
        yield "all kept", Whole(names=True, content_too=True)
        yield "newest kept", Only(frozenset(pending[-1:]))
    for number in range(cuts):
        random = Random(f"{seed}/{name}/{number}")
        match random.randrange(5):
            case 0:
                yield f"aged pages #{number}", Aged(random, BLOCK_BYTES)
            case 1:
                yield f"aged sectors #{number}", Aged(random, SECTOR_BYTES)
            case 2:
                yield f"shredded #{number}", Shredded(random)
            case 3:
                kept = frozenset(step for step in pending if random.random() < 0.5)
                yield f"some kept #{number}", Only(kept)
            case _:
                step = random.choice(pending)
                yield f"in order to {step} #{number}", UpTo(step, random.random())
