"""Create a queue when it is first used, if that is allowed.

What the new queue would refuse is found out first: a bad call creates nothing.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.broker.catalogue import Catalogue
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.store import Publishable, Store
from penstock.checking import check_number
from penstock.clock import Clock
from penstock.errors import NoSuchGroup, NoSuchQueue, PenstockError
from penstock.model import MAIN_GROUP_NAME
from penstock.names import QueueName
from penstock.queue.behaviours import as_new
from penstock.queue.delivering import check_count
from penstock.queue.drafting import check_messages
from penstock.queue.settings import MAX_LEASE_S, MIN_LEASE_S

_T = TypeVar("_T")


class CreateOnUse:
    """Run calls in queues that are created if need be. Count the refusals."""

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        clock: Clock,
        metrics: BrokerMetrics,
        *,
        makes_queues: Callable[[], bool],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._clock = clock
        self._metrics = metrics
        self._makes_queues = makes_queues

    def do(
        self,
        queue: QueueName,
        work: Callable[[], Future[_T]],
        check: Callable[[], None] | None = None,
        *,
        makes: bool = True,
        takes_long: Callable[[], bool] | None = None,
    ) -> Future[_T]:
        """Do the work in a queue; make that first if it is not there and may be made, and `check`
        has nothing against it. If that `takes_long`, it is asked in a thread. Without `makes`, the
        answer is then an empty list."""
        try:
            if self._store.has(queue):
                answer = work()
                if isinstance(answer, asyncio.Task):  # it had to be opened, say
                    answer.add_done_callback(self._count_refusal)
                return answer
            if not self._makes_queues():
                raise NoSuchQueue(f"there is no queue {queue}: create it first")
            if takes_long is not None and takes_long():
                return asyncio.ensure_future(self._make_and_do(queue, work, check))
            if check is not None:
                check()
            if not makes:
                nothing: Future[Any] = asyncio.get_running_loop().create_future()
                nothing.set_result([])
                return nothing
        except PenstockError as error:
            self._metrics.refused(error)
            raise
        return asyncio.ensure_future(self._make_and_do(queue, work))

    def check_publish(self, queue: QueueName, messages: Sequence[Publishable]) -> None:
        """Would a new queue of this name take them?"""
        self._catalogue.check_bytes(queue.namespace)
        settings = self._catalogue.settings_of_new(queue.namespace)
        check_messages(as_new(messages), settings, self._clock.now_ns())

    def check_lease(self, queue: QueueName, n: int, lease_s: float | None, group: str) -> None:
        """May so much be asked of any queue? A new one has one group only."""
        check_count(n)
        if lease_s is not None:
            check_number("lease_s", lease_s, MIN_LEASE_S, MAX_LEASE_S)
        if group != MAIN_GROUP_NAME:
            raise NoSuchGroup(f"there is no group {group!r}: neither is there a queue {queue}")

    def _count_refusal(self, done: Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, PenstockError):
            self._metrics.refused(error)

    async def _make_and_do(
        self,
        queue: QueueName,
        work: Callable[[], Future[_T]],
        check: Callable[[], None] | None = None,
    ) -> _T:
        try:
            if check is not None:
                await asyncio.to_thread(check)
            await self._catalogue.ensure_queue(queue)
            return await work()
        except PenstockError as error:
            self._metrics.refused(error)
            raise
