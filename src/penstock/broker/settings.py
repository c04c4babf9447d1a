"""What can be set about a broker. docs/broker.md lists it; a test compares the two."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from penstock.checking import check_number
from penstock.errors import InvalidInput
from penstock.queue.settings import QueueSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings of the broker itself; those of transports are the server's."""

    # queues
    queues: Mapping[str, Any] = field(default_factory=dict)  # settings that new queues begin with
    create_on_use: bool = True  # publishing to a queue that is not there makes it
    max_queues: int = 10_000
    max_open_queues: int = 256
    idle_close_s: float = 300.0  # a queue that nobody used for so long is closed
    # clients
    client_rate_per_s: float = 0.0  # calls of one client (a key, or an address); 0: no limit
    client_burst: float = 0.0  # 0: as much as a second's worth
    max_clients: int = 10_000  # that are told apart; then the longest unseen is forgotten
    max_wait_s: float = 60.0  # the longest a lease call may wait for a message
    max_waiters: int = 20_000
    # bytes
    max_answer_bytes: int = 16 << 20  # of messages in one lease or page; a larger one comes alone
    max_unsettled_bytes: int = 64 << 20  # pushed to one stream or webhook and not settled yet
    # webhooks
    webhook_timeout_s: float = 10.0  # for one delivery in all
    webhook_concurrency: int = 8  # deliveries of one subscription at a time
    webhook_allow_private: bool = False  # also call private, loopback and link-local addresses
    webhook_log: int = 100  # deliveries that are remembered of each subscription

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            check_number(name, getattr(self, name), low, high)
        for item in fields(self):
            value = getattr(self, item.name)
            if item.type is int and not isinstance(value, int):
                raise InvalidInput(f"{item.name} is {value!r}; it must be a whole number")
            if item.type is bool and not isinstance(value, bool):
                raise InvalidInput(f"{item.name} is {value!r}; it must be true or false")
        self.queue_settings({})

    def queue_settings(self, *layers: Mapping[str, Any]) -> QueueSettings:
        """What a new queue begins with: ours, then those of its namespace, then its own."""
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
}
