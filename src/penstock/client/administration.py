"""A broker as a whole: its namespaces, queues and webhooks, for threads and for tasks."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self, TypeVar, Unpack
from urllib.parse import quote

from penstock.checking import Time
from penstock.client import operation_requests
from penstock.client.address import QueueAddress, queue_path
from penstock.client.answers import QueueDetails, all_rows, details_of, first_page
from penstock.client.calls import Exchanging
from penstock.client.publishing import time_text
from penstock.client.queue import AsyncRemoteQueue, RemoteQueue
from penstock.client.request import Reply, Request, T, get, nothing, post
from penstock.errors import AlreadyExists, InvalidInput, NoSuchQueue, NotAllowed
from penstock.model import NS, Stats
from penstock.names import QueueName, check_name
from penstock.operations import GetStats
from penstock.operations.answers import time_ns
from penstock.queue.binding import ForTasks, ForThreads, method
from penstock.queue.settings import QueueOptions, QueueSettings

R = TypeVar("R")

_NAMESPACES = "/api/v1/namespaces"
_KEYS = "/api/v1/keys"


class NamespaceDetails(NamedTuple):
    """A namespace of a broker."""

    name: str
    created_at: float  # Unix seconds
    defaults: Mapping[str, Any]  # settings that its new queues begin with
    max_queues: int  # 0: no quota
    max_bytes: int


class ChartData(NamedTuple):
    """The history of a queue, or of all: one value of each series for each step."""

    start: float  # of the first step, Unix seconds
    step_s: int
    points: int
    series: Mapping[str, Sequence[float | None]]  # None: not known, or nothing to measure


class ApiKey(NamedTuple):
    """An API key, without its secret."""

    id: str
    label: str
    verbs: Sequence[str]
    created_at: float  # Unix seconds
    namespaces: Sequence[str] | None = None  # None: all
    revoked_at: float | None = None
    token: str | None = None  # only in the answer to create_key


class QueueReader(NamedTuple):
    """A reader of a queue that leases nothing, such as a Spark query."""

    name: str
    position: int  # the next seq that it reads
    lag: int  # messages from there to the end of the queue, when the broker was asked
    rows_per_s: float
    reported_at: float  # Unix seconds
    expires_at: float


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
    outcome: str  # "delivered", "retry", "dead", "disabled"; "failed" if it was sent by hand
    status: int  # of the response; 0: there was none
    reason: str = ""
    retry_in_s: float | None = None
    number: int = 0  # of the delivery, for `resend_delivery`
    answer: str = ""  # the beginning of what the endpoint answered
    is_resent: bool = False


class BrokerMethods:
    """The methods of both brokers. Each is defined once; see `penstock.queue.binding`."""

    def __init__(self, exchange: Exchanging) -> None:
        self._exchange = exchange

    @property
    def url(self) -> str:
        return self._exchange.base

    async def _do(self, request: Request[T]) -> T:
        return await self._exchange.do(request)

    def _rows(
        self, path: str, name: str, read: Callable[[Mapping[str, Any]], R]
    ) -> AsyncIterator[R]:
        return all_rows(self._exchange, first_page(path, name, read, {}))

    # -- namespaces --------------------------------------------------------------------------------

    @method
    async def namespaces(self) -> list[NamespaceDetails]:
        """Return all namespaces that the key may read, by name."""
        read = _reader(NamespaceDetails)
        return [one async for one in self._rows(_NAMESPACES, "namespaces", read)]

    @method
    async def create_namespace(
        self,
        name: str,
        *,
        defaults: Mapping[str, Any] | None = None,
        max_queues: int = 0,
        max_bytes: int = 0,
    ) -> NamespaceDetails:
        """Create a namespace; its new queues begin with `defaults`.

        `max_queues` and `max_bytes` are its quotas; 0 means none. Raise AlreadyExists if it exists.
        """
        body = {
            "name": check_name("namespace", name),
            "defaults": _checked_settings({} if defaults is None else defaults),
            "max_queues": max_queues,
            "max_bytes": max_bytes,
        }
        return await self._do(post(_NAMESPACES, _reply_reader(NamespaceDetails), body))

    @method
    async def delete_namespace(self, name: str, *, force: bool = False) -> None:
        """Delete a namespace. Raise NotEmpty if it has queues; `force` deletes them too."""
        query = {"force": "true"} if force else None
        await self._do(post(_namespace_path(name), nothing, method="DELETE", query=query))

    # -- queues ------------------------------------------------------------------------------------

    @method
    async def queues(self, namespace: str | None = None) -> list[str]:
        """Return the names of the queues of a namespace, or of all namespaces."""
        if namespace is not None:
            spaces = [namespace]
        else:
            read = _reader(NamespaceDetails)
            spaces = [one.name async for one in self._rows(_NAMESPACES, "namespaces", read)]
        return [
            name
            for space in spaces
            async for name in self._rows(f"{_namespace_path(space)}/queues", "queues", _queue_name)
        ]

    @method
    async def stats(self, queue: str) -> Stats:
        """Return the counts of a queue."""
        return await self._do(operation_requests.request_of(_queue_path(queue), GetStats()))

    @method
    async def details(self, queue: str) -> QueueDetails:
        """Return a queue's age and settings."""
        return await self._do(operation_requests.details(_queue_path(queue)))

    @method
    async def create_queue(self, queue: str, **settings: Unpack[QueueOptions]) -> QueueDetails:
        """Create a queue with some settings of `QueueSettings`.

        A queue that exists with the same settings stays as it is; raise AlreadyExists if they
        differ.
        """
        return await self._do(_put_settings("PUT", queue, dict(settings)))

    @method
    async def change_queue(self, queue: str, **settings: Unpack[QueueOptions]) -> QueueDetails:
        """Change some settings of a queue; the others stay."""
        return await self._do(_put_settings("PATCH", queue, dict(settings)))

    @method
    async def delete_queue(self, queue: str) -> None:
        """Delete a queue and all its messages."""
        await self._do(post(_queue_path(queue), nothing, method="DELETE"))

    @method
    async def overview(self, namespace: str | None = None) -> Mapping[str, Any]:
        """Return all queues that the key may read, added up: messages by state, rates, sizes."""
        query = None if namespace is None else {"namespace": check_name("namespace", namespace)}
        return await self._do(get("/api/v1/overview", lambda reply: dict(reply.data), query))

    @method
    async def chart(
        self, queue: str | None = None, *, since: Time | None = None, until: Time | None = None
    ) -> ChartData:
        """Return the history of a queue, or of all queues; of the last hour by default.

        The broker keeps a week. The series are those of docs/broker.md.
        """
        path = "/api/v1/chart" if queue is None else f"{_queue_path(queue)}/chart"
        times = {"since": since, "until": until}
        query = {name: time_text(name, value) for name, value in times.items() if value is not None}
        return await self._do(get(path, _reply_reader(ChartData), query))

    # -- readers -----------------------------------------------------------------------------------

    @method
    async def readers(self, queue: str) -> list[QueueReader]:
        """Return the readers of a queue that lease nothing, those with most lag first."""
        read = _reader(QueueReader)
        path = f"{_queue_path(queue)}/readers"
        return await self._do(get(path, lambda reply: [read(one) for one in reply.data["readers"]]))

    @method
    async def report_reader(
        self,
        queue: str,
        name: str,
        position: int,
        *,
        rows_per_s: float = 0.0,
        expires_s: float = 3600.0,
    ) -> None:
        """Report that a reader has read all messages before the seq `position`.

        The broker shows it, with its lag, until `expires_s` after the last report.
        """
        body = {"position": position, "rows_per_s": rows_per_s, "expires_s": expires_s}
        path = _reader_path(queue, name)
        await self._do(post(path, nothing, body, method="PUT", idempotent=True))

    @method
    async def forget_reader(self, queue: str, name: str) -> None:
        """Remove a reader that has ended. Do nothing if there is none."""
        path = _reader_path(queue, name)
        await self._do(post(path, nothing, method="DELETE", idempotent=True))

    # -- keys --------------------------------------------------------------------------------------

    @method
    async def keys(self) -> list[ApiKey]:
        """Return all API keys, revoked ones included. It needs `manage` in all namespaces."""
        read = _reader(ApiKey)
        return await self._do(get(_KEYS, lambda reply: [read(item) for item in reply.data["keys"]]))

    @method
    async def create_key(
        self, verbs: Sequence[str], *, label: str = "", namespaces: Sequence[str] | None = None
    ) -> ApiKey:
        """Create an API key, for all namespaces or some. Its `token` is in the answer only."""
        body = {"verbs": list(verbs), "label": label, "namespaces": namespaces}
        return await self._do(post(_KEYS, _reply_reader(ApiKey), body))

    @method
    async def revoke_key(self, id: str) -> ApiKey:
        """Revoke an API key. It is refused within two seconds, and stays listed."""
        path = f"{_KEYS}/{quote(str(id), safe='')}"
        return await self._do(post(path, _reply_reader(ApiKey), method="DELETE"))

    # -- webhooks ----------------------------------------------------------------------------------

    @method
    async def webhooks(self, queue: str) -> list[Webhook]:
        """Return the push subscriptions of a queue."""
        read = _reader(Webhook)

        def read_all(reply: Reply) -> list[Webhook]:
            return [read(item) for item in reply.data["webhooks"]]

        return await self._do(get(f"{_queue_path(queue)}/webhooks", read_all))

    @method
    async def create_webhook(
        self,
        queue: str,
        url: str,
        *,
        secret: str | None = None,
        group: str | None = None,
        retry_s: Sequence[float] | None = None,
    ) -> Webhook:
        """Push the messages of a queue to a URL. The answer has the secret that signs them.

        Without `group` the webhook gets its own, which starts with the next published message.
        """
        body = {"url": url, "secret": secret, "group": group, "retry_s": retry_s}
        path = f"{_queue_path(queue)}/webhooks"
        return await self._do(post(path, _reply_reader(Webhook), body))

    @method
    async def webhook(self, id: str) -> Webhook:
        """Return a push subscription by its id."""
        return await self._do(get(_webhook_path(id), _reply_reader(Webhook)))

    @method
    async def change_webhook(
        self,
        id: str,
        *,
        url: str | None = None,
        secret: str | None = None,
        rotate_secret: bool = False,
        enabled: bool | None = None,
        retry_s: Sequence[float] | None = None,
    ) -> Webhook:
        """Change the given options; the others stay. An old secret signs as well for a day."""
        body = {
            "url": url,
            "secret": secret,
            "rotate_secret": rotate_secret or None,
            "enabled": enabled,
            "retry_s": retry_s,
        }
        return await self._do(post(_webhook_path(id), _reply_reader(Webhook), body, method="PATCH"))

    @method
    async def delete_webhook(self, id: str) -> None:
        """Delete a push subscription."""
        await self._do(post(_webhook_path(id), nothing, method="DELETE"))

    @method
    async def webhook_deliveries(self, id: str) -> list[WebhookDelivery]:
        """Return the latest delivery attempts of a push subscription, with their outcomes."""
        path, read = f"{_webhook_path(id)}/deliveries", _reader(WebhookDelivery)
        return [one async for one in self._rows(path, "deliveries", read)]

    @method
    async def resend_delivery(self, id: str, number: int) -> WebhookDelivery:
        """Send a delivery of a push subscription once more. The message is not affected."""
        path = f"{_webhook_path(id)}/deliveries/{int(number)}/resend"
        return await self._do(post(path, _reply_reader(WebhookDelivery)))

    @method
    async def close(self) -> None:
        """Close the connections. May be called again."""
        await self._exchange.close()


class RemoteBroker(BrokerMethods, ForThreads):
    """A broker. Queues are named "namespace/queue", or "queue" in the namespace `default`."""

    def queue(self, name: str) -> RemoteQueue:
        """Return a queue. It shares this broker's connections: closing it closes them."""
        return RemoteQueue(QueueAddress(self.url, QueueName.parse(name)), self._exchange)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class AsyncRemoteBroker(BrokerMethods, ForTasks):
    """A broker, for tasks."""

    def queue(self, name: str) -> AsyncRemoteQueue:
        """Return a queue. It shares this broker's connections: closing it closes them."""
        return AsyncRemoteQueue(QueueAddress(self.url, QueueName.parse(name)), self._exchange)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


# -- paths and answers -----------------------------------------------------------------------------


def _namespace_path(name: str) -> str:
    return f"{_NAMESPACES}/{check_name('namespace', name)}"


def _queue_path(queue: str) -> str:
    return queue_path(QueueName.parse(queue))


def _reader_path(queue: str, name: str) -> str:
    return f"{_queue_path(queue)}/readers/{check_name('reader', name)}"


def _webhook_path(id: str) -> str:
    return f"/api/v1/webhooks/{quote(str(id), safe='')}"


def _put_settings(how: str, queue: str, settings: dict[str, Any]) -> Request[QueueDetails]:
    body = _checked_settings(settings)
    path = _queue_path(queue)
    return post(path, lambda reply: details_of(reply.data), body, method=how, idempotent=True)


def _checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they are stored. Raise InvalidInput as an embedded queue does."""
    if not isinstance(settings, Mapping):
        raise InvalidInput(f"settings are a mapping of names to values, not {settings!r}")
    checked = QueueSettings.of(settings).as_dict()
    return {name: checked[name] for name in settings}


def _queue_name(data: Mapping[str, Any]) -> str:
    return f"{data['namespace']}/{data['name']}"


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
        for name in ("created_at", "at", "start", "revoked_at", "reported_at", "expires_at"):
            if name in values:
                values[name] = time_ns(values[name]) / NS
        return kind(**values)

    return read


def _reply_reader(kind: type[R]) -> Callable[[Any], R]:
    read = _reader(kind)
    return lambda reply: read(reply.data)


def make_queue(broker: RemoteBroker, queue: str, settings: Mapping[str, Any]) -> None:
    """Create the queue if there is none, and change its settings if they differ."""
    try:
        known = broker.details(queue).settings
    except NoSuchQueue:
        with suppress(AlreadyExists):  # another process was quicker
            broker.create_queue(queue, **settings)
            return
        known = broker.details(queue).settings
    except NotAllowed:
        if settings:
            raise
        return  # a broker holds the directory, and this key may not read
    if QueueSettings.of(settings, known) != known:
        broker.change_queue(queue, **settings)
