"""Whatever file call fails, the caller gets an error of ours, and nothing answered is lost.

A life is lived again and again, and each time another call of it fails: once, or from then on for
ever. What failed is reopened with sound files, after process death and after a power cut, and
judged as in the crash ring.
"""

import errno
import logging
from collections.abc import Hashable

import pytest

from penstock.ledger.settings import LedgerSettings
from tests.harness.faults import FAILS_WITH, SHORT_WRITE, Fault
from tests.harness.faulty_life import REFERENCE_LIFE, FaultyLife, Step, random_life
from tests.harness.journal import RecordedFiles
from tests.harness.ledger_oracle import Observed
from tests.rings.test_crash_states import POLICIES

ERRORS = {errno.errorcode[number]: number for number in FAILS_WITH} | {"short write": SHORT_WRITE}
LIVES_OF_THE_LONG_RING = 20
PARTS = 3  # of the calls: a test is short on a slow machine too


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("penstock.ledger"), "disabled", True)


def count_calls(steps: list[Step], settings: LedgerSettings, methods: frozenset[str]) -> int:
    life = FaultyLife(steps, settings, Fault(nth=0, methods=methods))
    life.run()
    assert life.errors == []
    return life.files.chosen_calls


def fail_every_call(
    steps: list[Step],
    settings: LedgerSettings,
    error: str,
    *,
    forever: bool,
    part: int = 0,
    parts: int = 1,
) -> int:
    """Live once for each call of a part that can fail in this way. Return the number of all."""
    methods = FAILS_WITH.get(ERRORS[error], frozenset({"pwrite"}))
    calls = count_calls(steps, settings, methods)
    seen: dict[Hashable, Observed] = {}
    for nth in range(1 + part, calls + 1, parts):
        fault = Fault(nth, ERRORS[error], forever=forever, methods=methods)
        life = FaultyLife(steps, settings, fault)
        try:
            life.run()
            life.judge(seen)
        except Exception as problem:
            where = life.files.failures[:1]
            raise AssertionError(f"{error} at call {nth} {where}: {problem!r}") from problem
        if ERRORS[error] == SHORT_WRITE:
            assert life.errors == [], "a short write is no error: the rest is written"
    return calls


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("policy", ["always", "never"])
def test_nothing_answered_is_lost_whichever_call_fails(
    policy: str, error: str, forever: bool, part: int
) -> None:
    settings = POLICIES[policy]
    calls = fail_every_call(
        REFERENCE_LIFE, settings, error, forever=forever, part=part, parts=PARTS
    )
    assert calls > 20


@pytest.mark.parametrize("policy", ["always", "never"])
def test_a_recovery_that_only_syncs_what_a_failed_sync_left_would_be_found(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring has teeth: no sync brings to disk what one before it could not."""
    monkeypatch.setattr(RecordedFiles, "write_again", lambda self, fd, offset: None)
    with pytest.raises(AssertionError, match="fdatasync"):
        fail_every_call(REFERENCE_LIFE, POLICIES[policy], "EIO", forever=False)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("life", range(LIVES_OF_THE_LONG_RING))
def test_nothing_answered_is_lost_in_any_life_whichever_call_fails(life: int) -> None:
    policy = list(POLICIES)[life % len(POLICIES)]
    for error in ERRORS:
        for forever in (False, True):
            fail_every_call(random_life(life), POLICIES[policy], error, forever=forever)
