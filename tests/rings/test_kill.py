"""kill -9 at any moment loses nothing that was answered, in any mode.

A child writes from several threads and tells what was answered; it is killed; what it leaves is
opened and compared. The next child goes on in the same directory, so that recovery is killed too.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.ledger import Ledger
from penstock.torture.children import Children
from tests.harness.kill_judge import Judge
from tests.harness.kill_work import Orders

CYCLES = 210
LONG_CYCLES = 5000
CYCLES_PER_DIRECTORY = 6
MOST_ANSWERS = 150  # in one life

POLICIES = {
    "always": ("always", True),
    "interval, mapped": ("interval", True),
    "interval, write": ("interval", False),
    "batch, mapped": ("batch", True),
    "batch, write": ("batch", False),
    "never, mapped": ("never", True),
    "never, write": ("never", False),
}


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    children = Children("tests.harness.kill_work")
    yield children
    children.close()


def run_cycles(children: Children, root: Path, policy: str, cycles: int) -> int:
    """Kill a child in each cycle. Return how many answers were checked."""
    sync, mapped = POLICIES[policy]
    random = Random(policy)
    answers = 0
    judge = Judge()
    for cycle in range(cycles):
        if cycle % CYCLES_PER_DIRECTORY == 0:  # a new directory
            answers += judge.answers
            judge = Judge()
        judge.cycle = cycle
        path = root / str(cycle // CYCLES_PER_DIRECTORY)
        orders = Orders(str(path), cycle, sync, mapped)
        answers_before = random.choice((0, random.randint(1, MOST_ANSWERS)))
        children.start(orders.line())
        children.hear(judge, upto=judge.answers + answers_before)
        children.send(signal.SIGKILL)
        children.hear_the_rest(judge)
        # Every other time only a look, so that it is the next child that recovers.
        read_only = cycle % 2 == 1
        if read_only and not (path / "queue.json").exists():
            continue  # killed while it was being made
        with Ledger.open(str(path), orders.settings(), read_only=read_only) as ledger:
            judge.judge(ledger)
    return answers + judge.answers


@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_was_answered_survives_kill_9(
    children: Children, tmp_path: Path, policy: str
) -> None:
    cycles = CYCLES // len(POLICIES)
    assert run_cycles(children, tmp_path, policy, cycles) > 10 * cycles


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_was_answered_survives_kill_9_again_and_again(
    children: Children, tmp_path: Path, policy: str
) -> None:
    cycles = -(-LONG_CYCLES // len(POLICIES))
    assert run_cycles(children, tmp_path, policy, cycles) > 10 * cycles
