"""Queues of a broker, over HTTP or gRPC: the methods of the embedded queue, for threads and tasks.

    with penstock.open("http://127.0.0.1:8080/shop/orders") as queue:
        queue.enqueue(b"hello")

`penstock.open` and `penstock.aio.open` use this package for URLs. It needs the extra `client`.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from penstock.checking import did_you_mean, is_url
from penstock.client.address import broker_address, is_grpc, queue_address
from penstock.client.administration import (
    AsyncRemoteBroker,
    NamespaceDetails,
    RemoteBroker,
    Webhook,
    WebhookDelivery,
)
from penstock.client.answers import QueueDetails
from penstock.client.batching import Batching
from penstock.client.calls import Exchanging
from penstock.client.connection import Exchange
from penstock.client.options import ClientKeywords, ClientOptions, OpenOptions
from penstock.client.queue import AsyncRemoteQueue, RemoteQueue
from penstock.errors import InvalidInput
from penstock.queue.metrics import MetricsCollector, check_collector, measured

_DEFAULTS = ClientOptions()


def connect(
    url: str,
    *,
    queue: str | None = None,
    options: ClientOptions = _DEFAULTS,
    metrics: MetricsCollector | None = None,
) -> RemoteQueue:
    """Return the queue at a URL, or the one that `queue` names at the broker of the URL.

    Nothing is sent before the first call.
    """
    address = queue_address(url, queue)
    check_collector(metrics)
    exchange = _exchange(address.base, options)
    found = RemoteQueue(address, exchange)
    return found if metrics is None else measured(found, metrics, exchange.clock)


def connect_async(
    url: str,
    *,
    queue: str | None = None,
    options: ClientOptions = _DEFAULTS,
    metrics: MetricsCollector | None = None,
) -> AsyncRemoteQueue:
    """Return the queue at a URL, for tasks."""
    address = queue_address(url, queue)
    check_collector(metrics)
    exchange = _exchange(address.base, options, for_tasks=True)
    found = AsyncRemoteQueue(address, exchange)
    return found if metrics is None else measured(found, metrics, exchange.clock)


def _exchange(base: str, options: ClientOptions, *, for_tasks: bool = False) -> Exchanging:
    if is_grpc(base):
        from penstock.client.rpc_exchange import RpcExchange  # needs the extra `grpc`

        if for_tasks:
            return RpcExchange.for_tasks(base, options)
        return RpcExchange.for_threads(base, options)
    return Exchange.for_tasks(base, options) if for_tasks else Exchange.for_threads(base, options)


def _http_address(url: str) -> str:
    address = broker_address(url)
    if is_grpc(address):
        raise InvalidInput(f"{url!r}: a broker as a whole is managed over HTTP: write http://…")
    return address


def connect_broker(url: str, *, options: ClientOptions = _DEFAULTS) -> RemoteBroker:
    """Return the broker at a URL."""
    return RemoteBroker(Exchange.for_threads(_http_address(url), options))


def connect_broker_async(url: str, *, options: ClientOptions = _DEFAULTS) -> AsyncRemoteBroker:
    """Return the broker at a URL, for tasks."""
    return AsyncRemoteBroker(Exchange.for_tasks(_http_address(url), options))


def options_of(values: Mapping[str, Any]) -> ClientOptions:
    """Return options from names and values; raise InvalidInput for an unknown name."""
    known = [item.name for item in fields(ClientOptions)]
    for name in values:
        if name not in known:
            raise InvalidInput(
                f"a queue at a URL has no option {name!r} (its settings are kept by the broker); "
                f"{did_you_mean(name, ['queue', 'metrics', *known])}"
            )
    return ClientOptions(**values)


__all__ = [
    "AsyncRemoteBroker",
    "AsyncRemoteQueue",
    "Batching",
    "ClientKeywords",
    "ClientOptions",
    "NamespaceDetails",
    "OpenOptions",
    "QueueDetails",
    "RemoteBroker",
    "RemoteQueue",
    "Webhook",
    "WebhookDelivery",
    "connect",
    "connect_async",
    "connect_broker",
    "connect_broker_async",
    "is_url",
    "options_of",
]
