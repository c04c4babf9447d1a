"""Whatever file call fails, the caller gets an error of ours, and nothing answered is lost.

A reference life is lived again and again, and each time another call of it fails: once, or from
then on for ever. What failed is reopened with sound files, after process death and after a power
cut, and judged as in the crash ring.
"""

import errno
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from penstock.errors import LedgerStopped, PenstockError
from penstock.ledger.settings import LedgerSettings
from tests.harness.crash_states import CrashState, Point, kills, points, power_losses
from tests.harness.faults import FAILS_WITH, SHORT_WRITE, Fault, FaultyFiles
from tests.harness.journal import RecordedFiles
from tests.harness.ledger_life import SMALL, LedgerLife, open_ledger
from tests.harness.ledger_oracle import Promise, check_ledger

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


class FaultyLife:
    """The reference life over files of which one call fails."""

    def __init__(self, settings: LedgerSettings, fault: Fault) -> None:
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
        for step in REFERENCE_LIFE:
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
        last: Point = list(points(self.recorded.journal))[-1]
        yield from kills(last, life=str(self.fault), tears=0)
        yield from power_losses(last, life=str(self.fault), cuts=2)

    def judge(self) -> None:
        for state in self.states_after():
            ledger = open_ledger(state.files(), self.settings)
            failed = state.cause == "power"
            check_ledger(ledger, Promise(state.marks), power_failed=failed)
            ledger.messages.append(b"it goes on")
            ledger.close()


def count_calls(settings: LedgerSettings, methods: frozenset[str]) -> int:
    life = FaultyLife(settings, Fault(nth=0, methods=methods))
    life.run()
    assert life.errors == []
    return life.files.chosen_calls


POLICIES = {"always": SMALL, "never": replace(SMALL, sync="never")}
ERRORS = {errno.errorcode[number]: number for number in FAILS_WITH} | {"short write": SHORT_WRITE}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("penstock.ledger"), "disabled", True)


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_answered_is_lost_whichever_call_fails(
    policy: str, error: str, forever: bool
) -> None:
    methods = FAILS_WITH.get(ERRORS[error], frozenset({"pwrite"}))
    calls = count_calls(POLICIES[policy], methods)
    assert calls > 20
    for nth in range(1, calls + 1):
        fault = Fault(nth, ERRORS[error], forever=forever, methods=methods)
        life = FaultyLife(POLICIES[policy], fault)
        try:
            life.run()
            life.judge()
        except Exception as problem:
            where = life.files.failures[:1]
            raise AssertionError(f"{error} at call {nth} {where}: {problem!r}") from problem
        if ERRORS[error] == SHORT_WRITE:
            assert life.errors == [], "a short write is no error: the rest is written"
