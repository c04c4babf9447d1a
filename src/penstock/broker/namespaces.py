"""The broker's calls about namespaces: sets of queues of one owner, with defaults and quotas."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from penstock.broker.access import Admit, Caller
from penstock.broker.background import Background
from penstock.broker.catalogue import Catalogue
from penstock.broker.store import NamespaceInfo, Store
from penstock.errors import NotEmpty
from penstock.names import QueueName
from penstock.operations import GetStats, Verb


class NamespaceCalls:
    """The namespace calls of a broker. `deleted` is called for each queue that was deleted."""

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        admit: Admit,
        background: Background,
        deleted: Callable[[QueueName], Awaitable[None]],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._admit = admit
        self._background = background
        self._deleted = deleted

    def list(self, caller: Caller) -> list[NamespaceInfo]:
        """Return the namespaces that the caller may read."""
        self._admit(caller, Verb.READ, caller.any_namespace)
        every = self._catalogue.namespaces()
        return [one for one in every if caller.may(Verb.READ, one.name)]

    def get(self, caller: Caller, name: str) -> NamespaceInfo:
        """Return a namespace. Raise NoSuchNamespace if there is none of that name."""
        self._admit(caller, Verb.READ, name)
        return self._catalogue.namespace(name)

    async def create(
        self,
        caller: Caller,
        name: str,
        *,
        defaults: Mapping[str, Any] | None = None,
        max_queues: int = 0,
        max_bytes: int = 0,
    ) -> NamespaceInfo:
        """Create a namespace. Raise AlreadyExists if it exists; see `change`."""
        self._admit(caller, Verb.MANAGE, name)
        return await self._catalogue.create_namespace(name, defaults or {}, max_queues, max_bytes)

    async def change(self, caller: Caller, name: str, changes: Mapping[str, Any]) -> NamespaceInfo:
        """Change `defaults`, `max_queues` or `max_bytes`. Existing queues keep their settings."""
        self._admit(caller, Verb.MANAGE, name)
        return await self._catalogue.change_namespace(name, changes)

    async def delete(self, caller: Caller, name: str, *, force: bool = False) -> None:
        """Delete a namespace. Raise NotEmpty if it has queues, unless forced."""
        self._admit(caller, Verb.MANAGE, name)

        async def delete() -> None:
            for queue in await self._store.delete_namespace(name, force=force):
                await self._deleted(queue)

        await self._background.run(delete())

    async def delete_empty(self, caller: Caller, name: str) -> None:
        """Delete a namespace and its queues. Raise NotEmpty if one of them holds a message."""
        self._admit(caller, Verb.MANAGE, name)
        self._catalogue.namespace(name)
        queues = self._catalogue.queues(name)
        for queue in queues:
            held = (await self._store.run(queue, GetStats())).unfinished
            if held:
                raise NotEmpty(
                    f"queue {queue} holds {held} messages: consume or purge them, or delete the "
                    f"queue, before its namespace"
                )
        for queue in queues:
            await self._background.run(self._delete_empty_queue(queue))
        await self._store.delete_namespace(name, force=False)

    async def _delete_empty_queue(self, queue: QueueName) -> None:
        await self._store.delete(queue, if_empty=True)
        await self._deleted(queue)
