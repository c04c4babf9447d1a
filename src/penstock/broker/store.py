"""Where the broker keeps queues: the one interface between `Broker` and what is below it.

The embedded store (files of this machine) is the first to implement it; tests/conformance holds
every implementation to the same behaviour.

Calls that may have to wait for a disk or another machine answer with a future. It is done when the
change is as durable as the queue's sync policy promises. What is wrong with the call is raised at
once or by the future: whoever awaits sees no difference. Everything runs in one event loop.
"""

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from penstock.broker.segments import (
    Adoption,
    LogName,
    QueueSegments,
    SegmentBytes,
    StagedSegment,
    StagingInfo,
)
from penstock.model import (
    MAIN_GROUP_NAME,
    LeasedMessage,
    NewMessage,
    Payload,
    Published,
    TypedPayload,
)
from penstock.names import QueueName
from penstock.operations import NO_BYTE_LIMIT, Operation
from penstock.queue.settings import QueueSettings

A = TypeVar("A")
Publishable = NewMessage | TypedPayload | Payload
Verdict = Literal["ack", "nack", "extend", "release"]


class NamespaceInfo(NamedTuple):
    """A namespace: its queues begin with `defaults`, and together stay within the quotas."""

    name: str
    created_at_ns: int
    defaults: Mapping[str, Any]  # queue settings that differ from the broker's
    max_queues: int = 0  # 0: no quota
    max_bytes: int = 0


class QueueInfo(NamedTuple):
    """A queue, without its counts."""

    queue: QueueName
    identity: int  # the 32 bits that its message ids and receipts carry
    created_at_ns: int
    settings: QueueSettings


class Settlement(NamedTuple):
    """What is to become of one leased message."""

    verdict: Verdict
    receipt: str
    reason: str = ""  # of a nack
    delay_s: float | None = None  # of a nack: instead of the backoff
    dead: bool = False  # of a nack: trying again makes no sense
    lease_s: float | None = None  # of an extend; None: as the queue says
    emit: Sequence[Publishable] = ()  # of an ack: published in the same write


class Outcome(NamedTuple):
    """What became of one settlement."""

    receipt: str
    status: Literal["done", "repeated", "gone", "invalid"]
    detail: str = ""  # why it is gone or invalid
    ids: Sequence[str] = ()  # of what an ack emitted

    @property
    def ok(self) -> bool:
        """Is it as the caller wants it? An ack that was repeated is."""
        return self.status in ("done", "repeated")


def no_byte_limit() -> int:
    """Return a limit that no answer reaches."""
    return NO_BYTE_LIMIT


def payload_bytes(leased: Sequence[LeasedMessage]) -> int:
    """Return the bytes of their payloads."""
    return sum([len(one[0][2]) for one in leased])  # one.message.payload, without two calls each


class Store(Protocol):
    """Queues, by name. Every method may raise NoSuchQueue where it names a queue."""

    # -- life --------------------------------------------------------------------------------------

    async def claim(self) -> None:
        """Take the store for this broker alone, before it is opened. LedgerLocked if another has
        it. `open` does so too where it was not done."""

    async def open(self, *, on_ready: Callable[[QueueName], None]) -> None:
        """Get ready to be used. `on_ready` is told when a message of a watched queue may be ready:
        published, due, given back, or its lease over."""

    async def close(self) -> None: ...

    def announce(self, url: str) -> Future[None]:
        """Tell others who see the same files where the broker can be asked."""

    @property
    def progress(self) -> tuple[int, int]:
        """Queues recovered, and queues in all, while `open` is at work."""

    @property
    def trouble(self) -> str | None:
        """Why some queue takes no writes (a failed sync, damage); None if all is well."""

    def watch(self, queue: QueueName) -> None:
        """Somebody waits for messages of this queue. Counted: each needs its own `unwatch`."""

    def unwatch(self, queue: QueueName) -> None: ...

    # -- catalogue ---------------------------------------------------------------------------------

    def namespaces(self) -> Future[list[NamespaceInfo]]:
        """All of them, by name."""

    def save_namespace(self, namespace: NamespaceInfo) -> Future[None]:
        """Make it, or change it."""

    def delete_namespace(self, name: str) -> Future[None]:
        """With all its queues."""

    def queues(self, namespace: str | None = None) -> list[QueueName]:
        """The queues of a namespace, or all, sorted. From memory."""

    def has(self, queue: QueueName) -> bool:
        """Is there such a queue? From memory."""

    def create(self, queue: QueueName, settings: QueueSettings) -> Future[QueueInfo]:
        """Make a queue in a namespace that exists; AlreadyExists if there is one."""

    def info(self, queue: QueueName) -> Future[QueueInfo]: ...

    def change(self, queue: QueueName, settings: Mapping[str, Any]) -> Future[QueueInfo]:
        """Change some settings; the others stay."""

    def delete(self, queue: QueueName, *, if_empty: bool = False) -> Future[None]:
        """Forget a queue and all that is in it. `if_empty`: NotEmpty if a message is in it."""

    def bytes_of(self, namespace: str, *, recount: bool = False) -> int:
        """What its queues hold on disk, nearly. From memory, as a running count; `recount` adds up
        anew, which takes longer the more queues there are."""

    def queue_of(self, identity: int) -> QueueName | None:
        """The queue that an id or a receipt is of. From memory."""

    # -- messages ----------------------------------------------------------------------------------

    def publish(self, queue: QueueName, messages: Sequence[Publishable]) -> Future[list[Published]]:
        """All or none."""

    def lease(
        self,
        queue: QueueName,
        n: int,
        *,
        lease_s: float | None = None,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
        dead: bool = False,
        max_bytes: Callable[[], int] = no_byte_limit,
    ) -> Future[list[LeasedMessage]]:
        """What is ready now (with `dead`: dead letters): up to `n`, at least one, and no more than
        fit into `max_bytes`. That is called when it is the lease's turn, and may raise. Where it is
        found at once that nothing is ready, the future is done when it is returned.

        If it is cancelled before it is done, the messages are given back untouched.
        """

    @property
    def unanswered_bytes(self) -> int:
        """Payload bytes of leases that are being read, or are not handed over yet."""

    def ready_hint(self, queue: QueueName, group: str) -> int | None:
        """How many are ready, if that is known without asking anyone."""

    def settle(self, queue: QueueName, settlements: Sequence[Settlement]) -> Future[list[Outcome]]:
        """Each by itself, in order; the outcomes in the same order.

        An ack that was answered not long ago is `repeated`: a client whose connection broke asks
        again, and is told that all is well.
        """

    def run(self, queue: QueueName, operation: Operation[A]) -> Future[A]:
        """Run any other operation; see `penstock.operations`."""

    # -- files -------------------------------------------------------------------------------------

    def segments(self, queue: QueueName, *, time_ns: int | None = None) -> Future[QueueSegments]:
        """The segments of both logs at one moment, as far as they are durable; with a time, also
        which entry of each is the first at or after it."""

    def read_segment(
        self, queue: QueueName, log: LogName, base: int, start: int, end: int | None
    ) -> Future[SegmentBytes]:
        """The bytes [start, end) of a segment, or of a snapshot: at most MAX_RANGE_BYTES, none
        that are not durable. NoSuchSegment if it was removed."""

    def read_index(self, queue: QueueName, log: LogName, base: int) -> Future[bytes]:
        """The sparse index of a segment."""

    def note_archived(self, queue: QueueName, upto: int) -> Future[None]:
        """All messages below a seq are archived: with `archive_required` they may go now."""

    def staging(
        self, queue: QueueName, applications_with: str | None = None
    ) -> Future[StagingInfo]:
        """What is needed to write segments for the queue. InvalidInput if it has a bound.

        With `applications_with`, also the applications that have a transaction in the queue and
        whose names begin so.
        """

    def stage(
        self, queue: QueueName, folder: str, name: str, offset: int, data: bytes
    ) -> Future[None]:
        """Write a part of a segment into the staging area, durably."""

    def unstage(self, queue: QueueName, folder: str) -> Future[None]:
        """Throw away what was staged in a folder; nothing happens if there is none."""

    def adopt(
        self, queue: QueueName, staged: Sequence[StagedSegment], app: str | None, version: int
    ) -> Future[Adoption]:
        """Take staged segments in as messages, in this order, all or none. A version of an
        application that was taken in before, or a later one, is not taken in again."""

    # -- documents ---------------------------------------------------------------------------------

    def load_document(self, name: str) -> Future[bytes | None]:
        """Return a small document of the broker's own (keys, webhooks); None if there is none."""

    def replace_document(self, name: str, old: bytes | None, new: bytes | None) -> Future[bool]:
        """Compare and set: replace a document by `new`, durably, if it still holds `old`.

        None stands for no document. Return False if it holds something else.
        """
