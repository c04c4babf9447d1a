"""Changes that survive an interrupt.

An asynchronous exception (`KeyboardInterrupt`, a time limit) may end a call between any two steps.
The log is then right, and memory may be half changed. So every use of the state stands in

    with core.lock, core.change: ...

where `change` marks the state as torn on the way in and as whole on the way out. A state that is
found torn is folded from the log before anything else happens. Nothing is saved from a torn state.

Both halves matter: the lock is a C object, so no interrupt falls between taking it and the block.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.queue.core import QueueCore


_COUNT = re.compile(r"count=(\d+)")


def depth_of(lock: Any) -> Callable[[], int]:
    """Return a function that tells how many times the caller, who holds the lock, has taken it.

    >>> from threading import RLock
    >>> lock = RLock()
    >>> with lock, lock:
    ...     depth_of(lock)()
    2
    """
    if hasattr(lock, "_recursion_count"):
        return lock._recursion_count  # type: ignore[no-any-return]
    return lambda: depth_in(repr(lock))  # Python before 3.11.6, and 3.12.0


def depth_in(text: str) -> int:
    """Return the depth that the text of a lock tells.

    >>> depth_in("<locked _thread.RLock object owner=139 count=2 at 0x7f>")
    2
    """
    found = _COUNT.search(text)
    assert found is not None, text
    return int(found[1])


class Change:
    """One use of the state. The caller holds the core's lock, and may hold it already."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core
        self._depth = depth_of(core.lock)

    def __enter__(self) -> None:
        core, depth = self._core, self._depth
        if depth() == 1:
            if core.torn:
                core.mend()
            core.torn = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        core, depth = self._core, self._depth
        if depth() > 1:
            return
        # Our own errors are raised before a change, or after it. Others may come anywhere.
        if kind is None or issubclass(kind, PenstockError):
            core.torn = False
        else:
            core.arrived()  # threads that wait must look again
