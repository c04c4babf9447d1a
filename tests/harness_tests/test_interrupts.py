"""The trace of the interrupt ring itself."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from weakref import WeakSet

import pytest

from tests.harness.interrupts import Interrupter


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def _leaf() -> None:
    """Be called: CPython makes a frame object for the trace, and may collect garbage first."""


def _interrupt_collection(allocations: int) -> bool:
    """Interrupt the callback of a weak reference, if the collection falls into some calls."""
    watched: WeakSet[_Cycle] = WeakSet()
    watched.add(_Cycle())
    interrupter = Interrupter(1)

    def calls() -> None:
        gc.set_threshold(gc.get_count()[0] + allocations, 1000, 1000)
        gc.enable()
        frames = []
        for _ in range(40):
            _leaf()
            frames.append(_leaf)

    try:
        interrupter.run(calls)
    finally:
        gc.disable()
        gc.collect()
    return bool(interrupter.where)


def interrupt_collections() -> None:
    """Try all moments of a collection; one at least must have been interrupted."""
    sys.unraisablehook = lambda _: None
    gc.collect()
    gc.disable()
    assert sum(_interrupt_collection(allocations) for allocations in range(1, 60))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer ones use no trace function")
def test_an_interrupt_during_a_collection_does_not_free_the_trace_function() -> None:
    """CPython 3.11 calls the trace function after an interrupt in a callback has removed it.

    In a process whose freed memory is overwritten, so that the call always fails.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as test; test.interrupt_collections()"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
