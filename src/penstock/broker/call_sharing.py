"""Brokers of one store tell each other which clients called: a client's rate is one for all.

Each broker admits calls by its own buckets, and asks no other. Once a second it tells the others
how many calls of each client it admitted, and they charge their buckets for them. So a client that
spreads its calls over several brokers may exceed its rate for about a second; then it waits until
the debt is paid, and in the long run it gets its rate.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from penstock.broker.limits import ClientBuckets
from penstock.broker.store import Store
from penstock.errors import PenstockError

log = logging.getLogger("penstock.broker")

QUESTION = "calls"
_SHARE_S = 1.0


class CallSharing:
    """The task of one broker that tells the others, while there is a limit."""

    def __init__(self, store: Store, limits: Callable[[], ClientBuckets | None]) -> None:
        self._store = store
        self._limits = limits
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin if there is a limit. Call it again after the settings changed."""
        if self._task is None and self._limits() is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_SHARE_S)
            try:
                await self.share()
            except (PenstockError, OSError) as error:
                log.info("other brokers are not told of the clients' calls: %s", error)

    async def share(self) -> None:
        """Tell the other brokers of the calls that were admitted since the last time."""
        limits = self._limits()
        taken = [] if limits is None else limits.taken()
        if taken:
            await self._store.ask_others([QUESTION, *taken])

    def received(self, taken: Sequence[Sequence[Any]]) -> None:
        """Charge clients for calls that another broker admitted."""
        limits = self._limits()
        if limits is not None:
            for client, calls in taken:
                limits.charge(client, calls)
