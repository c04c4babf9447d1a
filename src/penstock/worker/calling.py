"""Calling the handler: a coroutine function as a task, a plain function in a thread."""

import asyncio
import ctypes
import sys
from collections.abc import Callable, Coroutine
from inspect import isawaitable
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread, get_ident
from types import FrameType
from typing import Any, Protocol

from penstock.queue.handlers import check_done, done, end, is_coroutine_function

_PENSTOCK = Path(__file__).parent.parent
# Code in which a thread is not interrupted: a handler may use a queue itself.
_SHIELDED = tuple(
    str(_PENSTOCK / part)
    for part in ("aio.py", "broker/", "client/", "codec/", "ledger/", "model.py", "queue/")
)
_AGAIN_S, _LONGEST_AGAIN_S = 0.005, 0.05  # until the next try to interrupt; doubles

Handler = Callable[[Any], object]


class Running(Protocol):
    """One call that is under way."""

    @property
    def ended(self) -> "asyncio.Future[object]": ...

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise an error inside the handler, as soon as it can be."""


class Caller(Protocol):
    """Starts calls of one handler."""

    def start(self, argument: object) -> Running: ...

    def close(self) -> None: ...


def caller_of(handler: Handler, concurrency: int) -> Caller:
    """The way to call this handler, so many at a time."""
    if is_coroutine_function(handler):
        return _Tasks(handler)
    return _Threads(handler, concurrency)


# -- tasks -----------------------------------------------------------------------------------------


class _Tasks:
    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def start(self, argument: object) -> "_RunningTask":
        return _RunningTask(_called(self._handler, argument))

    def close(self) -> None: ...


class _RunningTask:
    """A task that, when cancelled by an interrupt, ends with its error."""

    def __init__(self, call: Coroutine[Any, Any, object]) -> None:
        self._interrupted: type[BaseException] | None = None
        self._task = asyncio.ensure_future(call)
        self.ended = asyncio.ensure_future(self._outcome())

    async def _outcome(self) -> object:
        await asyncio.wait([self._task])
        if self._interrupted is not None and self._task.cancelled():
            raise self._interrupted
        if self._task.cancelled():
            raise RuntimeError("the handler cancelled itself")
        return self._task.result()

    def interrupt(self, error: type[BaseException]) -> None:
        self._interrupted = error
        self._task.cancel()


async def _called(handler: Handler, argument: object) -> object:
    return await _awaited(handler(argument))


async def _awaited(result: object) -> object:
    try:
        return await done(result)
    except SystemExit as error:  # would end the loop, and with it every other call
        raise RuntimeError(f"the handler raised {error!r}") from error


# -- threads ---------------------------------------------------------------------------------------


class _Threads:
    """Threads of our own: they end with the process, also if a handler never returns."""

    def __init__(self, handler: Handler, count: int) -> None:
        self._handler = handler
        self._inbox: SimpleQueue[_RunningCall | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._work, name=f"penstock worker {n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, argument: object) -> "_RunningCall":
        call = _RunningCall(self._handler, argument)
        self._inbox.put(call)
        return call

    def close(self) -> None:
        for _ in self._threads:
            self._inbox.put(None)

    def _work(self) -> None:
        while True:
            call = self._inbox.get()
            if call is None:
                return
            call.run()


class _RunningCall:
    """A call in a thread."""

    def __init__(self, handler: Handler, argument: object) -> None:
        self._handler = handler
        self._argument = argument
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[object] = self._loop.create_future()
        # Whoever holds it decides: the thread, that the call is over, or another, to interrupt it.
        self._lock = Lock()
        self._thread_id: int | None = None
        self._early: type[BaseException] | None = None
        self._task: _RunningTask | None = None  # of a coroutine that the handler returned

    def run(self) -> None:
        """In a thread of the worker."""
        result, error = None, None
        try:
            try:
                self._begin()
                result = self._handler(self._argument)
                if not isawaitable(result):
                    check_done(result)
            finally:
                self._end()
        except BaseException as raised:
            error = raised
            self._end()  # again: an interrupt may have come when the handler had just ended
        self._tell(result, error)

    def _begin(self) -> None:
        with self._lock:
            self._thread_id = get_ident()
            if self._early is not None:
                raise self._early

    def _end(self) -> None:
        """From here on nothing is raised. What was raised before comes within this call, at the
        latest: so it never comes to the thread's next call of the handler."""
        with self._lock:
            self._thread_id = None

    def _tell(self, result: object, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._told, result, error)
        except RuntimeError:
            pass  # the loop is closed: the stop did not wait for this call

    def _told(self, result: object, error: BaseException | None) -> None:
        if self.ended.done():  # cancelled
            if isawaitable(result):
                end(result)
        elif error is None and isawaitable(result):
            self._task = _RunningTask(_awaited(result))
            self._task.ended.add_done_callback(self._task_ended)
            if self._early is not None:  # it came when the handler had returned
                self._task.interrupt(self._early)
        elif error is None:
            self.ended.set_result(result)
        elif isinstance(error, StopIteration):  # a future cannot hold it
            self.ended.set_exception(RuntimeError(f"the handler raised {error!r}"))
        else:
            self.ended.set_exception(error)

    def _task_ended(self, ended: "asyncio.Future[object]") -> None:
        if self.ended.done():
            return
        if ended.cancelled():
            self.ended.cancel()
        elif (error := ended.exception()) is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(ended.result())

    def interrupt(self, error: type[BaseException]) -> None:
        """Python raises it when the thread next runs Python code; a call into C goes on first.

        Not while the thread is inside a queue: then it is tried again until it is not. In the loop.
        """
        self._try_to_interrupt(error, _AGAIN_S)

    def _try_to_interrupt(self, error: type[BaseException], again_s: float) -> None:
        if self.ended.done():
            return
        if self._task is not None:
            self._task.interrupt(error)
            return
        with self._lock:
            if self._thread_id is None:
                self._early = error
                return
            if not _is_shielded(self._thread_id):
                _raise_in(self._thread_id, error)
                if not _is_shielded(self._thread_id):
                    return
                _raise_in(self._thread_id, None)  # it went in between the two looks: take it back
        again_later_s = min(again_s * 2, _LONGEST_AGAIN_S)
        self._loop.call_later(again_s, self._try_to_interrupt, error, again_later_s)


def _is_shielded(thread_id: int) -> bool:
    """Is a thread inside a queue, called by the handler?"""
    frame: FrameType | None = sys._current_frames().get(thread_id)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_SHIELDED):
            return True
        frame = frame.f_back
    return False


def _raise_in(thread_id: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread as soon as it runs Python code; None: do not, if it did not."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), raised)
