"""Call the handler: a coroutine function as a task, a plain function in a thread."""

import asyncio
import ctypes
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from inspect import isawaitable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread, get_ident
from types import FrameType
from typing import Any, Protocol

from penstock.locks import Lock
from penstock.queue.handlers import check_done, done, end, is_coroutine_function

_PENSTOCK = Path(__file__).parent.parent
# Code in which a thread is not interrupted: a handler may use a queue itself.
_SHIELDED = tuple(
    str(_PENSTOCK / part)
    for part in ("aio.py", "broker/", "client/", "codec/", "ledger/", "model.py", "queue/")
)
_AGAIN_S, _LONGEST_AGAIN_S = 0.005, 0.05  # until the next try to interrupt; doubles

Handler = Callable[[Any], object]
OnEnd = Callable[[BaseException | None], None]  # called in the loop with what the handler raised


class Running(Protocol):
    """One call of the handler."""

    @property
    def began_s(self) -> float | None:
        """The loop's time when it began; None: it has not."""

    @property
    def result(self) -> object:
        """What the handler returned, when it has ended."""

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise an error inside the handler as soon as possible."""

    def withdraw(self) -> bool:
        """Take back a call that has not begun. Return False if it has."""


class Caller(Protocol):
    """Starts calls of one handler."""

    @property
    def room(self) -> int:
        """Number of calls that may be started now."""

    def start(self, argument: object, on_end: OnEnd) -> Running: ...

    def close(self) -> None: ...


class MixedHandler(Protocol):
    """Two handlers in one: some messages are handled in a thread, some as a task."""

    def is_async(self, argument: Any) -> bool:
        """Return whether `call_async` handles this argument."""

    def call(self, argument: Any) -> object: ...

    async def call_async(self, argument: Any) -> object: ...


def caller_of(handler: Handler | MixedHandler, concurrency: int, ahead: int = 0) -> Caller:
    """Return what calls this handler, up to `concurrency` at a time.

    A thread may be given up to `ahead` calls beyond that, so that it need not wait for the loop
    between two calls.
    """
    if not callable(handler):
        return _Mixed(handler, concurrency)
    if is_coroutine_function(handler):
        return _Tasks(handler, concurrency)
    return _Threads(handler, concurrency, ahead)


# -- tasks -----------------------------------------------------------------------------------------


class _Tasks:
    def __init__(self, handler: Handler, concurrency: int) -> None:
        self._handler = handler
        self.room = concurrency

    def start(self, argument: object, on_end: OnEnd) -> "_RunningTask":
        self.room -= 1
        return _RunningTask(_called(self._handler, argument), on_end, self)

    def close(self) -> None: ...


class _RunningTask:
    """A task that, when cancelled by an interrupt, ends with its error."""

    __slots__ = ("_caller", "_interrupted", "_on_end", "_task", "began_s", "result")

    def __init__(
        self,
        call: Coroutine[Any, Any, object],
        on_end: OnEnd,
        caller: _Tasks | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._interrupted: type[BaseException] | None = None
        self._on_end = on_end
        self._caller = caller
        self._task = loop.create_task(call)
        self._task.add_done_callback(self._ended)
        self.began_s: float | None = loop.time()
        self.result: object = None

    def _ended(self, task: "asyncio.Task[object]") -> None:
        if self._caller is not None:
            self._caller.room += 1
        error = None if task.cancelled() else task.exception()
        if self._interrupted is not None:  # also if the handler caught it: its work is not done
            self._on_end(_caused_by(error, self._interrupted))
        elif task.cancelled():
            self._on_end(RuntimeError("the handler cancelled itself"))
        else:
            if error is None:
                self.result = task.result()
            self._on_end(error)

    def interrupt(self, error: type[BaseException]) -> None:
        if self._task.cancel():  # else it has ended
            self._interrupted = error

    def withdraw(self) -> bool:
        return False


async def _called(handler: Handler, argument: object) -> object:
    return await _awaited(handler(argument))


async def _awaited(result: Any) -> object:
    try:
        result = await result
        return None if result is None else await done(result)
    except SystemExit as error:  # would end the loop, and with it every other call
        raise RuntimeError(f"the handler raised {error!r}") from error


# -- both ------------------------------------------------------------------------------------------


class _Mixed:
    """Tasks and threads that share one limit."""

    def __init__(self, handler: MixedHandler, concurrency: int) -> None:
        self._handler = handler
        self._threads = _Threads(handler.call, concurrency, 0)
        self._tasks = _Tasks(handler.call_async, 0)

    @property
    def room(self) -> int:
        return self._threads.room + self._tasks.room  # of tasks: minus those that run

    def start(self, argument: object, on_end: OnEnd) -> Running:
        if self._handler.is_async(argument):
            return self._tasks.start(argument, on_end)
        return self._threads.start(argument, on_end)

    def close(self) -> None:
        self._threads.close()


# -- threads ---------------------------------------------------------------------------------------


class _Threads:
    """Daemon threads: they end with the process, even if a handler never returns."""

    def __init__(self, handler: Handler, count: int, ahead: int) -> None:
        self.room = count + ahead
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[_RunningCall | None] = SimpleQueue()
        # What ended since the loop was last woken: one wake-up serves many calls.
        self._ended: deque[tuple[_RunningCall, object, BaseException | None]] = deque()
        self._woken = False
        self._threads = [
            Thread(target=self._work, name=f"penstock worker {n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, argument: object, on_end: OnEnd) -> "_RunningCall":
        self.room -= 1
        call = _RunningCall(self._handler, argument, self._loop, on_end)
        self._inbox.put(call)
        return call

    def close(self) -> None:
        for _ in self._threads:
            self._inbox.put(None)

    def _work(self) -> None:
        """Run calls until `close`. Called in each thread."""
        while (call := self._inbox.get()) is not None:
            self._ended.append((call, *call.run()))
            if not self._woken:
                self._woken = True
                with suppress(RuntimeError):  # the loop is closed: the stop did not wait
                    self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        """Report the calls that ended. Called in the loop."""
        self._woken = False  # before the first look: what ends from now on wakes it again
        while self._ended:
            call, result, error = self._ended.popleft()
            self.room += 1
            call.told(result, error)


class _Withdrawn(BaseException):
    """The call was taken back before it began."""


class _RunningCall:
    """A call in a thread."""

    __slots__ = (
        "_argument",
        "_early",
        "_handler",
        "_is_over",
        "_lock",
        "_loop",
        "_on_end",
        "_raised",
        "_result",
        "_task",
        "_thread_id",
        "began_s",
    )

    def __init__(
        self,
        handler: Handler,
        argument: object,
        loop: asyncio.AbstractEventLoop,
        on_end: OnEnd,
    ) -> None:
        self._handler = handler
        self._argument = argument
        self._loop = loop
        self._on_end = on_end
        self.began_s: float | None = None
        # Guards `_thread_id`: the thread ends the call, or the loop interrupts it, never both.
        self._lock = Lock()
        self._thread_id: int | None = None
        self._early: type[BaseException] | None = None
        self._raised: type[BaseException] | None = None  # the early one, raised in the handler
        self._task: _RunningTask | None = None  # of a coroutine that the handler returned
        self._result: object = None
        self._is_over = False

    @property
    def result(self) -> object:
        return self._result if self._task is None else self._task.result

    def run(self) -> tuple[object, BaseException | None]:
        """Call the handler, in a thread of the worker. Return its result, or what it raised."""
        result = None
        try:
            try:
                self._begin()
                result = self._handler(self._argument)
                if result is not None and not isawaitable(result):
                    check_done(result)
            finally:
                self._end()
        except BaseException as raised:
            self._end()  # again: an interrupt may have come when the handler had just ended
            return None, raised
        return result, None

    def _begin(self) -> None:
        with self._lock:
            if self._early is not None:
                raise self._early
            self._thread_id = get_ident()
            self.began_s = self._loop.time()

    def _end(self) -> None:
        """Stop interrupts. One that was raised before arrives during this call at the latest, so
        it never reaches the thread's next call of the handler."""
        with self._lock:
            self._thread_id = None

    def told(self, result: object, error: BaseException | None) -> None:
        """Take the outcome from the thread. Called in the loop."""
        if isinstance(error, _Withdrawn):
            return
        if error is None and isawaitable(result):
            if self._early is None:
                self._task = _RunningTask(_awaited(result), self._on_end)
                return
            end(result)  # the interrupt came when the handler had returned
            error = self._early()
        elif self._raised is not None and not isinstance(error, self._raised):
            error = _caused_by(error, self._raised)  # the handler caught it: its work is not done
        self._is_over = True
        self._result = result
        self._on_end(error)

    def withdraw(self) -> bool:
        with self._lock:
            if self.began_s is not None or self._early is not None:
                return False
            self._early = _Withdrawn
            return True

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise an exception in the thread, when it next runs Python code.

        While the thread is inside a call of a queue, this is postponed. Called in the event loop.
        """
        self._early = error
        self._try_to_interrupt(error, _AGAIN_S)

    def _try_to_interrupt(self, error: type[BaseException], again_s: float) -> None:
        if self._is_over:
            return
        if self._task is not None:
            self._task.interrupt(error)
            return
        with self._lock:
            if self._thread_id is None:
                return  # it has not begun, or has returned
            if not _is_shielded(self._thread_id):
                _raise_in(self._thread_id, error)
                if not _is_shielded(self._thread_id):
                    self._raised = error
                    return
                _raise_in(self._thread_id, None)  # it went in between the two looks: take it back
        again_later_s = min(again_s * 2, _LONGEST_AGAIN_S)
        self._loop.call_later(again_s, self._try_to_interrupt, error, again_later_s)


def _caused_by(error: BaseException | None, interruption: type[BaseException]) -> BaseException:
    """Return an interruption that the handler answered with an error, or with none."""
    raised = interruption()
    raised.__cause__ = error
    return raised


def _is_shielded(thread_id: int) -> bool:
    """Return whether the handler of a thread is inside a call of a queue."""
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
