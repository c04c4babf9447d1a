"""What a remote queue needs of its transport: requests for its methods, and their exchange.

`http_calls` and `rpc_calls` make the requests, `connection` and `rpc_exchange` send them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.client.request import Asked, T
from penstock.clock import Clock
from penstock.model import (
    DeadLetter,
    HistoryEvent,
    LeasedMessage,
    Message,
    NewMessage,
    Published,
)
from penstock.operations import Extend, Nack, Operation, Release

if TYPE_CHECKING:
    from penstock.client.answers import Page, QueueDetails
    from penstock.client.connection import Counts
    from penstock.client.leasing import Lease
    from penstock.client.options import ClientOptions


class Exchanging(Protocol):
    """Sends requests to one broker, with retries."""

    base: str
    options: "ClientOptions"
    clock: Clock
    counts: "Counts"

    @property
    def is_closed(self) -> bool: ...

    async def do(self, request: Asked[T]) -> T:
        """Send a request, with retries if they are safe and allowed, and return its value."""

    async def close(self) -> None: ...

    def view_for_tasks(self) -> "Exchanging":
        """Return one for tasks, which is closed with this one."""


class Calls(Protocol):
    """Makes the requests of one queue."""

    def publish(self, messages: Sequence[NewMessage], now_ns: int) -> Asked[list[Published]]: ...

    def lease(self, lease: "Lease", wait_s: float) -> Asked[list[LeasedMessage]]: ...

    def ack(self, receipts: Sequence[str], emit: Sequence[NewMessage] = ()) -> Asked[list[str]]: ...

    def settle(
        self, operation: Nack | Extend | Release
    ) -> Callable[[Sequence[str]], Asked[list[str]]]: ...

    def release_valid(self, receipts: Sequence[str]) -> Asked[list[str]]:
        """Release, and ignore receipts that are not valid any more."""

    def run(self, operation: Operation[T]) -> Asked[T]: ...

    def browse(self, state: str | None, group: str) -> "Asked[Page[Message]]": ...

    def dead(self, group: str) -> "Asked[Page[DeadLetter]]": ...

    def history(self, id: str, group: str | None) -> "Asked[Page[HistoryEvent]]": ...

    def details(self) -> "Asked[QueueDetails]": ...
