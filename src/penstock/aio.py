"""The queue for asyncio: the same methods, awaitable.

queue = await penstock.aio.open("./orders")
async with queue:
    await queue.enqueue(b"hello")
"""

import asyncio
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Literal, Unpack, overload

from penstock.checking import is_url, path_of
from penstock.clock import SystemClock
from penstock.queue.core import QueueCore
from penstock.queue.facade import AnyAsyncQueue
from penstock.queue.metrics import MetricsCollector, check_collector, measured
from penstock.queue.opening import (
    check_directory_options,
    check_shared_options,
    check_url_options,
    open_core,
    shared_package,
)
from penstock.queue.queue import AsyncQueue
from penstock.queue.retry import RetryPolicy
from penstock.queue.settings import QueueOptions

if TYPE_CHECKING:
    from penstock.client import AsyncRemoteQueue, ClientKeywords, OpenOptions

__all__ = ["AnyAsyncQueue", "AsyncQueue", "connect", "open"]


@overload
async def open(  # noqa: A001
    path: PathLike[str],
    *,
    read_only: bool = ...,
    shared: Literal[False] = ...,
    metrics: MetricsCollector | None = ...,
    retry_policy: RetryPolicy | None = ...,
    **settings: Unpack[QueueOptions],
) -> AsyncQueue: ...


@overload
async def open(  # noqa: A001
    path: str,
    *,
    read_only: bool = ...,
    shared: Literal[False] = ...,
    metrics: MetricsCollector | None = ...,
    retry_policy: RetryPolicy | None = ...,
    **settings: Unpack["OpenOptions"],
) -> AnyAsyncQueue: ...


@overload
async def open(  # noqa: A001
    path: str | PathLike[str],
    *,
    shared: bool,
    metrics: MetricsCollector | None = ...,
    **settings: Unpack["OpenOptions"],
) -> AnyAsyncQueue: ...


async def open(  # noqa: A001
    path: str | PathLike[str],
    *,
    read_only: bool = False,
    shared: bool = False,
    metrics: MetricsCollector | None = None,
    retry_policy: RetryPolicy | None = None,
    **settings: Unpack["OpenOptions"],
) -> AnyAsyncQueue:
    """Open the queue in a directory or at a URL, as `penstock.open` does."""
    if is_url(path):
        from penstock.client import connect_async, options_of  # needs the extra `client`

        check_url_options(read_only, retry_policy, shared=shared)
        queue = settings.pop("queue", None)
        return connect_async(path, queue=queue, options=options_of(settings), metrics=metrics)
    check_collector(metrics)
    if shared:
        check_shared_options(read_only, retry_policy)
        found: AnyAsyncQueue = await shared_package().open_shared_async(path_of(path), settings)
        return found if metrics is None else measured(found, metrics, SystemClock())
    check_directory_options(read_only, settings)
    opened = partial(
        open_core,
        path_of(path),
        settings,
        read_only=read_only,
        create=not read_only,
        retry_policy=retry_policy,
    )
    opening = asyncio.get_running_loop().run_in_executor(None, opened)
    try:
        core = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unused)  # the thread goes on, and takes the lock
        raise
    opened_queue = AsyncQueue(core)
    return opened_queue if metrics is None else measured(opened_queue, metrics, core.clock)


def connect(
    url: str, *, metrics: MetricsCollector | None = None, **options: Unpack["ClientKeywords"]
) -> "AsyncRemoteQueue":
    """Return the queue at a URL, as `penstock.connect` does."""
    from penstock.client import connect_async, options_of

    queue = options.pop("queue", None)
    return connect_async(url, queue=queue, options=options_of(options), metrics=metrics)


def _close_unused(opening: "asyncio.Future[QueueCore]") -> None:
    """Close a queue that was opened for a cancelled task."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
