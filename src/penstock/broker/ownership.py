"""Work that one broker of a store at a time does: each piece has a lock, which its owner renews.

If the owner dies, its lock ends and another broker takes the work over. If it cannot renew in time,
it stops the work by itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from penstock.broker.store import Store
from penstock.errors import PenstockError

log = logging.getLogger("penstock.broker")

LOCK_S = 30.0  # how long a broker that died keeps its work
RENEW_S = 10.0


class Ownership:
    """The locks that a broker has on work of one kind."""

    def __init__(self, store: Store, owner: str, kind: str) -> None:
        self._store = store
        self._owner = owner
        self._kind = kind
        self._until: dict[str, float] = {}  # the ends of the locks, in loop time

    def __contains__(self, id: str) -> bool:
        return id in self._until

    @property
    def ids(self) -> list[str]:
        return list(self._until)

    async def take(self, id: str) -> bool:
        """Take or renew a lock. Return False if another broker has it."""
        began = asyncio.get_running_loop().time()
        if not await self._store.acquire_lock(self._name(id), self._owner, LOCK_S):
            return False
        self._until[id] = began + LOCK_S
        return True

    async def release(self, id: str) -> None:
        """Let another broker take the lock at once."""
        if self.forget(id):
            try:
                await self._store.release_lock(self._name(id), self._owner)
            except (PenstockError, OSError) as error:
                log.warning("a lock is not released, and ends by itself: %s", error)

    def forget(self, id: str) -> bool:
        """Note that another broker has, or may have, the lock. Return whether it was ours."""
        return self._until.pop(id, None) is not None

    def lapsed(self) -> list[str]:
        """Return the work whose locks could not be renewed in time."""
        now = asyncio.get_running_loop().time()
        return [id_ for id_, until in self._until.items() if until <= now]

    def _name(self, id: str) -> str:
        return f"{self._kind}:{id}"


class Renewal:
    """A task that calls `update` after each change, and in time to renew the locks."""

    def __init__(
        self, update: Callable[[], Awaitable[None]], *, is_needed: Callable[[], bool]
    ) -> None:
        """`update` must not raise. `is_needed`: whether there is work to renew, or to take over."""
        self._update = update
        self._is_needed = is_needed
        self._has_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def changed(self) -> None:
        self._has_changed.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S if self._is_needed() else None):
                    await self._has_changed.wait()
            self._has_changed.clear()
            await self._update()
