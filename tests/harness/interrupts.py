"""Interrupts where CPython can deliver one: counted, and raised at a chosen one.

A signal's handler, and `PyThreadState_SetAsyncExc`, act when the interpreter looks at its "eval
breaker": at the start of a Python function (RESUME), at a jump back in a loop (JUMP_BACKWARD), and
after a call of a C function has returned (CALL). Nowhere else: not between two stores, not between
the end of a `with` block and letting go of its lock.

The functions below are called before each bytecode and raise at exactly those points. One kind is
left out. The exception of a real interrupt belongs to the CALL, that of a trace to the bytecode
behind it. Where the two lie in different `try` or `with` blocks (`return f()` as the last statement
of a `with`), raising behind the CALL would skip an exit that a real interrupt runs. From Python
3.14 on, the start of a `with` block is such a CALL: `tests/test_locks.py` has it.

Nor is there a point between the call of a coroutine function and its `await`: the interpreter makes
the coroutine without calling C code, and a trace sees no call.

Python 3.11 has `sys.settrace` for this. Since 3.12, that function misses the bytecodes of code that
is traced for the first time, so `sys.monitoring` is used.
"""

import dis
import sys
from collections.abc import Callable
from functools import cache
from threading import get_ident
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
        try:
            if sys.version_info >= (3, 12):
                return self._run_monitored(call)
            return self._run_traced(call)
        finally:
            self._last.clear()

    # -- Python 3.11 -------------------------------------------------------------------------------

    def _run_traced(self, call: Callable[[], Any]) -> Any:
        outer = sys.gettrace()
        # Kept here: CPython 3.11 borrows it, and may still call it after an exception that it
        # raised in a weak reference's callback has removed it. The call would be of freed memory.
        trace = self._trace
        sys.settrace(trace)
        try:
            return call()
        finally:
            sys.settrace(outer)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            self._called(frame)
            if _is_not_ours(frame.f_code):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self._look(frame)
        else:
            self._left(frame)
        return self._trace

    # -- Python 3.12 and newer ---------------------------------------------------------------------

    if sys.version_info >= (3, 12):

        def _run_monitored(self, call: Callable[[], Any]) -> Any:
            monitoring, thread = sys.monitoring, get_ident()
            events, tool = monitoring.events, monitoring.DEBUGGER_ID

            def called(code: CodeType, *_: object) -> None:
                if get_ident() == thread:
                    self._called(sys._getframe(1))

            def left(code: CodeType, *_: object) -> None:
                if get_ident() == thread:
                    self._left(sys._getframe(1))

            def look(code: CodeType, _: int) -> object:
                if _is_not_ours(code):
                    return monitoring.DISABLE
                if get_ident() == thread:
                    self._look(sys._getframe(1))
                return None

            watched = {
                **dict.fromkeys((events.PY_START, events.PY_RESUME, events.PY_THROW), called),
                **dict.fromkeys((events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND), left),
                **dict.fromkeys((events.RAISE, events.RERAISE, events.STOP_ITERATION), left),
                events.INSTRUCTION: look,
            }
            monitoring.use_tool_id(tool, "interrupts")
            try:
                for event, function in watched.items():
                    monitoring.register_callback(tool, event, function)
                monitoring.set_events(tool, sum(watched))
                return call()
            finally:
                monitoring.set_events(tool, 0)
                for event in watched:
                    monitoring.register_callback(tool, event, None)
                monitoring.free_tool_id(tool)

    # -- both --------------------------------------------------------------------------------------

    def _called(self, frame: FrameType) -> None:
        if frame.f_back is not None:
            self._last.pop(frame.f_back, None)  # the CALL was of Python code: no point behind

    def _left(self, frame: FrameType) -> None:
        """It returned, or something was raised: no point behind that."""
        self._last.pop(frame, None)

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
def _is_not_ours(code: CodeType) -> bool:
    return any(part in code.co_filename for part in _NOT_OURS)


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
