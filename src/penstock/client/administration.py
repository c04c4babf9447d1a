"""A broker as a whole: its namespaces, queues and webhooks, for threads and for tasks.

Each method is one function that returns the call, or the sequence of calls, to be sent. Both
brokers get their methods from `BrokerMethods`: one returns the answers, the other awaitables.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, Unpack, overload
from urllib.parse import quote

from penstock.client import operation_calls
from penstock.client.address import QueueAddress, queue_path
from penstock.client.answers import Page, QueueDetails, details_of, every_row, first_page
from penstock.client.async_queue import AsyncRemoteQueue
from penstock.client.call import Call, CallSequence, get, nothing, post
from penstock.client.connection import AsyncConnection, Connection
from penstock.client.queue import RemoteQueue
from penstock.model import NS, Stats
from penstock.names import QueueName, check_name
from penstock.operations import GetStats
from penstock.operations.answers import time_ns
from penstock.queue.facade import ForTasks, ForThreads, Method
from penstock.queue.settings import QueueOptions

P = ParamSpec("P")
R = TypeVar("R")

_NAMESPACES = "/api/v1/namespaces"


class NamespaceDetails(NamedTuple):
    """A namespace of a broker."""

    name: str
    created_at: float  # Unix seconds
    defaults: Mapping[str, Any]  # settings that its new queues begin with
    max_queues: int  # 0: no quota
    max_bytes: int


class Webhook(NamedTuple):
    """A push subscription of a queue."""

    id: str
    namespace: str
    queue: str
    url: str
    style: str  # the format of deliveries: "standard" or "epochqueue"
    group: str
    retry_s: Sequence[float]  # the waits after the first, second … failure; the last one repeats
    created_at: float  # Unix seconds
    enabled: bool
    circuit: str  # "closed": deliveries succeed; "open": they fail, and are paused; "half_open"
    disabled_because: str = ""
    secret: str | None = None  # only in the answer to create_webhook and change_webhook


class WebhookDelivery(NamedTuple):
    """One attempt to push one message."""

    message_id: str
    attempt: int
    at: float  # Unix seconds
    took_s: float
    outcome: str  # "delivered", "retry", "dead" or "disabled"
    status: int  # of the response; 0: there was none
    reason: str = ""
    retry_in_s: float | None = None


# -- namespaces ------------------------------------------------------------------------------------


def _namespaces() -> CallSequence[list[NamespaceDetails]]:
    """Return all namespaces that the key may read, by name."""
    return every_row(first_page(_NAMESPACES, "namespaces", _reader(NamespaceDetails), {}))


def _create_namespace(
    name: str,
    *,
    defaults: Mapping[str, Any] | None = None,
    max_queues: int = 0,
    max_bytes: int = 0,
) -> Call[NamespaceDetails]:
    """Create a namespace; its new queues begin with `defaults`. Raise AlreadyExists if it exists.

    `max_queues` and `max_bytes` are its quotas; 0 means none.
    """
    body = {
        "name": check_name("namespace", name),
        "defaults": dict(defaults or {}),
        "max_queues": max_queues,
        "max_bytes": max_bytes,
    }
    return post(_NAMESPACES, _reply_reader(NamespaceDetails), body)


def _delete_namespace(name: str, *, force: bool = False) -> Call[None]:
    """Delete a namespace. Raise NotEmpty if it has queues; `force` deletes them too."""
    query = {"force": "true"} if force else None
    return post(_namespace_path(name), nothing, method="DELETE", query=query)


def _namespace_path(name: str) -> str:
    return f"{_NAMESPACES}/{check_name('namespace', name)}"


# -- queues ----------------------------------------------------------------------------------------


def _queues(namespace: str | None = None) -> CallSequence[list[str]]:
    """Return the names of the queues of a namespace, or of all namespaces."""
    if namespace is not None:
        spaces = [namespace]
    else:
        found = yield from _namespaces()
        spaces = [space.name for space in found]
    names: list[str] = []
    for space in spaces:
        names += yield from every_row(_queue_page(space))
    return names


def _queue_page(namespace: str) -> Call[Page[str]]:
    path = f"{_namespace_path(namespace)}/queues"
    return first_page(path, "queues", lambda item: f"{item['namespace']}/{item['name']}", {})


def _stats(queue: str) -> CallSequence[Stats]:
    """Return the counts of a queue."""
    return operation_calls.calls_of(_queue_path(queue), GetStats())


def _details(queue: str) -> Call[QueueDetails]:
    """Return a queue's age and settings."""
    return operation_calls.details(_queue_path(queue))


def _create_queue(queue: str, **settings: Unpack[QueueOptions]) -> Call[QueueDetails]:
    """Create a queue with some settings of `QueueSettings`.

    A queue that exists with the same settings stays as it is; raise AlreadyExists if they differ.
    """
    return _put_settings("PUT", queue, dict(settings))


def _change_queue(queue: str, **settings: Unpack[QueueOptions]) -> Call[QueueDetails]:
    """Change some settings of a queue; the others stay."""
    return _put_settings("PATCH", queue, dict(settings))


def _put_settings(method: str, queue: str, settings: dict[str, Any]) -> Call[QueueDetails]:
    return post(
        _queue_path(queue),
        lambda reply: details_of(reply.data),
        settings,
        method=method,
        idempotent=True,
    )


def _delete_queue(queue: str) -> Call[None]:
    """Delete a queue and all its messages."""
    return post(_queue_path(queue), nothing, method="DELETE")


def _queue_path(queue: str) -> str:
    return queue_path(QueueName.parse(queue))


# -- webhooks --------------------------------------------------------------------------------------


def _webhooks(queue: str) -> Call[list[Webhook]]:
    """Return the push subscriptions of a queue."""
    read = _reader(Webhook)
    return get(
        f"{_queue_path(queue)}/webhooks",
        lambda reply: [read(item) for item in reply.data["webhooks"]],
    )


def _create_webhook(
    queue: str,
    url: str,
    *,
    secret: str | None = None,
    group: str | None = None,
    retry_s: Sequence[float] | None = None,
) -> Call[Webhook]:
    """Push the messages of a queue to a URL. The answer has the secret that signs them.

    Without `group` the webhook gets its own, which starts with the next published message.
    """
    body = {"url": url, "secret": secret, "group": group, "retry_s": retry_s}
    return post(f"{_queue_path(queue)}/webhooks", _reply_reader(Webhook), body)


def _webhook(id: str) -> Call[Webhook]:
    """Return a push subscription by its id."""
    return get(_webhook_path(id), _reply_reader(Webhook))


def _change_webhook(
    id: str,
    *,
    url: str | None = None,
    secret: str | None = None,
    rotate_secret: bool = False,
    enabled: bool | None = None,
    retry_s: Sequence[float] | None = None,
) -> Call[Webhook]:
    """Change the given options; the others stay. An old secret signs as well for a day."""
    body = {
        "url": url,
        "secret": secret,
        "rotate_secret": rotate_secret or None,
        "enabled": enabled,
        "retry_s": retry_s,
    }
    return post(_webhook_path(id), _reply_reader(Webhook), body, method="PATCH")


def _delete_webhook(id: str) -> Call[None]:
    """Delete a push subscription."""
    return post(_webhook_path(id), nothing, method="DELETE")


def _webhook_deliveries(id: str) -> CallSequence[list[WebhookDelivery]]:
    """Return the latest delivery attempts of a push subscription, with their outcomes."""
    path = f"{_webhook_path(id)}/deliveries"
    return every_row(first_page(path, "deliveries", _reader(WebhookDelivery), {}))


def _webhook_path(id: str) -> str:
    return f"/api/v1/webhooks/{quote(str(id), safe='')}"


# -- reading answers -------------------------------------------------------------------------------


def _reader(kind: type[R]) -> Callable[[Mapping[str, Any]], R]:
    """Return a function that makes a NamedTuple of a JSON object with the same fields.

    A field with a default may be missing; fields that only a newer broker has are left out.
    """
    fields: Any = kind

    def read(data: Mapping[str, Any]) -> R:
        values = {
            name: data[name]
            for name in fields._fields
            if name in data or name not in fields._field_defaults
        }
        for name in ("created_at", "at"):
            if name in values:
                values[name] = time_ns(values[name]) / NS
        return kind(**values)

    return read


def _reply_reader(kind: type[R]) -> Callable[[Any], R]:
    read = _reader(kind)
    return lambda reply: read(reply.data)


# -- brokers ---------------------------------------------------------------------------------------


@overload
def _method(make: Callable[P, CallSequence[R]]) -> Method[P, R]: ...


@overload
def _method(make: Callable[P, Call[R]]) -> Method[P, R]: ...


def _method(make: Callable[..., Any]) -> Method[Any, Any]:
    """Return a method that sends the call, or the calls, that `make` returns."""
    return Method(make, lambda answer: answer)


class BrokerMethods:
    """The methods of both brokers."""

    # namespaces
    namespaces = _method(_namespaces)
    create_namespace = _method(_create_namespace)
    delete_namespace = _method(_delete_namespace)
    # queues
    queues = _method(_queues)
    stats = _method(_stats)
    details = _method(_details)
    create_queue = _method(_create_queue)
    change_queue = _method(_change_queue)
    delete_queue = _method(_delete_queue)
    # webhooks
    webhooks = _method(_webhooks)
    create_webhook = _method(_create_webhook)
    webhook = _method(_webhook)
    change_webhook = _method(_change_webhook)
    delete_webhook = _method(_delete_webhook)
    webhook_deliveries = _method(_webhook_deliveries)


class RemoteBroker(BrokerMethods, ForThreads):
    """A broker. Queues are named "namespace/queue", or "queue" in the namespace `default`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def url(self) -> str:
        return self._connection.base

    def queue(self, name: str) -> RemoteQueue:
        """Return a queue. It shares this broker's connections: closing it closes them."""
        return RemoteQueue(QueueAddress(self.url, QueueName.parse(name)), self._connection)

    def run(self, calls: Call[R] | CallSequence[R]) -> R:
        """Send a call, or a sequence of calls, and return the answer."""
        connection = self._connection
        return connection.run(calls) if isinstance(calls, Generator) else connection.do(calls)

    def close(self) -> None:
        """Close the connections. May be called again."""
        self._connection.close()

    def __enter__(self) -> "RemoteBroker":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class AsyncRemoteBroker(BrokerMethods, ForTasks):
    """The same, for tasks."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    @property
    def url(self) -> str:
        return self._connection.base

    def queue(self, name: str) -> AsyncRemoteQueue:
        """Return a queue. It shares this broker's connections: closing it closes them."""
        return AsyncRemoteQueue(QueueAddress(self.url, QueueName.parse(name)), self._connection)

    async def run(self, calls: Call[R] | CallSequence[R]) -> R:
        """Send a call, or a sequence of calls, and return the answer."""
        connection = self._connection
        if isinstance(calls, Generator):
            return await connection.run(calls)
        return await connection.do(calls)

    async def close(self) -> None:
        """Close the connections. May be called again."""
        await self._connection.close()

    async def __aenter__(self) -> "AsyncRemoteBroker":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
