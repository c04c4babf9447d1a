"""Messages as they come, handled one after the other: for threads, and for tasks.

For every kind of queue that can say how leased messages are had (`_jobs`), here or elsewhere.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Thread
from typing import overload

from penstock.checking import Duration
from penstock.errors import InvalidInput, PenstockError, ReceiptInvalid
from penstock.model import MAIN_GROUP_NAME, LeasedMessage
from penstock.queue.handlers import check_done, check_handler, check_plain_handler, done

log = logging.getLogger("penstock.queue")


class Stopper:
    """Stops a `stream`, or a `lease` that waits, from outside; nothing is raised there.

    The message that is being handled is finished first, and what was leased ahead is given back.
    One stopper may stop several streams.

    >>> stopper = Stopper()
    >>> stopper.stop()
    >>> stopper.stopped
    True
    """

    def __init__(self) -> None:
        self._stopped = False
        self._wakers: list[Callable[[], None]] = []

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        """Stop. From any thread, any task, or a signal handler; does not wait."""
        self._stopped = True
        # In a thread: a signal handler may interrupt the stream between its last look at `stopped`
        # and its wait, while it holds the lock that waking it needs.
        Thread(target=self._wake, name="penstock stop", daemon=True).start()

    def _wake(self) -> None:
        for wake in tuple(self._wakers):
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have `wake` called, in another thread, when it stops."""
        self._wakers.append(wake)
        try:
            yield
        finally:
            self._wakers.remove(wake)


def is_stopped(stopper: Stopper | None) -> bool:
    if stopper is None:
        return False
    if not isinstance(stopper, Stopper):
        raise InvalidInput(f"stopper is {stopper!r}; it must be a penstock.Stopper")
    return stopper.stopped


class Streaming(ABC):
    """`stream` for threads."""

    @overload
    def stream(
        self,
        handler: None = None,
        *,
        group: str = ...,
        lease_s: Duration | None = ...,
        idle_s: Duration | None = ...,
        batch: int = ...,
        stopper: Stopper | None = ...,
    ) -> Iterator[LeasedMessage]: ...

    @overload
    def stream(
        self,
        handler: Callable[[LeasedMessage], object],
        *,
        group: str = ...,
        lease_s: Duration | None = ...,
        idle_s: Duration | None = ...,
        batch: int = ...,
        stopper: Stopper | None = ...,
    ) -> int: ...

    def stream(
        self,
        handler: Callable[[LeasedMessage], object] | None = None,
        *,
        group: str = MAIN_GROUP_NAME,
        lease_s: Duration | None = None,
        idle_s: Duration | None = None,
        batch: int = 32,
        stopper: Stopper | None = None,
    ) -> Iterator[LeasedMessage] | int:
        """Messages as they come, until nothing came for `idle_s` (None: for ever), or until
        `stopper.stop()`.

        With a handler, it is called for each: acked if it returns, nacked if it raises; the answer
        is how many succeeded. A coroutine function is refused: see `penstock.aio`. Without a
        handler, an iterator: settle each message, best by `with job:`.
        """
        if handler is not None:
            check_plain_handler(handler)
        is_stopped(stopper)  # refuses a bad one
        jobs = self._jobs(group, lease_s, idle_s, batch, stopper)
        if handler is None:
            return jobs
        succeeded = 0
        for job in jobs:
            try:
                with job:
                    check_done(handler(job))
                succeeded += 1
            except Exception as error:
                tell_failure(job, error)
        return succeeded

    @abstractmethod
    def _jobs(
        self,
        group: str,
        lease_s: Duration | None,
        idle_s: Duration | None,
        batch: int,
        stopper: Stopper | None,
    ) -> Iterator[LeasedMessage]:
        """Leased messages, until none came for `idle_s` or it was stopped. What was leased ahead is
        given back."""


class AsyncStreaming(ABC):
    """`stream` for tasks."""

    @overload
    def stream(
        self,
        handler: None = None,
        *,
        group: str = ...,
        lease_s: Duration | None = ...,
        idle_s: Duration | None = ...,
        batch: int = ...,
        stopper: Stopper | None = ...,
    ) -> AsyncIterator[LeasedMessage]: ...

    @overload
    def stream(
        self,
        handler: Callable[[LeasedMessage], object],
        *,
        group: str = ...,
        lease_s: Duration | None = ...,
        idle_s: Duration | None = ...,
        batch: int = ...,
        stopper: Stopper | None = ...,
    ) -> Awaitable[int]: ...

    def stream(
        self,
        handler: Callable[[LeasedMessage], object] | None = None,
        *,
        group: str = MAIN_GROUP_NAME,
        lease_s: Duration | None = None,
        idle_s: Duration | None = None,
        batch: int = 32,
        stopper: Stopper | None = None,
    ) -> AsyncIterator[LeasedMessage] | Awaitable[int]:
        """Messages as they come, until nothing came for `idle_s` (None: for ever), or until
        `stopper.stop()`.

        With a handler, await it: the handler is called for each message, which is acked if it
        returns and nacked if it raises; the answer is how many succeeded. The handler is a
        coroutine function, or a function that does not block the loop. Without one, iterate over
        it (`async for`) and settle each message.
        """
        if handler is not None:
            check_handler(handler)
        is_stopped(stopper)  # refuses a bad one
        jobs = self._jobs(group, lease_s, idle_s, batch, stopper)
        return jobs if handler is None else self._handle(jobs, handler)

    async def _handle(
        self,
        jobs: AsyncIterator[LeasedMessage],
        handler: Callable[[LeasedMessage], object],
    ) -> int:
        succeeded = 0
        async for job in jobs:
            try:
                async with self._settled(job):
                    await done(handler(job))
                succeeded += 1
            except Exception as error:
                tell_failure(job, error)
        return succeeded

    @abstractmethod
    def _jobs(
        self,
        group: str,
        lease_s: Duration | None,
        idle_s: Duration | None,
        batch: int,
        stopper: Stopper | None,
    ) -> AsyncIterator[LeasedMessage]:
        """Leased messages, until none came for `idle_s` or it was stopped. What was leased ahead is
        given back."""

    @asynccontextmanager
    async def _settled(self, job: LeasedMessage) -> AsyncIterator[None]:
        """Ack at the end of the block, nack if it raises."""
        try:
            yield
        except BaseException as error:
            try:
                await self.nack(job, f"{type(error).__name__}: {error}")
            except PenstockError:
                if isinstance(error, Exception):
                    raise  # a cancellation goes on as it is
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
