"""Penstock: a durable message and task queue. One directory of files is the queue.

>>> import penstock, tempfile
>>> with penstock.open(tempfile.mkdtemp()) as queue:
...     id = queue.enqueue(b"hello", priority=9, headers={"kind": "greeting"})
...     queue.dequeue().payload
b'hello'
"""

from os import PathLike
from typing import TYPE_CHECKING, Unpack, cast

from penstock.checking import path_of
from penstock.errors import InvalidInput, PenstockError
from penstock.model import DeadLetter, LeasedMessage, Message, RetryInfo, Stats, Why
from penstock.queue import NewMessage, Queue, QueueSettings
from penstock.queue.measuring import MetricsCollector, OperationTimes
from penstock.queue.queue import open_queue
from penstock.queue.retry import FailedAttempt, RetryPolicy
from penstock.queue.streaming import Stopper

if TYPE_CHECKING:
    from penstock.client import OpenOptions

__version__ = "0.2.0"


def open(  # noqa: A001
    path: str | PathLike[str],
    *,
    read_only: bool = False,
    metrics: MetricsCollector | None = None,
    retry_policy: RetryPolicy | None = None,
    **settings: Unpack["OpenOptions"],
) -> Queue:
    """Open the queue in a directory, or make one there; or the queue of a broker, at a URL.

    Settings are those of `QueueSettings`; they are stored with the queue, so that they need to be
    given only once. With `read_only` nothing on disk changes, and a writer may be at work; it takes
    no settings.
    `metrics` is told of each operation of this handle: its duration, outcome and messages.
    `retry_policy` decides when a failed message is tried again, instead of the backoff settings.

    `http://host:port/namespace/queue` gives the same methods over HTTP. Settings are then those of
    `penstock.client.ClientOptions`, such as `key=`; `queue=` where the URL is only the broker's. To
    a type checker it is a `Queue` as well; `penstock.client.connect` says what it really is.
    """
    if isinstance(path, str) and path.startswith(("http://", "https://")):
        from penstock.client import connect, options_of  # needs the extra `client`

        if read_only:
            raise InvalidInput("read_only is for directories: a key says what a client may do")
        if retry_policy is not None:
            raise InvalidInput("retry_policy is for directories: a broker retries by its settings")
        queue = settings.pop("queue", None)
        return cast(
            Queue, connect(path, queue=queue, options=options_of(settings), metrics=metrics)
        )
    if read_only and settings:
        raise InvalidInput(
            f"read_only changes nothing, so that {', '.join(settings)} would not be stored: give "
            f"settings to the writer"
        )
    return open_queue(
        path_of(path),
        settings,
        read_only=read_only,
        create=not read_only,
        metrics=metrics,
        retry_policy=retry_policy,
    )


__all__ = [
    "DeadLetter",
    "FailedAttempt",
    "LeasedMessage",
    "Message",
    "MetricsCollector",
    "NewMessage",
    "OperationTimes",
    "PenstockError",
    "Queue",
    "QueueSettings",
    "RetryInfo",
    "RetryPolicy",
    "Stats",
    "Stopper",
    "Why",
    "open",
]
