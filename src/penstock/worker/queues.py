"""The queue of a worker: opened by it or by the user, for threads or for tasks, here or remote."""

from os import PathLike

import penstock.aio
from penstock.checking import path_of
from penstock.queue.facade import AnyAsyncQueue, AnyQueue

WorkerQueue = str | PathLike[str] | AnyQueue | AnyAsyncQueue


def check_queue(queue: WorkerQueue) -> str | AnyQueue | AnyAsyncQueue:
    """Return an open queue as it is, and a path or URL as text."""
    if isinstance(queue, str | PathLike) or not hasattr(queue, "lease"):
        return path_of(queue)
    return queue


async def open_for_tasks(queue: str | AnyQueue | AnyAsyncQueue) -> tuple[AnyAsyncQueue, bool]:
    """Return the queue for tasks, and whether the worker has to close it."""
    if isinstance(queue, str):
        return await penstock.aio.open(queue), True
    if isinstance(queue, AnyQueue):
        return queue.for_tasks(), True  # closing it leaves the user's queue open
    return queue, False


def name_of(queue: AnyAsyncQueue) -> str:
    """Return the path or URL of a queue, for the log."""
    # A shared directory has a URL too, that of its socket.
    return str(getattr(queue, "path", None) or getattr(queue, "url", "a queue"))
