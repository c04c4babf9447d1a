"""Wake-ups of one open queue: messages that are due or expire, leases that end, callers that wait.

A tick promotes due messages, and expires leases and messages with keys. The timer fires for the
next one. Few are done in the event loop; many in a thread, while other calls wait for their turn.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.embedded.queue_threads import QueueThreads
from penstock.errors import PenstockError
from penstock.model import NS
from penstock.names import QueueName
from penstock.queue.core import QueueCore

if TYPE_CHECKING:
    from penstock.broker.embedded.timer import Timer

log = logging.getLogger("penstock.broker")

MOST_DUE_IN_LOOP = 1000  # more leases that ended, or delayed messages, are for a thread
QUIET_S = 1.0  # how long a look at what is due next is good for
_TROUBLE_S = 1.0  # between two attempts to tick a queue that takes no writes


class Wakeups:
    """Plans and runs the ticks of a queue, and reports its ready messages."""

    def __init__(
        self,
        name: QueueName,
        core: QueueCore,
        timer: "Timer[QueueName]",
        threads: QueueThreads,
        on_ready: Callable[[QueueName], None],
        sync_soon: Callable[[], None],
    ) -> None:
        self._name = name
        self._core = core
        self._timer = timer
        self._threads = threads
        self._on_ready = on_ready
        self._sync_soon = sync_soon
        self._loop = asyncio.get_running_loop()
        self._is_durable = core.settings.storage.sync == "always"
        self._is_reporting = False  # `_report` is about to be called
        self.watchers = 0
        self._quiet_until_ns = 0  # nothing is due before that, in monotonic time
        self.is_ticking = False  # a thread is about to tick, or does so
        self._has_tick_failed = False  # in a thread: the loop tries it then

    # -- callers that wait -------------------------------------------------------------------------

    def watch(self) -> None:
        self.watchers += 1
        if self.watchers == 1:
            self._core.listeners.append(self._arrived)
        self.plan()

    def unwatch(self) -> None:
        self.watchers -= 1
        if not self.watchers:
            self._core.listeners.remove(self._arrived)

    def _arrived(self) -> None:
        """Report ready messages. Called from the loop, or from any other thread."""
        try:
            is_in_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_in_loop = False
        if not is_in_loop:
            self._loop.call_soon_threadsafe(self._arrived_elsewhere)
            return
        if not self._is_durable:
            self._on_ready(self._name)
        elif not self._is_reporting:
            # After the round of syncs has begun. Otherwise it would include the lease's own event,
            # and a waiting call would be answered after two syncs instead of one.
            self._is_reporting = True
            self._loop.call_soon(self._report)

    def _arrived_elsewhere(self) -> None:
        """Plan what another thread changed: its calls set no timer."""
        self.plan()
        self._on_ready(self._name)

    def _report(self) -> None:
        self._is_reporting = False
        self._on_ready(self._name)

    # -- planning ----------------------------------------------------------------------------------

    def plan(self) -> None:
        """Set the timer to the time when the next message is due, lease ends or key is freed."""
        if self._threads.is_occupied:
            return  # the call that holds the lock plans when it ends
        self._quiet_until_ns = 0
        with self._core.lock, self._core.change:
            wake_ns = self._core.next_wake_ns()
        if wake_ns is not None:
            # A stopped ledger records nothing, so that what is due stays due.
            least_s = _TROUBLE_S if self._core.ledger.is_stopped else 0.0
            self._timer.plan(self._name, max(wake_ns / 1e9, least_s))

    def plan_due(self, due_ns: int) -> None:
        """Set the timer for a message that was published to be due or to expire then, unless it is
        earlier."""
        after_s = max(due_ns - self._core.clock.now_ns(), 0) / 1e9
        if after_s < QUIET_S:
            self._quiet_until_ns = 0
        self._timer.plan(self._name, after_s)

    def plan_next_of_keys(self) -> None:
        """Plan again if messages have keys: the next message of a key may be a delayed one."""
        for group in self._core.state.groups.values():
            if group.may_free_others:
                self.plan()
                return

    def look_again(self) -> None:
        """Do not rely on an earlier look at what is due next."""
        self._quiet_until_ns = 0

    # -- ticks -------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Promote due messages and expire leases, when the timer fires."""
        if self._threads.is_occupied or self._tick_in_thread():
            return  # the call that holds the lock wakes the queue when it ends
        try:
            with self._core.lock, self._core.change:
                before = self._core.ledger.events.next_seq
                self._core.tick()
                happened = self._core.ledger.events.next_seq != before
                self._has_tick_failed = False
        except (PenstockError, OSError) as error:  # the other queues are woken all the same
            log.warning("what is due in %s waits %g s: %s", self._name, _TROUBLE_S, error)
            self._timer.plan(self._name, _TROUBLE_S)
            return
        if happened:
            self._sync_soon()
        if self.watchers:
            self._on_ready(self._name)
        self.plan()

    def is_free(self) -> bool:
        """Return whether a call may run in the loop now, of a queue in which many may be due.

        A call begins with a tick; if many messages are due before the timer has fired, this starts
        the tick in a thread.
        """
        if self._threads.is_occupied or self.is_ticking:
            return False
        is_quiet = self._core.clock.monotonic_ns() < self._quiet_until_ns
        return is_quiet or not self._tick_in_thread()

    def _tick_in_thread(self) -> bool:
        """Tick in a thread if many messages are due. Return False if the loop may tick."""
        core = self._core
        if self.is_ticking:
            return True
        if self._threads.is_closing or self._has_tick_failed or core.ledger.is_stopped:
            return False
        with core.lock, core.change:
            if not core.has_more_due(MOST_DUE_IN_LOOP):
                now_ns, wake_ns = core.clock.monotonic_ns(), core.next_wake_ns()
                quiet_ns = round(min(QUIET_S, core.settings.lease_s) * NS)  # new leases end later
                left_ns = quiet_ns if wake_ns is None else min(quiet_ns, wake_ns)
                self._quiet_until_ns = now_ns + left_ns
                return False
        self.is_ticking = True
        work = self._threads.run(self._tick, after=self._ticked)
        work.add_done_callback(_ignore_error)
        return True

    def _tick(self) -> None:
        """Do the work of `wake` in a thread."""
        self._has_tick_failed = True  # until it has succeeded
        with self._core.lock, self._core.change:
            self._core.tick()
            self._core.next_wake_ns()  # drops the ended leases
        self._has_tick_failed = False

    def _ticked(self) -> None:
        """Called in the loop after a tick in a thread. The queue is woken again after that."""
        self.is_ticking = False
        self._sync_soon()


def _ignore_error(done: "Future[None]") -> None:
    """Retrieve the error of a tick in a thread. The next tick, in the loop, raises it."""
    if not done.cancelled():
        done.exception()
