"""A gate between threads: closed, and each opening lets one thread through."""

from threading import Lock


class Gate:
    """Closed at first. Each opening lets one thread through, which closes it behind itself."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let one through: one that waits, or the next that comes. Once, if it is open already."""
        try:
            self._lock.release()  # one call, so that no interrupt leaves it half done
        except RuntimeError:
            pass  # it is open

    def wait(self) -> None:
        """Go through, now or when it is opened. Ctrl-C ends the waiting."""
        self._lock.acquire()
