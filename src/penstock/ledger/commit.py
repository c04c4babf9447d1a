"""Group commit: everyone who waits for the disk shares one sync.

Whoever finds nobody syncing becomes the leader: syncs for all who wait, and hands the lead to one
of those who came in the meantime. A round covers what was written before it started, so a caller
who arrives during a round waits for the next. Threads lead themselves; for asyncio tasks, which
must not block, a helper thread leads.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

from penstock.codec import Gate
from penstock.errors import LedgerClosed, LedgerError, PenstockError


class GroupCommit:
    """Rounds of `sync`, shared by threads and asyncio tasks alike."""

    def __init__(self, sync: Callable[[], None], *, name: str) -> None:
        self._sync = sync
        self._lock = Lock()
        self._leading = False  # someone is in a sync, or was told to start one
        self._gathering = _Round()  # those who wait for the next sync
        self._helper = _Helper(self._lead, name)
        self._closed = False

    def wait(self) -> None:
        """Return when everything written before this call is durable."""
        with self._lock:
            if self._closed:
                raise _closed()
            mine = self._joined()
        self._until_durable(mine)

    def wait_async(self) -> "asyncio.Future[None]":
        """The same for a task: await what is returned."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._lock:
            if self._closed:
                raise _closed()
            tasks = self._gathering.tasks.get(loop)
            if tasks is not None:
                tasks.append(future)
            else:
                self._gathering.tasks[loop] = [future]
                # Not at once: the tasks that are ready to run now can share the round.
                loop.call_soon(self._lead_for_tasks)
        return future

    def close(self) -> None:
        """Take no more waiters, answer those there are, and end the helper thread."""
        with self._lock:
            self._closed = True
            last = self._joined()  # nobody can come behind it
        try:
            self._until_durable(last)
        except PenstockError:
            pass  # those who waited were told
        self._helper.end()

    def _joined(self) -> "_Round | None":
        """The round to wait for; None for who has to lead it. Hold the lock."""
        if not self._leading:
            self._leading = True
            return None
        mine = self._gathering
        mine.threads += 1
        return mine

    def _until_durable(self, mine: "_Round | None") -> None:
        if mine is None:
            self._lead(self._gathering)  # nobody else begins a new one
        elif self._is_promoted(mine):
            self._lead(mine)
        elif mine.error is not None:
            raise _again(mine.error)

    def _is_promoted(self, mine: "_Round") -> bool:
        """Wait at the gate of a round; True if it was opened for one, to lead."""
        try:
            mine.gate.wait()
        except BaseException:  # Ctrl-C
            self._leave(mine)
            raise
        if mine.is_over:
            mine.gate.open()  # for the next one
            return False
        with self._lock:
            mine.threads -= 1
        return True

    def _leave(self, mine: "_Round") -> None:
        with self._lock:
            mine.threads -= 1
            if mine.gate.pass_now():
                if mine.is_over:
                    mine.gate.open()
                else:
                    self._pass_lead()  # it was opened for us

    def _lead_for_tasks(self) -> None:
        with self._lock:
            if self._gathering.tasks and not self._leading:
                self._leading = True
                self._helper.ask(self._gathering)

    def _lead(self, mine: "_Round") -> None:
        """One round, then hand the lead on."""
        with self._lock:
            if mine is self._gathering:
                self._gathering = _Round()
        try:
            self._sync()
        except Exception as failure:
            mine.error = failure
        except BaseException:  # Ctrl-C: the others of the round still wait for a sync
            self._helper.ask(mine)
            raise
        mine.is_over = True
        with self._lock:
            self._pass_lead()  # first: the next sync runs while those of this round wake up
        mine.gate.open()
        for loop, tasks in mine.tasks.items():
            _answer_later(loop, tasks, mine.error)
        if mine.error is not None:
            raise mine.error

    def _pass_lead(self) -> None:
        following = self._gathering
        if following.threads:
            following.gate.open()
        elif following.tasks:
            self._helper.ask(following)
        else:
            self._leading = False


class _Round:
    """Those who wait for one sync.

    Threads wait at the gate. It is opened for one of them, to lead; and when the round is over,
    for all: each lets the next one through, so that they do not all fight for the interpreter.
    """

    __slots__ = ("error", "gate", "is_over", "tasks", "threads")

    def __init__(self) -> None:
        self.gate = Gate()
        self.threads = 0
        self.tasks: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        self.is_over = False
        self.error: Exception | None = None


class _Helper:
    """A thread that leads rounds for those who cannot; started when first needed."""

    def __init__(self, lead: Callable[[_Round], None], name: str) -> None:
        self._lead = lead
        self._name = name
        self._asked: SimpleQueue[_Round | None] = SimpleQueue()
        self._thread: Thread | None = None

    def ask(self, round_: _Round) -> None:
        """Lead that round. By one caller at a time: whoever has the lead."""
        if self._thread is None:
            self._thread = Thread(
                target=self._run, name=f"penstock commit {self._name}", daemon=True
            )
            self._thread.start()
        self._asked.put(round_)

    def end(self) -> None:
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (round_ := self._asked.get()) is not None:
            try:
                self._lead(round_)
            except PenstockError:
                pass  # those who waited were told


def _answer_later(
    loop: asyncio.AbstractEventLoop,
    tasks: "list[asyncio.Future[None]]",
    error: Exception | None,
) -> None:
    try:
        loop.call_soon_threadsafe(_answer, tasks, error)
    except RuntimeError:
        pass  # the loop is closed; nobody waits there any more


def _answer(tasks: "list[asyncio.Future[None]]", error: Exception | None) -> None:
    for future in tasks:
        if not future.done():  # done: the task was cancelled
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(_again(error))


def _closed() -> LedgerClosed:
    return LedgerClosed("the ledger is closed; open it again")


def _again(error: Exception) -> Exception:
    """The same error for another waiter, each with a traceback of its own."""
    if isinstance(error, PenstockError):
        copy: Exception = type(error)(*error.args)
    else:
        copy = LedgerError(f"the sync for this call failed: {error!r}")
    copy.__cause__ = error
    return copy
