"""Answers of another broker, the owner of a queue, to calls that were forwarded to it."""

from collections.abc import Sequence

from penstock.broker.catalogue import CreateOnUse
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.store import Pending, Publishable
from penstock.errors import PenstockError
from penstock.model import LeasedMessage, Published
from penstock.names import QueueName


class ForwardedPublish:
    """Receives what another broker answers to a publish, for the call that waits."""

    __slots__ = ("_in_queue", "_messages", "_pending", "_queue")

    def __init__(
        self,
        in_queue: CreateOnUse,
        queue: QueueName,
        messages: Sequence[Publishable],
        pending: Pending,
    ) -> None:
        self._in_queue = in_queue
        self._queue = queue
        self._messages = messages
        self._pending = pending

    def succeed(self, result: list[Published]) -> None:
        self._pending.succeed(result)

    def fail(self, error: BaseException) -> None:
        self._in_queue.refused(error, self._queue, self._messages, self._pending)


class ForwardedLease:
    """Receives what another broker answers to a lease, for the call that waits."""

    __slots__ = ("_metrics", "_pending")

    def __init__(self, metrics: BrokerMetrics, pending: Pending) -> None:
        self._metrics = metrics
        self._pending = pending

    def succeed(self, result: list[LeasedMessage]) -> None:
        self._pending.succeed(result)

    def fail(self, error: BaseException) -> None:
        if isinstance(error, PenstockError):
            self._metrics.refused(error)
        self._pending.fail(error)
