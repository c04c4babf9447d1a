"""What the embedded queues for threads (`queue.py`) and for tasks (`penstock.aio`) share.

They have the signatures and the waiting; all decisions are made by the behaviours.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from penstock.model import LeasedMessage, Settler
from penstock.queue.behaviours import Behaviours, half_time_ns
from penstock.queue.core import QueueCore
from penstock.queue.settings import QueueSettings
from penstock.queue.streaming import Stopper, is_stopped


class Handle:
    """An open queue, for its users."""

    def __init__(self, core: QueueCore, settler: Settler) -> None:
        self._core = core
        self._ledger = core.ledger
        self._behaviours = Behaviours(core, settler)

    def __repr__(self) -> str:
        ledger = self._ledger
        state = ", closed" if ledger.is_closed else ", read-only" if ledger.read_only else ""
        return f"<{type(self).__name__} {ledger.path!r}{state}>"

    @property
    def path(self) -> str:
        return self._ledger.path

    @property
    def settings(self) -> QueueSettings:
        return self._core.settings

    def metrics(self) -> dict[str, object]:
        """Return what this handle did since it was opened: counts, and latency percentiles."""
        return self._core.metrics.snapshot()

    @staticmethod
    def _waking(stopper: Stopper | None, wake: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext() if stopper is None else stopper.waking(wake)

    @contextmanager
    def _one_by_one(
        self, leased: list[LeasedMessage], stopper: Stopper | None
    ) -> Iterator[Iterator[LeasedMessage]]:
        """Messages of one lease call, to be handed on; those that are not, or would not last, are
        given back. So they are if the queue is closed meanwhile."""
        core, clock, left = self._core, self._core.clock, leased[::-1]
        half_ns = half_time_ns(leased[0], clock.now_ns())

        def jobs() -> Iterator[LeasedMessage]:
            while clock.now_ns() < half_ns and not is_stopped(stopper):
                try:
                    job = left.pop()
                except IndexError:  # handed on, or given back by another thread
                    return
                yield job

        def give_back() -> None:
            with core.lock, core.change:
                ahead = left[:]
                left.clear()
                if ahead and not self._ledger.is_stopped:
                    self._behaviours.settling.give_back(ahead)

        core.before_close.append(give_back)
        try:
            self._ledger.check_open()
            yield jobs()
        finally:
            core.before_close.remove(give_back)
            if left:
                give_back()
