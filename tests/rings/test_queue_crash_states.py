"""Whole-queue lives, crashed everywhere, once and again: what was answered is there, as it was.

The state found must be, byte for byte, that of the last answer, or of the one that was being given.
Only the next seq may be higher, after a power cut: seqs that a lost call had taken stay unused.
So nothing answered is lost (published, acked, nacked, cancelled …), nothing acked comes back,
attempts and dead letters survive, and no seq is given twice.
"""

import logging
from collections.abc import Iterator
from random import Random

import pytest

from penstock.ledger.memory_files import MemoryFiles
from tests.harness.crash_states import CrashState, crash_states
from tests.harness.journal import CRASH_ROOM_BYTES, RecordedFiles
from tests.harness.ledger_oracle import PowerFailed
from tests.harness.queue_plots import Answered, QueueLife, Standing, open_queue_in, state_of

STEPS = 60
PARTS = 4  # of the states: a test is short on a slow machine too
SECOND_CRASHES = 4  # states drawn from each life after a crash


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A cut-off write is what this is about, and not worth a line of log each time."""
    logging.getLogger("penstock.ledger").disabled = True
    yield
    logging.getLogger("penstock.ledger").disabled = False


def is_allowed(found: Standing, state: CrashState) -> bool:
    """Return whether the newest answer allows what was found. Before the first, all is allowed."""
    power_failed = state.cause == "power"
    for mark in reversed(state.marks):
        if isinstance(mark, Answered):
            return mark.allows(found, power_failed=power_failed)
        power_failed |= isinstance(mark, PowerFailed)
    return True


def judge(state: CrashState, seed: str) -> None:
    files = state.files()
    queue = open_queue_in(files, seed=seed)
    found = state_of(queue)
    damage = [each for each in queue.core.ledger.damage if not each.torn]
    assert not damage, f"a crash was taken for damage: {damage[0]}"
    assert is_allowed(found, state), "the state is neither that before nor that after"
    # It goes on from there, with a new seq, and what it shows stays.
    next_seq = queue.stats().next_seq
    assert queue.get(queue.enqueue(b"after the crash")).seq == next_seq
    after = state_of(queue)
    again = MemoryFiles(files.image(), mapped_room_bytes=CRASH_ROOM_BYTES)
    assert state_of(open_queue_in(again, seed=seed)) == after, (
        "opening it again shows something else"
    )


def states_of(seed: str, *, steps: int, lives: int, part: int, parts: int) -> Iterator[CrashState]:
    """Every crash of a life, then crashes of the lives that go on after some of them."""
    recorded = RecordedFiles()
    QueueLife(recorded, seed).live(steps)
    first = list(crash_states(recorded.journal, life=seed, cuts=1, tears=1))[part::parts]
    yield from first
    for before in Random(seed).sample(first, lives):
        once_more = before.recorded(*([PowerFailed()] if before.cause == "power" else []))
        QueueLife(once_more, before.name).live(6)
        second = list(crash_states(once_more.journal, life=before.name, cuts=1, tears=1))
        yield from Random(before.name).sample(second, min(SECOND_CRASHES, len(second)))


def run(seed: str, *, steps: int, lives: int, part: int = 0, parts: int = 1) -> None:
    for state in states_of(seed, steps=steps, lives=lives, part=part, parts=parts):
        try:
            judge(state, seed)
        except Exception as error:
            raise AssertionError(f"{state.name}: {error!r}") from error


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("seed", ["one", "two", "three", "four", "limited"])
def test_queue_stands_as_it_answered_after_every_crash(seed: str, part: int) -> None:
    run(seed, steps=STEPS, lives=15, part=part, parts=PARTS)


@pytest.mark.long
@pytest.mark.parametrize("seed", [f"{kind} {n}" for kind in ("long", "limited") for n in range(10)])
def test_queue_stands_as_it_answered_after_every_crash_of_a_longer_life(seed: str) -> None:
    run(seed, steps=2 * STEPS, lives=1200)


def test_judge_allows_skipped_seqs_only_after_a_power_cut_of_a_call_that_wrote_messages() -> None:
    before, after = Standing(4, b"before"), Standing(6, b"after")
    answered = Answered([before, after], 0)
    for found in (before, after):
        assert answered.allows(found, power_failed=False)
    for skipped in (Standing(5, b"before"), Standing(6, b"before")):
        assert answered.allows(skipped, power_failed=True)
        assert not answered.allows(skipped, power_failed=False), "a kill loses nothing"
        assert not Answered([before], 0).allows(skipped, power_failed=True), "nothing was written"
    for wrong in (Standing(3, b"before"), Standing(7, b"before"), Standing(5, b"after")):
        assert not answered.allows(wrong, power_failed=True)
