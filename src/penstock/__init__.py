"""Penstock: a durable message and task queue. One directory of files is the queue.

>>> import penstock, tempfile
>>> with penstock.open(tempfile.mkdtemp()) as queue:
...     id = queue.enqueue(b"hello", priority=9, headers={"kind": "greeting"})
...     queue.dequeue().payload
b'hello'
"""

from os import PathLike
from typing import TYPE_CHECKING, Literal, Unpack, overload

from penstock.checking import is_url, path_of
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.ledger.compaction import CompactionResult
from penstock.model import DeadLetter, LeasedMessage, Message, RetryInfo, Stats, StorageStats, Why
from penstock.operations.scheduling import Schedule, ScheduleDetails, ScheduleState
from penstock.queue import NewMessage, Queue, QueueSettings, StorageSettings
from penstock.queue.facade import AnyQueue
from penstock.queue.metrics import MetricsCollector, OperationTimes, check_collector, measured
from penstock.queue.opening import (
    check_directory_options,
    check_shared_options,
    check_url_options,
    shared_package,
)
from penstock.queue.queue import open_queue
from penstock.queue.retry import FailedAttempt, RetryPolicy
from penstock.queue.serializing import AsyncObjectQueue, ObjectQueue, Serializer
from penstock.queue.settings import QueueOptions
from penstock.queue.streaming import Stopper

if TYPE_CHECKING:
    from penstock.client import ClientKeywords, OpenOptions, RemoteQueue
    from penstock.shared import SharedQueue

__version__ = "0.2.0"


@overload
def open(  # noqa: A001
    path: str | PathLike[str],
    *,
    shared: Literal[True],
    metrics: MetricsCollector | None = ...,
    **settings: Unpack["OpenOptions"],
) -> "SharedQueue": ...


@overload
def open(  # noqa: A001
    path: PathLike[str],
    *,
    read_only: bool = ...,
    shared: Literal[False] = ...,
    metrics: MetricsCollector | None = ...,
    retry_policy: RetryPolicy | None = ...,
    **settings: Unpack[QueueOptions],
) -> Queue: ...


@overload
def open(  # noqa: A001
    path: str,
    *,
    read_only: bool = ...,
    shared: Literal[False] = ...,
    metrics: MetricsCollector | None = ...,
    retry_policy: RetryPolicy | None = ...,
    **settings: Unpack["OpenOptions"],
) -> AnyQueue: ...


@overload
def open(  # noqa: A001
    path: str | PathLike[str],
    *,
    shared: bool,
    metrics: MetricsCollector | None = ...,
    **settings: Unpack["OpenOptions"],
) -> AnyQueue: ...


def open(  # noqa: A001
    path: str | PathLike[str],
    *,
    read_only: bool = False,
    shared: bool = False,
    metrics: MetricsCollector | None = None,
    retry_policy: RetryPolicy | None = None,
    **settings: Unpack["OpenOptions"],
) -> AnyQueue:
    """Open the queue in a directory, or create one there; or open the queue at a URL.

    Settings are those of `QueueSettings` and `StorageSettings`. They are stored with the queue, so
    give them only once.
    With `read_only` nothing on disk changes, and another process may write; it takes no settings.
    `metrics` observes each operation of this handle: its duration, outcome and messages.
    `retry_policy` decides when a failed message is tried again, instead of the backoff settings.

    With `shared` any number of processes use the directory: the first one serves the others, and
    another takes over when it ends. `queue=` names a queue of a directory that has several.

    `http://host:port/namespace/queue` gives the same methods over HTTP. Settings are then those of
    `penstock.client.ClientOptions`, such as `key=`, and `queue=` if the URL is only the broker's.
    `grpc://host:port/namespace/queue` is the same over gRPC.

    For a type checker, a `Path` gives a `Queue`. Text may be either, so it gives an `AnyQueue`,
    which has every method of both. `connect` is the same for a URL and gives a `RemoteQueue`.
    """
    if is_url(path):
        from penstock.client import connect, options_of  # needs the extra `client`

        check_url_options(read_only, retry_policy, shared=shared)
        queue = settings.pop("queue", None)
        return connect(path, queue=queue, options=options_of(settings), metrics=metrics)
    if shared:
        check_shared_options(read_only, retry_policy)
        check_collector(metrics)
        found: SharedQueue = shared_package().open_shared(path_of(path), settings)
        return found if metrics is None else measured(found, metrics, SystemClock())
    check_directory_options(read_only, settings)
    return open_queue(
        path_of(path),
        settings,
        read_only=read_only,
        create=not read_only,
        metrics=metrics,
        retry_policy=retry_policy,
    )


def connect(
    url: str, *, metrics: MetricsCollector | None = None, **options: Unpack["ClientKeywords"]
) -> "RemoteQueue":
    """Return the queue at a URL. Nothing is sent before the first call.

    Options are those of `penstock.client.ClientOptions`; `queue=` if the URL is only the broker's.
    """
    from penstock.client import connect, options_of

    queue = options.pop("queue", None)
    return connect(url, queue=queue, options=options_of(options), metrics=metrics)


__all__ = [
    "AnyQueue",
    "AsyncObjectQueue",
    "CompactionResult",
    "DeadLetter",
    "FailedAttempt",
    "LeasedMessage",
    "Message",
    "MetricsCollector",
    "NewMessage",
    "ObjectQueue",
    "OperationTimes",
    "PenstockError",
    "Queue",
    "QueueSettings",
    "RetryInfo",
    "RetryPolicy",
    "Schedule",
    "ScheduleDetails",
    "ScheduleState",
    "Serializer",
    "Stats",
    "Stopper",
    "StorageSettings",
    "StorageStats",
    "Why",
    "connect",
    "open",
]
