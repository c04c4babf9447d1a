"""A life over files of which one call fails, and what must be true of it during and after."""

from collections.abc import Callable, Hashable, Iterator
from random import Random

import pytest

from penstock.errors import LedgerStopped, PenstockError
from penstock.ledger.settings import LedgerSettings
from tests.harness.crash_states import CrashState, kills, last_point, power_losses
from tests.harness.faults import Fault, FaultyFiles
from tests.harness.journal import RecordedFiles
from tests.harness.ledger_life import LedgerLife, open_ledger
from tests.harness.ledger_oracle import Observed, Promise, check, observe

Step = Callable[[LedgerLife], None]

REFERENCE_LIFE: list[Step] = [
    LedgerLife.publish,
    lambda life: life.publish(life.draft(20)),
    lambda life: life.publish_batch(3),
    lambda life: life.note(2),
    LedgerLife.sync,
    LedgerLife.snapshot,
    # Large ones do not fit and start a new segment; where that fails, small ones still fit.
    lambda life: life.publish(life.draft(400)),
    lambda life: life.publish(life.draft(0)),
    lambda life: life.publish(life.draft(400)),
    lambda life: life.publish(life.draft(0)),
    lambda life: life.publish(life.draft(400)),
    lambda life: life.publish_batch(4),
    lambda life: life.compact("messages", keep=lambda seq: seq > 5, rewrite_below=0),
    lambda life: life.publish(life.draft(400)),
    lambda life: life.compact("messages", keep=lambda seq: seq % 4 == 0, rewrite_below=1),
    LedgerLife.publish,
    LedgerLife.rest,
    LedgerLife.publish,
    lambda life: life.note(8),
    lambda life: life.note(8),
    LedgerLife.snapshot,
    LedgerLife.forget_events,
    LedgerLife.reopen,
    LedgerLife.publish,
    LedgerLife.note,
    LedgerLife.close,
]


def random_life(seed: int) -> list[Step]:
    """Another life of that length, with a bit of everything."""
    random = Random(f"life {seed}")
    steps = [_random_step(random) for _ in REFERENCE_LIFE[:-1]]
    return [*steps, LedgerLife.close]


def _random_step(random: Random) -> Step:
    size, count = random.choice((0, 20, 150, 400, 400, 1000)), random.randint(2, 8)
    kept = frozenset(seq for seq in range(1, 300) if random.random() < 0.3)
    low = random.randint(1, 20)
    steps: list[Step] = [
        lambda life: life.publish(life.draft(size)),
        lambda life: life.publish_batch(count),
        LedgerLife.note,
        lambda life: life.note(count),
        LedgerLife.sync,
        LedgerLife.rest,
        LedgerLife.reopen,
        LedgerLife.snapshot,
        LedgerLife.forget_events,
        lambda life: life.compact("messages", keep=lambda seq: seq > low, rewrite_below=0),
        lambda life: life.compact("messages", keep=kept.__contains__, rewrite_below=1),
    ]
    return random.choices(steps, weights=(8, 3, 2, 3, 1, 1, 2, 2, 1, 1, 1))[0]


class FaultyLife:
    """Lives step by step, and notes the errors it gets."""

    def __init__(self, steps: list[Step], settings: LedgerSettings, fault: Fault) -> None:
        self.steps = steps
        self.settings = settings
        self.fault = fault
        self.recorded = RecordedFiles()
        self.files = FaultyFiles(self.recorded, self.fault)
        self.life = LedgerLife(
            self.recorded, self.settings, seed="reference", files=self.files, opened=False
        )
        self.errors: list[PenstockError] = []

    def run(self) -> None:
        self._try(LedgerLife.open)
        for step in self.steps:
            if not self.life.is_open:
                self._try(LedgerLife.open)
                continue
            failures = len(self.files.failures)
            if not self._try(step):
                self._after_failure(self.files.failures[failures:])

    def _try(self, step: Step) -> bool:
        try:
            step(self.life)
        except PenstockError as error:
            self.errors.append(error)
            return False
        return True

    def _after_failure(self, failures: list[tuple[str, str]]) -> None:
        """Check that a failed sync is final, and close a ledger that has stopped."""
        if not self.life.is_open:
            return
        stopped = isinstance(self.errors[-1], LedgerStopped)
        for method, path in failures:
            if method == "fdatasync" and path.endswith(".log"):
                # Else the file was given up as a whole, and nothing of it is trusted.
                given_up = not self.recorded.exists(path) or ("unlink", path) in failures
                assert stopped or given_up, "a failed sync was not final"
        if stopped:
            for write in (LedgerLife.publish, LedgerLife.note):
                with pytest.raises(LedgerStopped):
                    write(self.life)
            self._try(LedgerLife.give_up)

    def states_after(self) -> Iterator[CrashState]:
        """What process death now, and a power cut now, could leave."""
        last = last_point(self.recorded.journal)
        yield from kills(last, life=str(self.fault), tears=0)
        yield from power_losses(last, life=str(self.fault), cuts=2)

    def judge(self, seen: dict[Hashable, Observed]) -> None:
        """Open each of those with sound files; AssertionError where a promise is broken.

        `seen` keeps what was opened before: many faults leave the same files.
        """
        for state in self.states_after():
            key = state.disk.cached().key()
            if key not in seen:
                ledger = open_ledger(state.files(), self.settings)
                seen[key] = observe(ledger)
                ledger.messages.append(b"it goes on")
                ledger.close()
            check(seen[key], Promise(state.marks), power_failed=state.cause == "power")
