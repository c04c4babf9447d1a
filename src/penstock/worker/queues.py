"""The queue of a worker: opened by it or by the user, for threads or for tasks, here or remote."""

from collections.abc import Sequence
from os import PathLike
from typing import Protocol, cast

import penstock.aio
from penstock.aio import AsyncQueue
from penstock.checking import path_of
from penstock.client.async_queue import AsyncRemoteQueue
from penstock.client.queue import RemoteQueue
from penstock.model import LeasedMessage, Stats
from penstock.queue import Queue

AnyQueue = str | PathLike[str] | Queue | AsyncQueue | RemoteQueue | AsyncRemoteQueue


class WorkQueue(Protocol):
    """What a worker needs of a queue."""

    async def lease(
        self,
        n: int = 1,
        *,
        lease_s: float | None = None,
        wait_s: float = 0.0,
        group: str = ...,
        holder: str = "",
    ) -> list[LeasedMessage]: ...

    async def ack(self, leased: Sequence[LeasedMessage]) -> object: ...

    async def nack(self, leased: Sequence[LeasedMessage], reason: str = "") -> object: ...

    async def extend(self, leased: Sequence[LeasedMessage], lease_s: float) -> None: ...

    async def release(self, leased: Sequence[LeasedMessage]) -> object: ...

    async def stats(self) -> Stats: ...

    async def close(self) -> None: ...


def check_queue(queue: AnyQueue) -> AnyQueue:
    """Return an open queue as it is, and a path or URL as text."""
    return queue if hasattr(queue, "lease") else path_of(queue)


async def open_for_tasks(queue: AnyQueue) -> tuple[WorkQueue, bool]:
    """The queue's face for tasks, and whether it is the worker's to close."""
    if isinstance(queue, Queue):
        return cast(WorkQueue, _other_face(queue)), False
    if isinstance(queue, RemoteQueue):
        return cast(WorkQueue, queue.for_tasks()), True
    if isinstance(queue, str | PathLike):
        return cast(WorkQueue, await penstock.aio.open(queue)), True
    return cast(WorkQueue, queue), False


def name_of(queue: WorkQueue) -> str:
    """Return the path or URL of a queue, for the log."""
    return str(getattr(queue, "url", None) or getattr(queue, "path", "a queue"))


def _other_face(queue: Queue) -> AsyncQueue:
    """A directory has one writer, but its core may have several faces."""
    return AsyncQueue(queue._core)
