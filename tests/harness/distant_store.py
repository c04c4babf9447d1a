"""A store as if it were another machine: no answer is there at once, and no count is known.

It wraps an embedded store and keeps the promises of `Store`, and no others: each call is carried
out later and answered later, errors come through the future, notices come late, there are no files.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock.broker import EmbeddedStore, NamespaceInfo, QueueName, Settlement
from penstock.broker.store import QueueIdentities, StoreListener

DELAY_S = 1e-5  # of the virtual clock
_CALLS = frozenset(
    {
        "replace_namespace",
        "delete_namespace",
        "create",
        "info",
        "find",
        "change",
        "delete",
        "publish",
        "settle",
        "run",
        "load_document",
        "replace_document",
        "acquire_lock",
        "release_lock",
    }
)


class DistantStore:
    """An embedded store behind a delay."""

    files = None

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(_called_later, found) if name in _CALLS else found

    async def open(self, listener: StoreListener) -> None:
        await self._store.open(_LateNotices(listener))

    def direct(self, queue: QueueName) -> None:
        return None

    def ready_hint(self, queue: QueueName, group: str) -> int | None:
        return None

    def lease(self, queue: QueueName, n: int, **options: Any) -> "Future[Any]":
        async def lease() -> Any:
            leased = await _called(partial(self._store.lease, queue, n, **options))
            try:
                await asyncio.sleep(DELAY_S)
            except asyncio.CancelledError:
                if leased:
                    await self._store.settle(
                        queue, [Settlement("release", one.receipt) for one in leased]
                    )
                raise
            return leased

        return asyncio.ensure_future(lease())


class _LateNotices:
    """Passes notices on: those of the catalogue in time for the answer, the others later."""

    def __init__(self, listener: StoreListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()

    def on_catalogue(self, namespaces: Sequence[NamespaceInfo], queues: QueueIdentities) -> None:
        self._listener.on_catalogue(namespaces, queues)

    def on_ready(self, queue: QueueName) -> None:
        self._loop.call_later(DELAY_S, self._listener.on_ready, queue)

    def on_namespace(self, name: str, namespace: NamespaceInfo | None) -> None:
        self._loop.call_soon(self._listener.on_namespace, name, namespace)

    def on_queue(self, queue: QueueName, identity: int | None) -> None:
        self._loop.call_soon(self._listener.on_queue, queue, identity)

    def on_document(self, name: str) -> None:
        self._loop.call_later(DELAY_S, self._listener.on_document, name)

    async def on_question(self, question: Any) -> Any:
        return await self._listener.on_question(question)


async def _called(call: Callable[[], "Future[Any]"]) -> Any:
    await asyncio.sleep(DELAY_S)
    return await call()


def _called_later(method: Callable[..., "Future[Any]"], *args: Any, **options: Any) -> Any:
    async def called() -> Any:
        result = await _called(partial(method, *args, **options))
        await asyncio.sleep(DELAY_S)
        return result

    return asyncio.ensure_future(called())
