"""The work of a workflow grows with the number of its steps, not with its square."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.tasks import Tasks, chain, group


def calls_during(work: Callable[[], Any]) -> int:
    """Return how many functions are called, in Python and in C: a cost without a clock."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def calls_of_a_step(path: Path, steps: int, shape: Callable[..., Any]) -> float:
    with Tasks(path / str(steps), shared=False) as tasks:
        nothing = tasks.add(lambda: None, name="nothing")
        nothing.enqueue()
        tasks.run_pending()  # what is made once is made

        def whole() -> None:
            run = shape(*(nothing.si() for _ in range(steps))).enqueue()
            assert tasks.run_pending() == steps
            assert run.state() == "done"

        return calls_during(whole) / steps


@pytest.mark.parametrize("shape", [chain, group], ids=["chain", "group"])
def test_a_step_of_a_long_workflow_costs_no_more(tmp_path: Path, shape: Callable[..., Any]) -> None:
    short, long = (calls_of_a_step(tmp_path, steps, shape) for steps in (100, 2000))
    assert long < short * 1.1
