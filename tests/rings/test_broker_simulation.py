"""Whatever clients, time, kills and power cuts do: what a broker answered is so.

See tests/harness/broker_simulation.py.
"""

import asyncio
from typing import Any

import pytest

from penstock.broker.embedded.open_queue import OpenQueue
from tests.harness.broker_simulation import Simulation


@pytest.mark.parametrize("seed", range(50))
def test_what_was_answered_is_so_after_any_end(seed: int) -> None:
    facts = Simulation(f"simulation {seed}").run(lives=3)
    assert facts.published
    assert facts.acked


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(50))
def test_what_was_answered_is_so_in_thousands_of_stories(hundred: int) -> None:
    for seed in range(100):
        Simulation(f"long simulation {hundred} {seed}").run(lives=3)


def test_the_same_seed_is_the_same_story() -> None:
    first, second = Simulation("same"), Simulation("same")
    first.run(lives=3)
    second.run(lives=3)
    assert [mark[0] for mark in first.marks] == [mark[0] for mark in second.marks]
    assert first.clock.now_ns() == second.clock.now_ns()


def test_the_ring_has_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer before the sync does not get through."""

    def answers_early(queue: OpenQueue, result: Any, *_: object) -> Any:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(result)
        return answer

    monkeypatch.setattr(OpenQueue, "_durable", answers_early)
    with pytest.raises(AssertionError):
        for seed in range(20):
            Simulation(f"teeth {seed}").run(lives=3)
