"""What something costs, measured by what no other process disturbs."""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions_of(do: Callable[[], object]) -> int:
    """How many instructions of Python's it takes."""
    count = 0

    def note(frame: FrameType, what: str, arg: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += what == "opcode"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        do()
    finally:
        sys.settrace(before)
    return count


def allocated_by(do: Callable[[], object]) -> int:
    """How many bytes more than before it needs while it runs, at most."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        do()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def kept_by(do: Callable[[], object]) -> int:
    """How many bytes are there after it that were not before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        do()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
