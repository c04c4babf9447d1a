"""Lives over a real ledger, crashed everywhere, once and again, each state opened and judged."""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from random import Random
from typing import Any

from penstock.codec import Draft
from penstock.ledger.files import Files
from penstock.ledger.memory_files import Image, MemoryFiles
from penstock.ledger.settings import LedgerSettings
from tests.harness.crash_states import CrashState, crash_states
from tests.harness.journal import CRASH_ROOM_BYTES, RecordedFiles
from tests.harness.ledger_life import LedgerLife, open_ledger
from tests.harness.ledger_lives import Plot, go_on
from tests.harness.ledger_oracle import (
    Observed,
    Opened,
    PowerFailed,
    Promise,
    check,
    contents_of,
    observe,
)

Wrap = Callable[[Files], Files]

FIRST_CRASHES_SHARE = 0.55  # of the budget; the rest goes to crashes after a crash
SECOND_CRASHES = 5  # states drawn from each recovery, and from each life that follows


def _as_it_is(files: Files) -> Files:
    return files


@dataclass(slots=True)
class Ring:
    """One life and all its crashes, as many as `budget` allows.

    `wrap` puts something between the ledger and its files: the teeth seed bugs there.
    """

    name: str
    plot: Plot
    settings: LedgerSettings
    budget: int
    cuts: int = 2  # see crash_states
    tears: int = 2
    wrap: Wrap = _as_it_is
    judged: int = field(default=0, init=False)
    _observed: dict[Hashable, Observed] = field(default_factory=dict, init=False)

    def run(self) -> None:
        """Judge states up to the budget; AssertionError, with a name, where a promise is broken."""
        self._judge_all(islice(self._states(), self.budget))

    def run_every_second_crash(self, then: Plot) -> None:
        """Process death wherever names are not synced, then `then`, and every crash in that."""
        first = self._first_crashes(self._recorded())
        dead = [state for state in first if state.cause == "kill" and state.disk.name_changes]
        for before in dead:
            self._judge_all(self._second_crashes(before, then, cuts=3))

    def _judge_all(self, states: Iterable[CrashState]) -> None:
        # A cut-off write is what this is about, and not worth a line of log each time.
        logging.getLogger("penstock.ledger").disabled = True
        try:
            for state in states:
                self._judge(state)
                self.judged += 1
        finally:
            logging.getLogger("penstock.ledger").disabled = False

    def _states(self) -> Iterator[CrashState]:
        first = list(self._first_crashes(self._recorded()))
        Random(self.name).shuffle(first)
        # The plainest crashes of every instant first: all is there, and nothing unsynced is.
        first.sort(key=lambda state: not state.name.endswith(("kill", "nothing kept")))
        yield from first[: round(self.budget * FIRST_CRASHES_SHARE)]
        # Then crash after a crash: in recovery, or in what follows it. Process death leaves the
        # cache as it is, so its second crash may be the power loss of what was never synced; that
        # is where most can go wrong.
        first.sort(key=lambda state: not state.name.endswith("kill"))
        for seed in count():
            for before in first:
                yield from self._some_second_crashes(before, seed)

    def _recorded(self) -> RecordedFiles:
        recorded = RecordedFiles()
        self._live(recorded, self.plot, self.name)
        return recorded

    def _first_crashes(self, recorded: RecordedFiles) -> Iterator[CrashState]:
        return crash_states(recorded.journal, life=self.name, cuts=self.cuts, tears=self.tears)

    def _some_second_crashes(self, before: CrashState, seed: int) -> Iterator[CrashState]:
        """A few from recovery, a few from what follows."""
        random = Random(f"{seed}/{before.name}")
        states = list(self._second_crashes(before, go_on, seed=seed))
        early = [state for state in states if not _is_opened(state.marks[len(before.marks) :])]
        late = states[len(early) :]
        yield from random.sample(early, min(SECOND_CRASHES, len(early)))
        yield from random.sample(late, min(SECOND_CRASHES, len(late)))

    def _second_crashes(
        self, before: CrashState, then: Plot, *, seed: int = 0, cuts: int = 1
    ) -> Iterator[CrashState]:
        recorded = before.recorded(*([PowerFailed()] if before.cause == "power" else []))
        life = f"{before.name} > {seed}"
        self._live(recorded, then, life)
        return crash_states(recorded.journal, life=life, cuts=cuts, tears=1, seed=seed)

    def _live(self, recorded: RecordedFiles, plot: Plot, name: str) -> None:
        try:
            plot(LedgerLife(recorded, self.settings, seed=name, files=self.wrap(recorded)))
        except Exception as error:
            raise AssertionError(f"{name}: {error!r}") from error

    def _judge(self, state: CrashState) -> None:
        """Several crashes leave the same files, after different promises: those are opened once."""
        try:
            left = state.disk.cached()
            key = left.key()
            if key not in self._observed:
                self._observed[key] = self._opened(left)
            power_failed = state.cause == "power"
            check(self._observed[key], Promise(state.marks), power_failed=power_failed)
        except Exception as error:
            raise AssertionError(f"{state.name}: {error!r}") from error

    def _opened(self, left: Image) -> Observed:
        """What is shown of it; it goes on from there, and what it shows stays."""
        files = MemoryFiles(left, mapped_room_bytes=CRASH_ROOM_BYTES, seed="crashed")
        ledger = open_ledger(self.wrap(files), self.settings)
        observed = observe(ledger)
        next_seq = ledger.messages.next_seq
        assert ledger.messages.append(b"after the crash") == next_seq
        ledger.commit()
        again = open_ledger(self.wrap(killed(files)), self.settings)
        found = contents_of(again)
        after = found["messages"].pop(next_seq, None)
        assert after == Draft(b"after the crash"), f"seq {next_seq} is {after}"
        assert found == observed.contents, "opening it again shows something else"
        return observed


def _is_opened(marks: tuple[Any, ...]) -> bool:
    return any(isinstance(mark, Opened) for mark in marks)


def killed(files: MemoryFiles) -> MemoryFiles:
    """The same files without anything that was open."""
    return MemoryFiles(files.image(), mapped_room_bytes=CRASH_ROOM_BYTES)
