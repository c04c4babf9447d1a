"""Namespaces and queues as the broker knows them, and how it creates them.

`Catalogue` is a cache of the store's catalogue, fed by the store's notices. A name that is missing
from it may have been created through another broker a moment ago: the store has the last word.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from penstock.broker.limits import is_heavy
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import (
    NamespaceInfo,
    Pending,
    Publishable,
    QueueIdentities,
    QueueInfo,
    Store,
)
from penstock.checking import check_number, check_whole
from penstock.clock import Clock
from penstock.errors import (
    AlreadyExists,
    InvalidInput,
    NoSuchGroup,
    NoSuchNamespace,
    NoSuchQueue,
    PenstockError,
    QuotaExceeded,
    Unavailable,
)
from penstock.model import MAIN_GROUP_NAME, Published
from penstock.names import QueueName, check_name
from penstock.queue.behaviours import as_new
from penstock.queue.delivering import check_count
from penstock.queue.drafting import check_messages
from penstock.queue.settings import (
    MAX_LEASE_S,
    MIN_LEASE_S,
    QueueSettings,
    refuse_storage_settings,
)

_T = TypeVar("_T")
_MOST_DELETIONS = 10  # of one queue, while one call is under way
_CHANGEABLE = ("defaults", "max_queues", "max_bytes")


class Catalogue:
    """The namespaces and queues of a store. Looking costs nothing; changes go to the store."""

    def __init__(self, store: Store, settings: Callable[[], BrokerSettings], clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._namespaces: dict[str, NamespaceInfo] = {}
        self.identities: dict[QueueName, int] = {}  # with their identities
        self._by_identity: dict[int, QueueName] = {}
        self._turn = asyncio.Lock()  # one creation at a time, so that `max_queues` is exact

    # -- notices of the store ----------------------------------------------------------------------

    def replace(self, namespaces: Sequence[NamespaceInfo], queues: QueueIdentities) -> None:
        """Replace everything that is known."""
        self._namespaces = {one.name: one for one in namespaces}
        self.identities = dict(queues)
        self._by_identity = {identity: queue for queue, identity in queues.items() if identity}

    def set_namespace(self, name: str, namespace: NamespaceInfo | None) -> None:
        if namespace is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = namespace

    def set_queue(self, queue: QueueName, identity: int | None) -> bool:
        """Set or (None) remove a queue. Return whether this ends a queue of another identity."""
        old = self.identities.pop(queue, None)
        if old:
            self._by_identity.pop(old, None)
        if identity is not None:
            self.identities[queue] = identity
            self._by_identity[identity] = queue
        return old is not None and old not in (0, identity)

    # -- looking -----------------------------------------------------------------------------------

    def namespaces(self) -> list[NamespaceInfo]:
        return sorted(self._namespaces.values())

    def namespace(self, name: str) -> NamespaceInfo:
        found = self._namespaces.get(name)
        if found is None:
            raise NoSuchNamespace(f"there is no namespace {name!r}")
        return found

    def queues(self, namespace: str | None = None) -> list[QueueName]:
        return sorted(q for q in self.identities if namespace is None or q.namespace == namespace)

    def __contains__(self, queue: QueueName) -> bool:
        return queue in self.identities

    def queue_of(self, identity: int) -> QueueName | None:
        return self._by_identity.get(identity)

    def settings_of_new(
        self, namespace: str, settings: Mapping[str, Any] | None = None
    ) -> QueueSettings:
        """Return the settings that a queue created now would begin with."""
        known = self._namespaces.get(namespace)
        defaults = {} if known is None else known.defaults
        return self._settings().queue_settings(defaults, settings or {})

    def check_supported(self, settings: Iterable[str]) -> None:
        """Raise InvalidInput for settings of files if the store has no files."""
        if self._store.files is None:
            refuse_storage_settings(settings)

    def has_byte_quota(self, name: str) -> bool:
        namespace = self._namespaces.get(name)
        return namespace is not None and namespace.max_bytes > 0

    # -- changing ----------------------------------------------------------------------------------

    async def create_namespace(
        self, name: str, defaults: Mapping[str, Any], max_queues: int, max_bytes: int
    ) -> NamespaceInfo:
        check_name("namespace", name)
        new = NamespaceInfo(name, self._clock.now_ns(), defaults, max_queues, max_bytes)
        self._check_namespace(new)
        if not await self._store.replace_namespace(None, new):
            raise AlreadyExists(f"namespace {name!r} exists already")
        return new

    async def change_namespace(self, name: str, changes: Mapping[str, Any]) -> NamespaceInfo:
        for field in changes:
            if field not in _CHANGEABLE:
                raise InvalidInput(
                    f"a namespace has no setting {field!r}; the settings are "
                    f"{', '.join(_CHANGEABLE)}"
                )
        while True:
            old = self.namespace(name)
            new = old._replace(**changes)
            self._check_namespace(new)
            if await self._store.replace_namespace(old, new):
                return new

    def _check_namespace(self, namespace: NamespaceInfo) -> None:
        if not isinstance(namespace.defaults, Mapping):
            raise InvalidInput("defaults must be a mapping of queue settings to values")
        self.check_supported(namespace.defaults)
        self._settings().queue_settings(namespace.defaults)  # refuses what no queue could have
        check_whole("max_queues", namespace.max_queues, 0, 1 << 40)
        check_whole("max_bytes", namespace.max_bytes, 0, 1 << 60)

    async def create_queue(self, queue: QueueName, settings: Mapping[str, Any]) -> QueueInfo:
        QueueName.checked(*queue)
        self.check_supported(settings)
        async with self._turn:
            wanted = self.settings_of_new(queue.namespace, settings)
            most = self._settings().max_queues
            if queue not in self and len(self.identities) >= most:
                raise QuotaExceeded(f"the broker has {most} queues, its maximum (max_queues)")
            return await self._store.create(queue, wanted)

    async def ensure_queue(self, queue: QueueName) -> None:
        """Create a queue, unless another call or broker did so in the meantime."""
        if queue not in self:
            try:
                await self.create_queue(queue, {})
            except AlreadyExists:
                pass


class CreateOnUse:
    """Runs calls in queues that are created if necessary. Counts the refusals.

    A call is checked against the settings of the new queue first: a bad call creates nothing.
    """

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        clock: Clock,
        metrics: BrokerMetrics,
        *,
        is_allowed: Callable[[], bool],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._clock = clock
        self._metrics = metrics
        self._is_allowed = is_allowed

    def do(
        self,
        queue: QueueName,
        work: Callable[[], Future[_T]],
        check: Callable[[], None] | None = None,
        *,
        if_missing: _T | None = None,
        takes_long: Callable[[], bool] | None = None,
    ) -> Future[_T]:
        """Do the work in a queue. If the queue is missing, `check` the call and create it.

        If `takes_long`, the check runs in a thread. With `if_missing`, create nothing, and return
        that if the queue does not exist.
        """
        try:
            if queue in self._catalogue or not self._is_allowed():
                answer = work()  # the store refuses what it does not have
            elif takes_long is not None and takes_long():
                return self._count(asyncio.ensure_future(self._create_and_do(queue, work, check)))
            else:
                if check is not None:
                    check()
                if if_missing is not None:
                    answer = asyncio.ensure_future(self._try(work, if_missing))
                else:
                    answer = asyncio.ensure_future(self._create_and_do(queue, work))
        except PenstockError as error:
            self._metrics.refused(error)
            raise
        return self._count(answer)

    def publish(self, queue: QueueName, messages: Sequence[Publishable]) -> Future[list[Published]]:
        """Publish to a queue that is created if necessary, also if it is deleted meanwhile."""
        return self.do(
            queue,
            self.unless_deleted(queue, partial(self._store.publish, queue, messages)),
            lambda: self.check_publish(queue, messages),
            takes_long=lambda: is_heavy(messages),
        )

    def unless_deleted(
        self, queue: QueueName, work: Callable[[], Future[_T]], if_missing: _T | None = None
    ) -> Callable[[], Future[_T]]:
        """Return work that creates the queue again if it is deleted meanwhile.

        With `if_missing`, return that instead.
        """
        if self._store.direct(queue) is not None or not self._is_allowed():
            return work  # done at once, or not to be done in a new queue

        def again_if_deleted() -> Future[_T]:
            answer = work()
            if answer.done():
                return answer
            return asyncio.ensure_future(self._unless_deleted(queue, answer, work, if_missing))

        return again_if_deleted

    def refused(
        self,
        error: BaseException,
        queue: QueueName,
        messages: Sequence[Publishable],
        pending: Pending,
    ) -> None:
        """Answer a publish that another broker refused. Publish again if the queue was deleted."""
        if isinstance(error, NoSuchQueue) and self._is_allowed():
            publish = partial(self._store.publish, queue, messages)
            anew = asyncio.ensure_future(self._create_anew_and_do(queue, publish))
            self._count(anew).add_done_callback(partial(_tell, pending))
            return
        if isinstance(error, PenstockError):
            self._metrics.refused(error)
        pending.fail(error)

    async def _unless_deleted(
        self,
        queue: QueueName,
        answer: Future[_T],
        again: Callable[[], Future[_T]],
        if_missing: _T | None,
    ) -> _T:
        for _ in range(_MOST_DELETIONS):
            try:
                return await answer
            except NoSuchQueue:
                if if_missing is not None:
                    return if_missing
                await self._create_anew(queue)
                answer = again()
        return await answer

    async def _create_anew(self, queue: QueueName) -> None:
        """Create a queue that is in the catalogue, but was deleted, perhaps by another broker."""
        with suppress(AlreadyExists):
            await self._catalogue.create_queue(queue, {})

    async def _create_anew_and_do(self, queue: QueueName, work: Callable[[], Future[_T]]) -> _T:
        await self._create_anew(queue)
        return await self._unless_deleted(queue, work(), work, None)

    def _count(self, answer: Future[_T]) -> Future[_T]:
        answer.add_done_callback(self._count_refusal)
        return answer

    def _count_refusal(self, done: Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, PenstockError):
            self._metrics.refused(error)

    @staticmethod
    async def _try(work: Callable[[], Future[_T]], if_missing: _T) -> _T:
        """Another broker may have created the queue a moment ago."""
        try:
            return await work()
        except NoSuchQueue:
            return if_missing

    async def _create_and_do(
        self,
        queue: QueueName,
        work: Callable[[], Future[_T]],
        check: Callable[[], None] | None = None,
    ) -> _T:
        if check is not None:
            await asyncio.to_thread(check)
        await self._catalogue.ensure_queue(queue)
        return await work()

    def check_publish(self, queue: QueueName, messages: Sequence[Publishable]) -> None:
        """Raise an error if a new queue of this name would not take the messages."""
        settings = self._catalogue.settings_of_new(queue.namespace)
        check_messages(as_new(messages), settings, self._clock.now_ns())

    def check_lease(self, queue: QueueName, n: int, lease_s: float | None, group: str) -> None:
        """Raise an error if no new queue would take such a lease. A new one has one group."""
        check_count(n)
        if lease_s is not None:
            check_number("lease_s", lease_s, MIN_LEASE_S, MAX_LEASE_S)
        if group != MAIN_GROUP_NAME:
            raise NoSuchGroup(f"there is no group {group!r}: queue {queue} does not exist")


def _tell(pending: Pending, done: Future[Any]) -> None:
    error = Unavailable("the broker is stopping") if done.cancelled() else done.exception()
    if error is None:
        pending.succeed(done.result())
    else:
        pending.fail(error)
