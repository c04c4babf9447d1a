"""Locks for `with` that no interrupt leaves acquired.

An interrupt is an exception that a signal handler raises (Ctrl-C), or that another thread sends.
The interpreter raises it only at certain points, and behind a call of C code is one of them.

Up to Python 3.13, `with lock:` has no such point between acquiring a lock and the block. Python
3.14 enters the block by an ordinary call. An interrupt behind that call skips the block and its
end, so a lock of `threading` stays acquired, and its next user waits forever. The locks below
release it. Their end of a block is C code, because Python code can be interrupted at its start.

`Lock` and `RLock` are those of `threading` where these are safe: the others cost 0.1 microseconds.
"""

import sys
import threading
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeVar, cast

L = TypeVar("L")

_ONE_CALL = ((),)  # without arguments


class GuardedLock:
    """A lock around one that has `__enter__` and `__exit__` in C; a `threading.Lock` by default."""

    # A slot is no method: `with` fetches the C function in it, and calls that.
    __slots__ = ("__exit__", "_enter", "acquire", "locked", "release")

    def __init__(self, lock: Any = None) -> None:
        lock = threading.Lock() if lock is None else lock
        self._enter, self.__exit__ = lock.__enter__, lock.__exit__
        for name in ("acquire", "locked", "release"):
            if hasattr(lock, name):
                setattr(self, name, getattr(lock, name))

    def __enter__(self) -> bool:
        acquired: list[bool] = []
        try:
            # One call of C code that both acquires the lock and records it.
            acquired.extend(starmap(self._enter, _ONE_CALL))
        except BaseException:
            if acquired:
                self.__exit__(None, None, None)
            raise
        return True


class GuardedRLock(type(threading.RLock())):  # type: ignore[misc]
    """A lock that its thread can acquire several times."""

    __slots__ = ()

    def __enter__(self) -> bool:
        acquired: list[bool] = []
        try:
            acquired.extend(starmap(self.acquire, _ONE_CALL))
        except BaseException:
            if acquired:
                self.release()
            raise
        return True


if TYPE_CHECKING:
    from threading import Lock as Lock
    from threading import RLock as RLock
elif sys.version_info >= (3, 14):
    Lock, RLock = GuardedLock, GuardedRLock
else:
    Lock, RLock = threading.Lock, threading.RLock


def guarded(lock: L) -> L:
    """Return a lock of C code, made safe for `with` if this version of Python needs that."""
    if sys.version_info < (3, 14) or isinstance(lock, GuardedLock):
        return lock
    return cast("L", GuardedLock(lock))
