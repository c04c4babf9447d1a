"""The requests of one queue over HTTP."""

from collections.abc import Callable, Sequence

from penstock.client import leasing, operation_requests, publishing
from penstock.client.answers import Page, QueueDetails
from penstock.client.leasing import Lease
from penstock.client.publishing import DedupIds
from penstock.client.request import Request, T
from penstock.model import (
    DeadLetter,
    HistoryEvent,
    LeasedMessage,
    Message,
    NewMessage,
    Published,
)
from penstock.operations import Extend, Nack, Operation, Release


class HttpCalls:
    """Makes requests for the queue at a path of the API."""

    def __init__(self, path: str, ids: DedupIds) -> None:
        self._path = path
        self._ids = ids

    def publish(self, messages: Sequence[NewMessage], now_ns: int) -> Request[list[Published]]:
        return publishing.publish(self._path, messages, self._ids, now_ns)

    def lease(self, lease: Lease, wait_s: float) -> Request[list[LeasedMessage]]:
        return leasing.lease_over_http(self._path, lease, wait_s)

    def ack(self, receipts: Sequence[str], emit: Sequence[NewMessage] = ()) -> Request[list[str]]:
        return leasing.ack(receipts, emit)

    def settle(
        self, operation: Nack | Extend | Release
    ) -> Callable[[Sequence[str]], Request[list[str]]]:
        return operation_requests.settle(operation)

    def release_valid(self, receipts: Sequence[str]) -> Request[list[str]]:
        return leasing.release_valid(receipts)

    def run(self, operation: Operation[T]) -> Request[T]:
        return operation_requests.request_of(self._path, operation)

    def browse(self, state: str | None, group: str) -> Request[Page[Message]]:
        return operation_requests.browse(self._path, state, group)

    def dead(self, group: str) -> Request[Page[DeadLetter]]:
        return operation_requests.dead(self._path, group)

    def history(self, id: str, group: str | None) -> Request[Page[HistoryEvent]]:
        return operation_requests.history(id, group)

    def details(self) -> Request[QueueDetails]:
        return operation_requests.details(self._path)
