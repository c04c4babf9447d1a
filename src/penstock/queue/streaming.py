"""Messages as they come, handled one after the other: for threads, and for tasks.

For every kind of queue that can say how leased messages are had (`_jobs`), here or elsewhere.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import overload

from penstock.errors import ReceiptInvalid
from penstock.model import MAIN_GROUP_NAME, LeasedMessage

log = logging.getLogger("penstock.queue")


class Streaming(ABC):
    """`stream` for threads."""

    @overload
    def stream(
        self,
        handler: None = None,
        *,
        group: str = ...,
        lease_s: float | None = ...,
        idle_s: float | None = ...,
        batch: int = ...,
    ) -> Iterator[LeasedMessage]: ...

    @overload
    def stream(
        self,
        handler: Callable[[LeasedMessage], object],
        *,
        group: str = ...,
        lease_s: float | None = ...,
        idle_s: float | None = ...,
        batch: int = ...,
    ) -> int: ...

    def stream(
        self,
        handler: Callable[[LeasedMessage], object] | None = None,
        *,
        group: str = MAIN_GROUP_NAME,
        lease_s: float | None = None,
        idle_s: float | None = None,
        batch: int = 32,
    ) -> Iterator[LeasedMessage] | int:
        """Messages as they come, until nothing came for `idle_s` (None: for ever).

        With a handler, it is called for each: acked if it returns, nacked if it raises; the answer
        is how many succeeded. Without, an iterator: settle each message, best by `with job:`.
        """
        jobs = self._jobs(group, lease_s, idle_s, batch)
        if handler is None:
            return jobs
        succeeded = 0
        for job in jobs:
            try:
                with job:
                    handler(job)
                succeeded += 1
            except Exception as error:
                tell_failure(job, error)
        return succeeded

    @abstractmethod
    def _jobs(
        self, group: str, lease_s: float | None, idle_s: float | None, batch: int
    ) -> Iterator[LeasedMessage]:
        """Leased messages, until none came for `idle_s`; what was leased ahead is given back."""


class AsyncStreaming(ABC):
    """`stream` for tasks."""

    @overload
    def stream(
        self,
        handler: None = None,
        *,
        group: str = ...,
        lease_s: float | None = ...,
        idle_s: float | None = ...,
        batch: int = ...,
    ) -> AsyncIterator[LeasedMessage]: ...

    @overload
    def stream(
        self,
        handler: Callable[[LeasedMessage], Awaitable[object]],
        *,
        group: str = ...,
        lease_s: float | None = ...,
        idle_s: float | None = ...,
        batch: int = ...,
    ) -> Awaitable[int]: ...

    def stream(
        self,
        handler: Callable[[LeasedMessage], Awaitable[object]] | None = None,
        *,
        group: str = MAIN_GROUP_NAME,
        lease_s: float | None = None,
        idle_s: float | None = None,
        batch: int = 32,
    ) -> AsyncIterator[LeasedMessage] | Awaitable[int]:
        """Messages as they come, until nothing came for `idle_s` (None: for ever).

        With a handler, await it: the handler is called for each message, which is acked if it
        returns and nacked if it raises; the answer is how many succeeded. Without, iterate over it
        (`async for`) and settle each message.
        """
        jobs = self._jobs(group, lease_s, idle_s, batch)
        return jobs if handler is None else self._handle(jobs, handler)

    async def _handle(
        self,
        jobs: AsyncIterator[LeasedMessage],
        handler: Callable[[LeasedMessage], Awaitable[object]],
    ) -> int:
        succeeded = 0
        async for job in jobs:
            try:
                async with self._settled(job):
                    await handler(job)
                succeeded += 1
            except Exception as error:
                tell_failure(job, error)
        return succeeded

    @abstractmethod
    def _jobs(
        self, group: str, lease_s: float | None, idle_s: float | None, batch: int
    ) -> AsyncIterator[LeasedMessage]:
        """Leased messages, until none came for `idle_s`; what was leased ahead is given back."""

    @asynccontextmanager
    async def _settled(self, job: LeasedMessage) -> AsyncIterator[None]:
        """Ack at the end of the block, nack if it raises."""
        try:
            yield
        except BaseException as error:
            await self.nack(job, f"{type(error).__name__}: {error}")
            raise
        await self.ack(job)

    @abstractmethod
    def ack(self, leased: LeasedMessage, /) -> Awaitable[object]:
        """The work is done."""

    @abstractmethod
    def nack(self, leased: LeasedMessage, /, reason: str = "") -> Awaitable[object]:
        """The work failed."""


def tell_failure(job: LeasedMessage, error: Exception) -> None:
    """Log what became of a job whose handler, or whose settling, raised."""
    if isinstance(error, ReceiptInvalid):
        log.warning("message %s was settled elsewhere while it was handled", job.id)
    else:
        log.error("handling message %s failed; it was nacked", job.id, exc_info=error)
