"""A child publishes, leases and settles from threads, is killed, and the queue is held to its word.

The next child goes on in the same directory, so that recovery is killed too.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.torture.child import Told
from penstock.torture.kills import Killer, check_killed

CYCLES = 201
PARTS = 3  # of the cycles: a test is short on a slow machine too
LONG_CYCLES = 5001
CYCLES_PER_DIRECTORY = 5
MOST_ANSWERS = 200  # in one life


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    killer = Killer()
    yield killer
    killer.close()


def run_cycles(killer: Killer, root: Path, sync: str, cycles: int, part: int = 0) -> int:
    """Kill a child in each cycle. Return how many answers were checked."""
    random, told, answers = Random(f"{sync} {part}"), Told(), 0
    for cycle in range(cycles):
        if cycle % CYCLES_PER_DIRECTORY == 0:
            answers += told.answers
            told = Told()
        path = root / str(cycle // CYCLES_PER_DIRECTORY)
        after = random.choice((0, random.randint(1, MOST_ANSWERS)))
        killer.run_and_kill(path, sync, str(cycle), told, after)
        assert check_killed(path, sync, told) == []
    return answers + told.answers


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("sync", ["always", "interval", "never"])
def test_a_killed_queue_keeps_its_word(
    killer: Killer, tmp_path: Path, sync: str, part: int
) -> None:
    cycles = CYCLES // 3 // PARTS
    assert run_cycles(killer, tmp_path, sync, cycles, part) > 10 * cycles


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sync", ["always", "interval", "never"])
def test_a_queue_killed_again_and_again_keeps_its_word(
    killer: Killer, tmp_path: Path, sync: str
) -> None:
    cycles = LONG_CYCLES // 3
    assert run_cycles(killer, tmp_path, sync, cycles) > 10 * cycles
