"""The settings of a broker. docs/broker.md lists them; a test compares the two."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.checking import check_fields
from penstock.queue.settings import QueueSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings of the broker itself. `ServerSettings` has those of the transports."""

    # queues
    queues: Mapping[str, Any] = field(default_factory=dict)  # default settings of new queues
    create_on_use: bool = True  # publishing to a missing queue creates it
    max_queues: int = 10_000
    max_open_queues: int = 256
    idle_close_s: float = 300.0  # an open queue is closed after this time without use
    # clients
    client_rate_per_s: float = 0.0  # calls of one client (a key, or an address); 0: no limit
    client_burst: float = 0.0  # 0: the calls of one second
    max_clients: int = 10_000  # counted separately; then the least recently seen is dropped
    max_wait_s: float = 60.0  # maximum time that a lease waits for a message
    max_waiters: int = 20_000
    # bytes
    max_answer_bytes: int = 16 << 20  # of a lease or page; a larger message is returned alone
    max_unsettled_bytes: int = 64 << 20  # pushed to one stream or webhook and not settled yet
    # webhooks
    webhook_timeout_s: float = 10.0  # of a whole delivery
    webhook_concurrency: int = 8  # deliveries of one subscription at a time
    webhook_allow_private: bool = False  # also call private, loopback and link-local addresses
    webhook_log: int = 100  # deliveries kept for each subscription
    # a store in PostgreSQL
    postgres_schema: str = "penstock"
    postgres_connections: int = 16  # at a time, of one broker
    postgres_migrate: bool = True  # bring the schema up to date when the broker starts
    cluster_host: str = ""  # where other brokers reach this one; "": as the database sees it
    cluster_port: int = 0  # 0: any free one
    cache_directory: str = ""  # of the files of open queues; "": that of temporary files
    cache_bytes: int = 8 << 30  # of complete files in it

    def __post_init__(self) -> None:
        check_fields(self, _RANGES)
        self.queue_settings({})

    def queue_settings(self, *layers: Mapping[str, Any]) -> QueueSettings:
        """Return the settings of a new queue: these defaults, overridden by each layer in turn."""
        settings = QueueSettings.of({"sync": "always", **self.queues})
        for layer in layers:
            settings = QueueSettings.of(layer, settings)
        return settings


_RANGES: dict[str, tuple[float, float]] = {
    "max_queues": (1, 1_000_000),
    "max_open_queues": (1, 100_000),
    "idle_close_s": (1, 30 * 86400),
    "client_rate_per_s": (0, 1e9),
    "client_burst": (0, 1e9),
    "max_clients": (1, 10_000_000),
    "max_wait_s": (0, 3600),
    "max_waiters": (1, 1_000_000),
    "max_answer_bytes": (1, 1 << 40),
    "max_unsettled_bytes": (1, 1 << 40),
    "webhook_timeout_s": (0.1, 300),
    "webhook_concurrency": (1, 1000),
    "webhook_log": (0, 100_000),
    "postgres_connections": (6, 1000),
    "cache_bytes": (0, 1 << 50),
    "cluster_port": (0, 65535),
}
