"""Group commit: everyone who waits for the disk shares one sync.

Whoever finds nobody syncing becomes the leader: syncs for all who wait, wakes them, and hands the
lead to one of those who came in the meantime. A round covers what was written before it started,
so a caller who arrives during a round waits for the next. Threads lead themselves; for asyncio
tasks, which must not block, a helper thread leads, and the tasks of a round share one future.
"""

import asyncio
from collections.abc import Callable
from threading import Event, Lock, Thread

from penstock.errors import LedgerClosed, PenstockError


class GroupCommit:
    """Rounds of `sync`, shared by threads and asyncio tasks alike."""

    def __init__(self, sync: Callable[[], None], *, name: str) -> None:
        self._sync = sync
        self._lock = Lock()
        self._leading = False
        self._threads: list[_WaitingThread] = []
        self._tasks: dict[asyncio.AbstractEventLoop, _RoundFuture] = {}
        self._helper = _Helper(self._lead, name)
        self._closed = False

    def wait(self) -> None:
        """Return when everything written before this call is durable."""
        with self._lock:
            self._check_open()
            waiter = None
            if self._leading:
                waiter = _WaitingThread()
                self._threads.append(waiter)
            self._leading = True
        if waiter is not None and not waiter.wait_is_promoted():
            return
        self._lead()

    def wait_async(self) -> "asyncio.Future[None]":
        """The same for a task: await what is returned. Cancelling waits for the round's end."""
        loop = asyncio.get_running_loop()
        with self._lock:
            future = self._tasks.get(loop)
            if future is None:
                self._check_open()
                future = self._tasks[loop] = _RoundFuture(loop=loop)
            if not self._leading:
                self._leading = True
                self._helper.ask()
        return future

    def close(self) -> None:
        """Take no more waiters and end the helper thread."""
        with self._lock:
            self._closed = True
        self._helper.end()

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerClosed("the ledger is closed; open it again")

    def _lead(self) -> None:
        """One round, then hand the lead on."""
        with self._lock:
            threads, self._threads = self._threads, []
            tasks, self._tasks = self._tasks, {}
        error: PenstockError | None = None
        try:
            self._sync()
        except PenstockError as failure:
            error = failure
        for thread in threads:
            thread.answer(error)
        for loop, future in tasks.items():
            _answer_later(loop, future, error)
        with self._lock:
            if self._threads:
                self._threads.pop(0).promote()
            elif self._tasks:
                self._helper.ask()
            else:
                self._leading = False
        if error is not None:
            raise _again(error)


class _WaitingThread:
    """A thread that waits to be answered, or to become the leader."""

    __slots__ = ("_error", "_promoted", "_signal")

    def __init__(self) -> None:
        self._signal = Lock()
        self._signal.acquire()
        self._promoted = False
        self._error: PenstockError | None = None

    def wait_is_promoted(self) -> bool:
        self._signal.acquire()
        if self._error is not None:
            raise _again(self._error)
        return self._promoted

    def answer(self, error: PenstockError | None) -> None:
        self._error = error
        self._signal.release()

    def promote(self) -> None:
        self._promoted = True
        self._signal.release()


class _RoundFuture(asyncio.Future[None]):
    """Shared by all tasks of a round, so one task's cancellation must not cancel it."""

    def cancel(self, msg: object = None) -> bool:
        return False


class _Helper:
    """A thread that leads rounds for asyncio tasks; started when first needed."""

    def __init__(self, lead: Callable[[], None], name: str) -> None:
        self._lead = lead
        self._name = name
        self._asked = Event()
        self._ended = False
        self._thread: Thread | None = None

    def ask(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name=f"penstock commit {self._name}", daemon=True)
            self._thread.start()
        self._asked.set()

    def end(self) -> None:
        self._ended = True
        self._asked.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._asked.wait()
            if self._ended:
                return
            self._asked.clear()
            try:
                self._lead()
            except PenstockError:
                pass  # the tasks were told


def _answer_later(
    loop: asyncio.AbstractEventLoop, future: _RoundFuture, error: PenstockError | None
) -> None:
    def answer() -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(_again(error))

    try:
        loop.call_soon_threadsafe(answer)
    except RuntimeError:
        pass  # the loop is closed; nobody waits there any more


def _again(error: PenstockError) -> PenstockError:
    """The same error for another waiter, each with a traceback of its own."""
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
