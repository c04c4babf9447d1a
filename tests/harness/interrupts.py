"""Interrupts where CPython can deliver one: counted, and raised at a chosen one.

A signal's handler, and `PyThreadState_SetAsyncExc`, act when the interpreter looks at its "eval
breaker": at the start of a Python function (RESUME), at a jump back in a loop (JUMP_BACKWARD), and
after a call of a C function has returned (CALL). Nowhere else: not between two stores, not between
taking a lock by `with` and the block, not between the block's end and letting go of it.

The trace function below is called before each bytecode and raises at exactly those points. One kind
is left out. The exception of a real interrupt belongs to the CALL, that of a trace function to the
bytecode behind it. Where the two lie in different `try` or `with` blocks (`return f()` as the last
statement of a `with`), raising behind the CALL would skip an exit that a real interrupt runs.

Nor is there a point between the call of a coroutine function and its `await`: the interpreter makes
the coroutine without calling C code, and a trace function sees no call.
"""

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

_POINTS_BEHIND = frozenset({"RESUME", "JUMP_BACKWARD", "CALL", "CALL_FUNCTION_EX", "CALL_KW"})
_NOT_OURS = ("/tests/", "/_pytest/", "/importlib/")  # the disk in memory stands for the kernel


class Interrupter:
    """Runs a call, and raises `error` at its point number `at`; never where that is None."""

    def __init__(self, at: int | None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.at = at
        self.points = 0  # that were passed
        self.where = ""
        self._error = error
        self._last: dict[FrameType, int] = {}  # the offset of the bytecode that ran last

    def run(self, call: Callable[[], Any]) -> Any:
        outer = sys.gettrace()
        # Kept here: CPython 3.11 borrows it, and may still call it after an exception that it
        # raised in a weak reference's callback has removed it. The call would be of freed memory.
        trace = self._trace
        sys.settrace(trace)
        try:
            return call()
        finally:
            sys.settrace(outer)
            self._last.clear()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            if frame.f_back is not None:
                self._last.pop(frame.f_back, None)  # the CALL was of Python code: no point behind
            if any(part in frame.f_code.co_filename for part in _NOT_OURS):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self._look(frame)
        else:  # it returned, or something was raised: no point behind that
            self._last.pop(frame, None)
        return self._trace

    def _look(self, frame: FrameType) -> None:
        offset, last = frame.f_lasti, self._last.get(frame)
        self._last[frame] = offset
        if last is None or not _is_point(frame.f_code, last, offset):
            return
        self.points += 1
        if self.points == self.at:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            raise self._error


@cache
def _is_point(code: CodeType, last: int, offset: int) -> bool:
    """Can an interrupt be raised at `offset`, when the bytecode at `last` ran before it?"""
    before, after = (dis.opname[_bytes(code)[at]] for at in (last, offset))
    if before not in _POINTS_BEHIND or (before, after) == ("CALL", "GET_AWAITABLE"):
        return False
    return _handler(code, last) == _handler(code, offset)


@cache
def _bytes(code: CodeType) -> bytes:
    return code.co_code


def _handler(code: CodeType, offset: int) -> tuple[int, int] | None:
    """Where an exception at an offset goes."""
    for entry in _handlers(code):
        if entry.start <= offset < entry.end:
            return entry.target, entry.depth
    return None


@cache
def _handlers(code: CodeType) -> Any:
    return dis._parse_exception_table(code)  # type: ignore[attr-defined]
