"""Where brokers keep queues: the one interface between `Broker` and the storage below it.

Several brokers may use one store at the same time: each has a `Store` object of its own. The suite
in tests/conformance holds every implementation to the same behaviour.

Calls that may wait for a disk or another machine return a future. It is done when the change is as
durable as the queue's sync policy promises. An error is raised at once or by the future; a caller
must expect both. Everything runs in one event loop.
"""

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from penstock.model import (
    MAIN_GROUP_NAME,
    LeasedMessage,
    Message,
    NewMessage,
    Payload,
    Published,
    Receipt,
    Stats,
    TypedPayload,
)
from penstock.names import QueueName
from penstock.operations import NO_BYTE_LIMIT, Browse, Operation, Page
from penstock.queue.metrics import Histogram
from penstock.queue.segments import (
    Adoption,
    LogName,
    QueueSegments,
    SegmentBytes,
    StagedSegment,
    StagingInfo,
)
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


class StandbyState(NamedTuple):
    """A standby, as its primary sees it. Texts are empty if the user may not see them."""

    name: str
    state: str  # "streaming", "catchup" …
    sync_state: str  # "sync", "quorum", "potential" or "async"
    lag_s: float  # of applying; 0 if it has everything
    lag_bytes: int


class TableState(NamedTuple):
    """A table, by the statistics of the database."""

    name: str
    live_rows: int
    dead_rows: int  # which vacuum has not removed yet
    size_bytes: int  # with its indexes


class DatabaseState(NamedTuple):
    """The database behind a store."""

    name: str  # its addresses and its name, without the password
    is_primary: bool = False
    needs_standby: bool = False  # a commit waits for a synchronous standby
    standbys: tuple[StandbyState, ...] = ()
    commits_waiting: int = 0  # for a standby, now
    oldest_snapshot_s: float = 0.0  # of any session: vacuum removes nothing that is younger
    outbox_waiting: int = 0
    outbox_refused: int = 0
    tables: tuple[TableState, ...] = ()
    problem: str | None = None  # why writes cannot be answered


class QueueSample(NamedTuple):
    """The counts of a queue at one moment, and how long its messages waited and were worked on."""

    queue: QueueName
    stats: Stats
    wait: Histogram | None = None  # from published to leased, since it was opened; None: closed
    work: Histogram | None = None  # from leased to acked
    opened: Stats | None = None  # the counts when it was opened
    passed_s: float = 0.0  # how long ago these were the counts; they are so still


class Samples(NamedTuple):
    """What one broker knows of its queues."""

    owner: str  # of these queues, among the brokers of the store
    queues: Sequence[QueueSample]


class Settlement(NamedTuple):
    """What is to become of one leased message."""

    verdict: Verdict
    receipt: str
    reason: str = ""  # of a nack
    delay_s: float | None = None  # of a nack: instead of the backoff
    dead: bool = False  # of a nack: trying again makes no sense
    lease_s: float | None = None  # of an extend; None: as the queue says
    emit: Sequence[Publishable] = ()  # of an ack: published in the same write
    progress: float | None = None  # of an extend: the share of the work that is done
    note: str = ""  # of an extend with progress


class Outcome(NamedTuple):
    """What became of one settlement."""

    receipt: str
    status: Literal["done", "repeated", "gone", "invalid"]
    detail: str = ""  # the reason, if it was not settled
    ids: Sequence[str] = ()  # of what an ack emitted

    @property
    def ok(self) -> bool:
        """Is it as the caller wants it? An ack that was repeated is."""
        return self.status in ("done", "repeated")


class Pending(Protocol):
    """A call that waits for a commit round. It gets its result without a future or a callback of
    the loop, because one round may end thousands of calls."""

    def succeed(self, result: Any) -> None:
        """Receive the durable result."""

    def fail(self, error: BaseException) -> None: ...


class DirectQueue(Protocol):
    """An open queue of this process, for calls that need no future.

    Each returns its result if it is as durable as promised, None if `pending` gets it later, or a
    future if the call takes longer.
    """

    def publish_for(
        self, pending: Pending, messages: Sequence[Publishable]
    ) -> list[Published] | Future[list[Published]] | None: ...

    def lease_for(
        self,
        pending: Pending,
        n: int,
        *,
        lease_s: float | None,
        group: str,
        holder: str,
        max_bytes: Callable[[], int],
    ) -> list[LeasedMessage] | Future[list[LeasedMessage]] | None:
        """Lease messages. They count as `unanswered_bytes` until `pending` gets them."""

    def lease_one_for(
        self,
        pending: Pending,
        max_bytes: Callable[[], int],
        length_of: Callable[[Message], int] | None = None,
    ) -> list[LeasedMessage] | Future[list[LeasedMessage]] | None:
        """Lease a message of group `main`: the usual `lease_for`, in fewer steps.

        `length_of` returns the length of the lease in nanoseconds. It is a wish: a message that
        cannot be leased on the fast path is leased for the queue's `lease_s`.
        """

    def ack_one_for(
        self, pending: Pending, receipt: str, read: Receipt
    ) -> list[Outcome] | None: ...

    def settle_for(
        self, pending: Pending, settlements: Sequence[Settlement]
    ) -> list[Outcome] | None: ...

    def browse_now(self, browse: Browse, max_bytes: int) -> Page | None:
        """Return a page of at most `max_bytes`; None if that takes too long for the event loop."""


class QueueElsewhere(Protocol):
    """A queue that another broker has open, for calls that need no future.

    `pending` is told the other broker's answer.
    """

    def publish_for(self, pending: Pending, messages: Sequence[Publishable]) -> bool:
        """Return False, and do nothing, for messages that only `Store.publish` forwards."""

    def lease_one_for(self, pending: Pending, max_bytes: int) -> None:
        """Lease a message of group `main`."""

    def ack_one_for(self, pending: Pending, receipt: str) -> None: ...


def no_byte_limit() -> int:
    """Return a limit that no answer reaches."""
    return NO_BYTE_LIMIT


def payload_bytes(leased: Sequence[LeasedMessage]) -> int:
    """Return the bytes of their payloads."""
    return sum([len(one[0][2]) for one in leased])  # one.message.payload, without two calls each


class StoreListener(Protocol):
    """Receives the notices of a store, in the event loop. The methods return at once and do not
    raise.

    Notices about one name arrive in the order of the changes. A broker gets the notice of its own
    change before its call is answered, and those of other brokers' changes soon after.
    """

    def on_ready(self, queue: QueueName) -> None:
        """A message of a watched queue may be ready: published, due, released, or its lease over.
        It does not matter which broker caused it."""

    def on_catalogue(self, namespaces: Sequence[NamespaceInfo], queues: "QueueIdentities") -> None:
        """Receive the whole catalogue: after `open`, and when notices may have been missed."""

    def on_namespace(self, name: str, namespace: NamespaceInfo | None) -> None:
        """A namespace was created, changed or (None) deleted."""

    def on_queue(self, queue: QueueName, identity: int | None) -> None:
        """A queue was created or (None) deleted."""

    def on_document(self, name: str) -> None:
        """A document was replaced or deleted."""

    async def on_question(self, question: Any) -> Any:
        """Return the answer to a question of another broker (`Store.ask_others`).

        Both are made of lists, tuples, mappings, texts, bytes, numbers and None. This one may take
        its time.
        """


QueueIdentities = Mapping[QueueName, int]  # 0: not known yet, for a queue that cannot be opened


class StoreFiles(Protocol):
    """The optional capability of a store that has, or renders, the segments of a queue."""

    def segments(self, queue: QueueName, *, time_ns: int | None = None) -> Future[QueueSegments]:
        """Return the durable segments of both logs at one moment. With a time, also return which
        entry of each log is the first at or after it."""

    def read_segment(
        self, queue: QueueName, log: LogName, base: int, start: int, end: int | None
    ) -> Future[SegmentBytes]:
        """Return the bytes [start, end) of a segment or snapshot: durable, at most MAX_RANGE_BYTES.
        Raise NoSuchSegment if it was removed."""

    def read_index(self, queue: QueueName, log: LogName, base: int) -> Future[bytes]:
        """Return the sparse index of a segment."""

    def note_archived(
        self, queue: QueueName, upto: int, archive: str = "", archived_as: str = ""
    ) -> Future[None]:
        """Record that all messages below a seq are archived: `archive_required` lets them go.

        `archive` is the location of the archive, and `archived_as` the queue's name in it. Both are
        in what `segments` returns. Without a location, the recorded one stays.
        """

    def staging(
        self, queue: QueueName, applications_with: str | None = None
    ) -> Future[StagingInfo]:
        """Return what is needed to write segments for the queue. InvalidInput if it has a bound.

        With `applications_with`, also return the applications that have a transaction in the queue
        and whose names begin so.
        """

    def stage(
        self, queue: QueueName, folder: str, name: str, offset: int, data: bytes
    ) -> Future[None]:
        """Write a part of a segment into the staging area, durably."""

    def unstage(self, queue: QueueName, folder: str) -> Future[None]:
        """Delete what was staged in a folder; do nothing if there is none."""

    def adopt(
        self, queue: QueueName, staged: Sequence[StagedSegment], app: str | None, version: int
    ) -> Future[Adoption]:
        """Adopt staged segments as messages, in this order, all or none. A version of an
        application that was adopted before, or a lower one, is not adopted again."""


class Documents(Protocol):
    """Small documents of the brokers (keys, webhooks …). They can be used before `Store.open`."""

    def load_document(self, name: str) -> Future[bytes | None]:
        """Return a document; None if there is none."""

    def replace_document(self, name: str, old: bytes | None, new: bytes | None) -> Future[bool]:
        """Compare and set: replace a document by `new`, durably, if it still holds `old`.

        None means no document. Return False if it holds something else.
        """


class Store(Documents, Protocol):
    """Queues, by name. Every method that names a queue may raise NoSuchQueue."""

    @property
    def has_one_queue(self) -> bool:
        """Is there one queue, and never another?"""
        ...

    # -- life --------------------------------------------------------------------------------------

    async def claim(self) -> None:
        """Prepare to open. Raise LedgerLocked if the store is for one process and another has it.
        `open` does this too if it was not done."""

    async def open(self, listener: StoreListener) -> None:
        """Recover, send `listener.on_catalogue`, and send notices from then on."""

    async def close(self) -> None: ...

    def announce(self, url: str) -> Future[None]:
        """Publish the broker's URL, for processes that find the store locked."""

    @property
    def progress(self) -> tuple[int, int]:
        """Return the queues recovered, and all queues, while `open` is at work."""

    @property
    def trouble(self) -> str | None:
        """Return why some queue takes no writes (a failed sync, damage), or None."""

    async def database_state(self) -> DatabaseState | None:
        """Return the state of the database behind the store, within about a second.

        None if there is none. It raises no error: the state says what is wrong.
        """

    def sample(self) -> Future[Samples]:
        """Return the counts of the queues that this broker owns and has had open.

        None is opened for it. Counts of a queue that is busy may be those of the last time.
        """

    def ask_others(self, question: Any) -> Future[list[Any]]:
        """Ask the other brokers that own queues of the store. Return the answers of those that
        give one soon; see `StoreListener.on_question`."""

    def free_bytes(self) -> Future[int | None]:
        """Return the free space of the disk that holds the store; None if it is not known."""

    @property
    def files(self) -> StoreFiles | None:
        """Return the segments of the queues; None if this store has none."""

    def watch(self, queue: QueueName) -> None:
        """Send `on_ready` for this queue. Calls are counted: each needs its own `unwatch`."""

    def unwatch(self, queue: QueueName) -> None: ...

    # -- catalogue: changes are atomic, also between brokers ---------------------------------------

    def replace_namespace(self, old: NamespaceInfo | None, new: NamespaceInfo) -> Future[bool]:
        """Compare and set: create a namespace (`old` is None) or change it.

        Return False if it is not as `old` says; a notice says before that how it is.
        """

    def delete_namespace(self, name: str, *, force: bool) -> Future[list[QueueName]]:
        """Delete a namespace and its queues, and return these. NotEmpty without force."""

    def create(self, queue: QueueName, settings: QueueSettings) -> Future[QueueInfo]:
        """Create a queue, and its namespace if there is none.

        Raise AlreadyExists if there is one, QuotaExceeded if its namespace is full.
        """

    def info(self, queue: QueueName) -> Future[QueueInfo]: ...

    def find(self, identity: int) -> Future[QueueName | None]:
        """Return the queue that an id or a receipt is of."""

    def change(self, queue: QueueName, settings: Mapping[str, Any]) -> Future[QueueInfo]:
        """Change some settings; the others stay."""

    def delete(self, queue: QueueName, *, if_empty: bool = False) -> Future[None]:
        """Delete a queue and its messages. `if_empty`: raise NotEmpty if it holds any."""

    # -- messages ----------------------------------------------------------------------------------

    def direct(self, queue: QueueName) -> DirectQueue | None:
        """Return the queue if it is open in this process and free; None: use the calls below."""

    def elsewhere(self, queue: QueueName) -> QueueElsewhere | None:
        """Return the queue at its owner if that is another broker, known and connected."""

    def publish(self, queue: QueueName, messages: Sequence[Publishable]) -> Future[list[Published]]:
        """Publish all or none. QuotaExceeded while the namespace holds `max_bytes` or more."""

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
        """Lease messages that are ready now (with `dead`: dead letters), or none.

        At most `n`, and no more than fit into `max_bytes`, but at least one if one is ready.
        `max_bytes` is called when the lease is carried out, and may raise. If the future is
        cancelled before it is done, the messages are released, and no attempt is spent.
        """

    @property
    def unanswered_bytes(self) -> int:
        """Return the payload bytes of leases that are being read, or are not handed over yet."""

    def ready_hint(self, queue: QueueName, group: str) -> int | None:
        """Return how many messages are ready if this process knows it, else None."""

    def settle(self, queue: QueueName, settlements: Sequence[Settlement]) -> Future[list[Outcome]]:
        """Settle each by itself, in order. Return the outcomes in the same order.

        An ack that was answered not long ago is `repeated`: a client whose connection broke asks
        again.
        """

    def run(self, queue: QueueName, operation: Operation[A]) -> Future[A]:
        """Run any other operation; see `penstock.operations`."""

    # -- work that one broker at a time does -------------------------------------------------------

    def acquire_lock(self, name: str, owner: str, for_s: float) -> Future[bool]:
        """Take or renew a lock until `for_s` from now, by the store's clock.

        Return False if another owner has it and its time is not over.
        """

    def release_lock(self, name: str, owner: str) -> Future[None]:
        """Let another owner take a lock at once; do nothing if `owner` does not have it."""


# -- documents -------------------------------------------------------------------------------------


async def update_document(
    store: Documents, name: str, change: Callable[[bytes | None], bytes | None]
) -> bytes | None:
    """Replace a document by what `change` makes of it, durably. Return what it holds then.

    None is a document that does not exist. `change` is called again if another process or broker
    changed the document in the meantime.
    """
    while True:
        old = await store.load_document(name)
        new = change(old)
        if new == old or await store.replace_document(name, old, new):
            return new


async def save_document(store: Documents, name: str, data: bytes | None) -> None:
    """Replace a document, whatever it holds. None deletes it."""
    await update_document(store, name, lambda _: data)
