"""Background threads that are started where a lock may be held.

`threading.Thread.start` waits until the new thread reports that it runs. An exception that is
raised in the starting thread from outside (`PyThreadState_SetAsyncExc`) may land in the new thread
before that, and the wait never ends. `BackgroundThread.start` does not wait.
"""

from _thread import start_new_thread
from collections.abc import Callable

from penstock.locks import Lock


class BackgroundThread:
    """One thread that runs one function, until it returns once."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._has_begun = False
        self._running = Lock()  # held by the thread that runs the function

    def start(self) -> None:
        """Start the thread, unless it runs or has run. Return at once.

        If an exception ended the thread, or the thread ended before it began, start another.
        """
        if not self._has_begun:
            start_new_thread(self._work, ())

    def join(self) -> None:
        """Return when the function has returned. Call it here if no thread has begun to.

        If an interrupt ends this call, the next one does what is left.
        """
        self._work()
        with self._running:
            pass

    def _work(self) -> None:
        if self._has_begun:
            return
        # `with`, not `acquire`: an interrupt right after `acquire` would leave the lock taken.
        with self._running:
            if self._has_begun:
                return  # another thread was quicker
            self._has_begun = True
            try:
                self._run()
            except BaseException:
                self._has_begun = False
                raise
