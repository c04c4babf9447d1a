"""With sync="always", what was answered survives a power cut, on a real ext4.

The child that writes is stopped, then the file system is shut down without writing its journal;
what it had not made durable by then is gone. It is mounted again, opened, and compared. A control
run, in which every sync is a lie, must lose something: otherwise the cut would prove nothing.
"""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.errors import PenstockError
from penstock.ledger import Ledger
from penstock.torture.children import Children
from tests.harness.kill_judge import Judge
from tests.harness.kill_work import Orders
from tests.harness.power_mounts import Ext4, ext4

CUTS = 10
LONG_CUTS = 200
CUTS_PER_DIRECTORY = 3
MOST_ANSWERS = 120  # in one life

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    children = Children("tests.harness.kill_work")
    yield children
    children.close()


def live_and_cut(
    children: Children, file_system: Ext4, orders: Orders, judge: Judge, answers: int
) -> None:
    """Let a child write until a number of answers, then cut the power."""
    children.start(orders.line())
    try:
        children.hear(judge, upto=judge.answers + answers)
        children.send(signal.SIGSTOP)
        children.hear_until_stopped(judge)
        file_system.cut_power()
    finally:
        children.send(signal.SIGKILL)
    children.hear_the_rest(judge)
    file_system.unmount()
    file_system.mount()


def run_cuts(children: Children, file_system: Ext4, cuts: int) -> int:
    """Cut the power `cuts` times. Return how many answers were checked."""
    random = Random("power")
    answers = 0
    judge = Judge()
    for cut in range(cuts):
        path = file_system.directory / str(cut // CUTS_PER_DIRECTORY)
        if cut % CUTS_PER_DIRECTORY == 0:  # a new directory
            answers += judge.answers
            judge = Judge()
            for old in file_system.directory.glob("[0-9]*"):
                shutil.rmtree(old)
        judge.cycle = cut
        orders = Orders(str(path), cut, "always", mapped=True)
        wanted = random.choice((0, random.randint(1, MOST_ANSWERS)))
        live_and_cut(children, file_system, orders, judge, wanted)
        with Ledger.open(str(path), orders.settings()) as ledger:
            judge.judge(ledger)
    return answers + judge.answers


def test_whatever_was_answered_survives_a_power_cut(children: Children, tmp_path: Path) -> None:
    with ext4(tmp_path) as file_system:
        assert run_cuts(children, file_system, CUTS) > 10 * CUTS


@pytest.mark.long
def test_whatever_was_answered_survives_a_power_cut_again_and_again(
    children: Children, tmp_path: Path
) -> None:
    with ext4(tmp_path) as file_system:
        assert run_cuts(children, file_system, LONG_CUTS) > 10 * LONG_CUTS


def test_without_syncs_a_power_cut_loses_what_was_answered(
    children: Children, tmp_path: Path
) -> None:
    """The control: the ring has teeth."""
    with ext4(tmp_path) as file_system:
        path = file_system.directory / "queue"
        orders = Orders(str(path), 0, "always", mapped=True, no_sync=True)
        judge = Judge()
        live_and_cut(children, file_system, orders, judge, MOST_ANSWERS)
        with pytest.raises((AssertionError, PenstockError)):
            with Ledger.open(str(path), orders.settings(), create=False) as ledger:
                judge.judge(ledger)
