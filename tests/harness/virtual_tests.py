"""Tests that are coroutines: run on a virtual loop, so that no test waits for real time."""

import asyncio
import inspect
from typing import Any

import pytest

from tests.harness.virtual_loop import LoopClock, VirtualLoop


@pytest.fixture
def clock() -> LoopClock:
    """The clock of the loop that the test runs on."""
    return LoopClock()


def run_coroutine_test(item: pytest.Function) -> bool | None:
    """For a conftest's `pytest_pyfunc_call`."""
    if not inspect.iscoroutinefunction(item.obj):
        return None
    arguments: dict[str, Any] = {
        name: item.funcargs[name] for name in inspect.signature(item.obj).parameters
    }
    clock: LoopClock = item._request.getfixturevalue("clock")
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        runner.run(item.obj(**arguments))
    return True
