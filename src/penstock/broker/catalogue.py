"""Namespaces and queues: making them, their defaults, and how much a namespace may hold."""

import asyncio
from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from penstock.broker.background import Background
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import NamespaceInfo, QueueInfo, Store
from penstock.checking import check_whole
from penstock.clock import Clock
from penstock.errors import (
    AlreadyExists,
    InvalidInput,
    NoSuchNamespace,
    NotEmpty,
    QuotaExceeded,
)
from penstock.model import NS
from penstock.names import QueueName, check_name
from penstock.queue.settings import QueueSettings

_T = TypeVar("_T")
_CHANGEABLE = ("defaults", "max_queues", "max_bytes")


class Catalogue:
    """What there is. Changes are made one at a time, each to its end; looking costs nothing."""

    def __init__(
        self,
        store: Store,
        settings: Callable[[], BrokerSettings],
        clock: Clock,
        background: Background,
    ) -> None:
        self._store = store
        self._background = background
        self._settings = settings
        self._clock = clock
        self._namespaces: dict[str, NamespaceInfo] = {}
        self._recount_at_ns: dict[str, int] = {}  # by namespace: when its bytes may be added up
        self._turn = asyncio.Lock()

    async def load(self) -> None:
        self._namespaces = {one.name: one for one in await self._store.namespaces()}

    # -- namespaces --------------------------------------------------------------------------------

    def namespaces(self) -> list[NamespaceInfo]:
        return sorted(self._namespaces.values())

    def namespace(self, name: str) -> NamespaceInfo:
        found = self._namespaces.get(name)
        if found is None:
            raise NoSuchNamespace(f"there is no namespace {name!r}")
        return found

    async def create_namespace(
        self, name: str, defaults: Mapping[str, Any], max_queues: int, max_bytes: int
    ) -> NamespaceInfo:
        check_name("namespace", name)

        async def create() -> NamespaceInfo:
            if name in self._namespaces:
                raise AlreadyExists(f"there is a namespace {name!r} already")
            new = NamespaceInfo(name, self._clock.now_ns(), defaults, max_queues, max_bytes)
            return await self._save(new)

        return await self._in_turn(create())

    async def change_namespace(self, name: str, changes: Mapping[str, Any]) -> NamespaceInfo:
        async def change() -> NamespaceInfo:
            known = self.namespace(name)
            for field in changes:
                if field not in _CHANGEABLE:
                    raise InvalidInput(
                        f"a namespace has no {field!r} to be changed: there are "
                        f"{', '.join(_CHANGEABLE)}"
                    )
            return await self._save(known._replace(**changes))

        return await self._in_turn(change())

    def _in_turn(self, change: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Make a change when those before are made, also if the caller is cancelled meanwhile."""

        async def in_turn() -> _T:
            async with self._turn:
                return await change

        return self._background.run(in_turn())

    async def _save(self, namespace: NamespaceInfo) -> NamespaceInfo:
        if not isinstance(namespace.defaults, Mapping):
            raise InvalidInput("defaults are a mapping of queue settings to values")
        self._settings().queue_settings(namespace.defaults)  # refuses what no queue could have
        check_whole("max_queues", namespace.max_queues, 0, 1 << 40)
        check_whole("max_bytes", namespace.max_bytes, 0, 1 << 60)
        await self._store.save_namespace(namespace)
        self._namespaces[namespace.name] = namespace
        return namespace

    async def delete_namespace(self, name: str, *, force: bool) -> list[QueueName]:
        """The queues that went with it."""

        async def delete() -> list[QueueName]:
            self.namespace(name)
            queues = self._store.queues(name)
            if queues and not force:
                raise NotEmpty(
                    f"namespace {name!r} has {len(queues)} queues ({queues[0].name} …): delete "
                    f"them first, or use force"
                )
            await self._store.delete_namespace(name)
            del self._namespaces[name]
            self._recount_at_ns.pop(name, None)
            return queues

        return await self._in_turn(delete())

    # -- queues ------------------------------------------------------------------------------------

    async def ensure_queue(self, queue: QueueName) -> None:
        """Make it, and its namespace, unless another call did so meanwhile."""

        async def ensure() -> None:
            if not self._store.has(queue):
                await self._create(queue, {})

        await self._in_turn(ensure())

    async def create_queue(self, queue: QueueName, settings: Mapping[str, Any]) -> QueueInfo:
        async def create() -> QueueInfo:
            if self._store.has(queue):
                raise AlreadyExists(f"there is a queue {queue} already")
            return await self._create(queue, settings)

        return await self._in_turn(create())

    async def _create(self, queue: QueueName, settings: Mapping[str, Any]) -> QueueInfo:
        QueueName.checked(*queue)
        known = self._namespaces.get(queue.namespace)
        wanted = self.settings_of_new(queue.namespace, settings)
        self._check_count(queue.namespace, known)
        if known is None:
            await self._save(NamespaceInfo(queue.namespace, self._clock.now_ns(), {}))
        return await self._store.create(queue, wanted)

    def settings_of_new(
        self, namespace: str, settings: Mapping[str, Any] | None = None
    ) -> QueueSettings:
        """What a queue made now would begin with."""
        known = self._namespaces.get(namespace)
        defaults = {} if known is None else known.defaults
        return self._settings().queue_settings(defaults, settings or {})

    def _check_count(self, name: str, namespace: NamespaceInfo | None) -> None:
        most = self._settings().max_queues
        if len(self._store.queues()) >= most:
            raise QuotaExceeded(f"there are {most} queues already, as many as may be (max_queues)")
        quota = namespace.max_queues if namespace is not None else 0
        if quota and len(self._store.queues(name)) >= quota:
            raise QuotaExceeded(f"namespace {name!r} has {quota} queues, as many as it may")

    def _may_recount(self, name: str) -> bool:
        """Once a second, so that publishes that are refused cost little."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._recount_at_ns.get(name, 0):
            return False
        self._recount_at_ns[name] = now_ns + NS
        return True

    def has_byte_quota(self, name: str) -> bool:
        """Is there a limit to the bytes of a namespace?"""
        namespace = self._namespaces.get(name)
        return namespace is not None and namespace.max_bytes > 0

    def check_bytes(self, name: str) -> None:
        """Refuse to publish where the namespace holds as much as it may."""
        namespace = self._namespaces.get(name)
        if namespace is None or not namespace.max_bytes:
            return
        held = self._store.bytes_of(name)
        if held >= namespace.max_bytes and self._may_recount(name):
            held = self._store.bytes_of(name, recount=True)  # a compaction may have made room
        if held >= namespace.max_bytes:
            raise QuotaExceeded(
                f"the queues of namespace {name!r} hold {held} bytes, and may hold "
                f"{namespace.max_bytes}: consume and compact, or raise max_bytes"
            )
