"""Changes that survive an interrupt.

An asynchronous exception (`KeyboardInterrupt`, a time limit) may end a call between any two steps.
The log is then right, and memory may be half changed. So every use of the state stands in

    with core.lock, core.change: ...

where `change` marks the state as torn on the way in and as whole on the way out. A state that is
found torn is folded from the log before anything else happens. Nothing is saved from a torn state.

Both halves matter: the lock is a C object, so no interrupt falls between taking it and the block.
"""

from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.queue.core import QueueCore


class Change:
    """One use of the state. The caller holds the core's lock, and may hold it already."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core
        self._depth = core.lock._recursion_count  # type: ignore[attr-defined]

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
