"""The broker: the only interface that transports use; nothing above it knows the store.

Each call names its caller. The broker checks the caller's rights and rate, creates queues on first
use, and lets calls wait for messages. Several brokers may share one store. Calls return futures,
see `store`. Everything runs in one event loop.
"""

import asyncio
import secrets
from asyncio import Future
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast, overload

from penstock.broker.access import EVERY_VERB, INSIDE, Caller
from penstock.broker.background import Background
from penstock.broker.catalogue import Catalogue, CreateOnUse
from penstock.broker.charts import Chart, Charts
from penstock.broker.keys import Key, KeyEditor
from penstock.broker.limits import ClientBuckets, Held, encoded_bytes, is_heavy
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.moving import refuse_unfinished
from penstock.broker.overview import Overview, Overviews, QueuePage, StorageState
from penstock.broker.paced_redrive import PacedRedrive, PacedRedrives
from penstock.broker.segments import FileDoor
from penstock.broker.settings import BrokerSettings
from penstock.broker.settling import settle_by_queue
from penstock.broker.store import (
    DatabaseState,
    DirectQueue,
    NamespaceInfo,
    Outcome,
    Pending,
    Publishable,
    QueueIdentities,
    QueueInfo,
    Settlement,
    Store,
    update_document,
)
from penstock.broker.waiting import Later, WaitingLines
from penstock.checking import check_number, check_whole
from penstock.clock import Clock, SystemClock
from penstock.codec import parse_id
from penstock.errors import (
    NoSuchMessage,
    NoSuchQueue,
    NoSuchRedrive,
    NotAllowed,
    NotEmpty,
    PenstockError,
    ReceiptInvalid,
    Unavailable,
)
from penstock.model import MAIN_GROUP_NAME, NS, LeasedMessage, Published, Receipt, Stats
from penstock.names import QueueName
from penstock.operations import (
    MAX_TIME_S,
    Browse,
    CancelDeliverable,
    Compact,
    GetStats,
    Operation,
    Page,
    Redrive,
    Verb,
)

A = TypeVar("A")

_SECRET_DOCUMENT = "secret"
_AT_ONCE = 50  # queues looked at without a break
_ABSURD_S = 86400.0  # asking to wait longer is a mistake
_STEP = 10_000  # messages cancelled at a time
MAX_POINTS = 2000  # of a chart


class Broker:
    """Many queues of one store, for many clients."""

    def __init__(
        self,
        store: Store,
        settings: BrokerSettings | None = None,
        *,
        metrics: BrokerMetrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or BrokerSettings()
        self.metrics = metrics or BrokerMetrics()
        self.clock = clock or SystemClock()
        self.store = store
        self.held = Held()
        self.waiting = WaitingLines(
            store, self.give_back, self.answer_room, self.held, most=self.settings.max_waiters
        )
        self.background = Background()
        self._catalogue = Catalogue(store, lambda: self.settings, self.clock)
        self._in_queue = CreateOnUse(
            self._catalogue,
            self.clock,
            self.metrics,
            is_allowed=lambda: self.settings.create_on_use,
        )
        self.files = FileDoor(store, self.admit, self._in_queue.do)
        self._limits = self._buckets()
        self.node_id = secrets.token_hex(16)  # of this broker, as long as it runs
        self._keys = KeyEditor(store, self.clock)
        self._paced = PacedRedrives(store, self.clock, self.node_id)
        self._open = False
        self.charts = Charts(store, self.clock, self.has_queue)  # a server starts it
        self._overviews = Overviews(store, self.clock, self.charts)
        self.secret = b""  # of all brokers of the store, for cursors; known once it is started
        self.on_deleted: list[Callable[[QueueName], Awaitable[None]]] = [self._paced.queue_deleted]
        # Told the names of documents that changed.
        self.on_document_changed: list[Callable[[str], None]] = [self._paced.on_document]

    # -- life --------------------------------------------------------------------------------------

    async def claim(self) -> None:
        """Prepare to start. Raise LedgerLocked if another process has the store."""
        await self.store.claim()

    async def start(self) -> None:
        """Open the store, load the catalogue, and accept calls."""
        self._catalogue.check_supported(self.settings.queues)
        try:
            await self.store.claim()
            await refuse_unfinished(self.store)
            await self.store.open(self)
            await refuse_unfinished(self.store)  # a move may have begun before this was a member
            made = secrets.token_hex(16).encode()
            found = await update_document(self.store, _SECRET_DOCUMENT, lambda old: old or made)
            self.secret = found or made
            await self._paced.start()
        except BaseException:
            await self.store.close()
            raise
        self._open = True

    async def announce(self, url: str) -> None:
        """Publish the broker's URL, for processes that find the store locked."""
        await self.store.announce(url)

    async def stop(self) -> None:
        """Refuse new calls, answer waiting ones without messages, and close the store."""
        self._open = False
        self.waiting.close()
        await self.charts.stop()
        await self._paced.close()
        await self.background.finished()
        await self.store.close()

    # -- notices of the store ----------------------------------------------------------------------

    def on_ready(self, queue: QueueName) -> None:
        self.waiting.on_ready(queue)

    def on_catalogue(self, namespaces: Sequence[NamespaceInfo], queues: QueueIdentities) -> None:
        gone = [queue for queue in self._catalogue.queues() if queue not in queues]
        self._catalogue.replace(namespaces, queues)
        for queue in gone:
            self.waiting.gone(queue)

    def on_namespace(self, name: str, namespace: NamespaceInfo | None) -> None:
        self._catalogue.set_namespace(name, namespace)

    def on_queue(self, queue: QueueName, identity: int | None) -> None:
        if self._catalogue.set_queue(queue, identity):
            self.waiting.gone(queue)

    def on_document(self, name: str) -> None:
        for listener in self.on_document_changed:
            listener(name)

    async def on_question(self, question: Any) -> Any:
        match question:
            case ["overview"]:
                return await self._overviews.for_another()
            case ["chart", key, ring]:
                return self.charts.rows_for(key, ring)
        return None  # of a newer broker

    # -- settings and rights -----------------------------------------------------------------------

    def change_settings(self, settings: BrokerSettings) -> None:
        """Use new settings from now on. Existing queues keep theirs."""
        self._catalogue.check_supported(settings.queues)
        self.settings = settings
        self._limits = self._buckets()

    def _buckets(self) -> ClientBuckets | None:
        if not self.settings.client_rate_per_s:
            return None
        return ClientBuckets(
            rate_per_s=self.settings.client_rate_per_s,
            burst=self.settings.client_burst,
            most=self.settings.max_clients,
            clock=self.clock,
        )

    @property
    def is_open(self) -> bool:
        return self._open

    def admit(self, caller: Caller, verb: Verb, namespace: str | None) -> None:
        """Raise an error if the caller lacks the right or exceeds its rate."""
        try:
            if not self._open:
                raise Unavailable("the broker is starting or stopping: try again in a moment")
            _, verbs, namespaces = caller
            if verb not in verbs or (namespaces is not None and namespace not in namespaces):
                caller.check(verb, namespace)  # raises, with the reason
            if self._limits is not None and caller is not INSIDE:
                self._limits.take(caller.client, "calls")
        except PenstockError as error:
            self.metrics.refused(error)
            raise

    # -- messages ----------------------------------------------------------------------------------

    # With `pending`, publish, lease and settle may return the result itself, or None: then
    # `pending` gets it when it is durable. That is the fast path of transports.

    @overload
    def publish(
        self, caller: Caller, queue: QueueName, messages: Sequence[Publishable]
    ) -> Future[list[Published]]: ...
    @overload
    def publish(
        self,
        caller: Caller,
        queue: QueueName,
        messages: Sequence[Publishable],
        pending: Pending,
    ) -> Future[list[Published]] | list[Published] | None: ...
    def publish(
        self,
        caller: Caller,
        queue: QueueName,
        messages: Sequence[Publishable],
        pending: Pending | None = None,
    ) -> Future[list[Published]] | list[Published] | None:
        """Publish, all or none. The queue is made if it is not there (`create_on_use`)."""
        self.admit(caller, Verb.PUBLISH, queue.namespace)
        direct = None if pending is None else self.store.direct(queue)
        if pending is not None and direct is not None:
            try:
                return direct.publish_for(pending, messages)
            except PenstockError as error:
                self.metrics.refused(error)
                raise
        in_queue = self._in_queue
        return in_queue.do(
            queue,
            lambda: self.store.publish(queue, messages),
            lambda: in_queue.check_publish(queue, messages),
            takes_long=lambda: is_heavy(messages),
        )

    @overload
    def lease(
        self,
        caller: Caller,
        queue: QueueName,
        *,
        n: int = 1,
        lease_s: float | None = None,
        wait_s: float = 0.0,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
        max_bytes: int | None = None,
    ) -> Future[list[LeasedMessage]]: ...
    @overload
    def lease(
        self,
        caller: Caller,
        queue: QueueName,
        *,
        n: int = 1,
        lease_s: float | None = None,
        wait_s: float = 0.0,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
        pending: Pending,
    ) -> Future[list[LeasedMessage]] | list[LeasedMessage] | None: ...
    def lease(
        self,
        caller: Caller,
        queue: QueueName,
        *,
        n: int = 1,
        lease_s: float | None = None,
        wait_s: float = 0.0,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
        max_bytes: int | None = None,
        pending: Pending | None = None,
    ) -> Future[list[LeasedMessage]] | list[LeasedMessage] | None:
        """Lease up to `n` messages. Wait up to `wait_s` for the first, at most `max_wait_s`.

        The answer fits into `max_answer_bytes` and `max_bytes`, but has at least one message. Raise
        Overloaded if requests and answers use all memory that they may.

        A call that waits creates a missing queue (`create_on_use`); one that does not wait creates
        nothing. Cancel the future if the answer is not needed: its messages are released.
        """
        self.admit(caller, Verb.CONSUME, queue.namespace)
        if pending is not None and not wait_s:
            direct = self.store.direct(queue)
            if direct is not None:
                try:
                    return direct.lease_for(
                        pending,
                        n,
                        lease_s=lease_s,
                        group=group,
                        holder=holder,
                        max_bytes=self.answer_room,
                    )
                except PenstockError as error:
                    self.metrics.refused(error)
                    raise
        wait_s = min(check_number("wait_s", wait_s, 0, _ABSURD_S), self.settings.max_wait_s)
        self.answer_room(max_bytes)  # raises if there is none now; asked again when it is its turn
        later = Later() if wait_s else None

        def lease() -> Future[list[LeasedMessage]]:
            if not wait_s:
                return self.store.lease(
                    queue,
                    n,
                    lease_s=lease_s,
                    group=group,
                    holder=holder,
                    max_bytes=partial(self.answer_room, max_bytes),
                )
            return self.waiting.lease(
                queue,
                n,
                lease_s=lease_s,
                group=group,
                holder=holder,
                wait_s=wait_s,
                max_bytes=max_bytes,
                later=later,
            )

        in_queue, nothing = self._in_queue, list[LeasedMessage]()
        answer = in_queue.do(
            queue,
            lease,
            lambda: in_queue.check_lease(queue, n, lease_s, group),
            if_missing=None if wait_s else nothing,
        )
        if later is not None and later.waiter is None:
            self.waiting.expect(answer, later)  # the queue is being created
        return answer

    def lease_one(
        self, caller: Caller, queue: QueueName, pending: Pending
    ) -> Future[list[LeasedMessage]] | list[LeasedMessage] | None:
        """Lease a message of group `main` without waiting: the usual `lease`, in fewer steps."""
        direct = self.store.direct(queue) if self._open else None
        if direct is not None:
            self.admit(caller, Verb.CONSUME, queue.namespace)
            try:
                unanswered = self.store.unanswered_bytes
                self.held.check_room(encoded_bytes(unanswered) if unanswered else 0)
                return direct.lease_one_for(pending, self.answer_room)
            except PenstockError as error:
                self.metrics.refused(error)
                raise
        return self.lease(caller, queue, pending=pending)

    def lease_dead(
        self,
        caller: Caller,
        queue: QueueName,
        *,
        n: int = 1,
        lease_s: float | None = None,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
    ) -> Future[list[LeasedMessage]]:
        """Lease up to `n` dead letters. An ack removes them; after anything else they stay dead."""
        self.admit(caller, Verb.CONSUME, queue.namespace)
        return self.store.lease(
            queue,
            n,
            lease_s=lease_s,
            group=group,
            holder=holder,
            dead=True,
            max_bytes=self.answer_room,
        )

    def answer_room(self, max_bytes: int | None = None) -> int:
        """Return how many bytes of messages one answer may have now, at least one."""
        unanswered, most = self.store.unanswered_bytes, self.settings.max_answer_bytes
        room = self.held.check_room(encoded_bytes(unanswered) if unanswered else 0) * 3 // 4
        if room > most:
            room = most
        if max_bytes is not None and max_bytes < room:
            room = max_bytes
        return room or 1

    @overload
    def settle(
        self, caller: Caller, settlements: Sequence[Settlement]
    ) -> Future[list[Outcome]]: ...
    @overload
    def settle(
        self, caller: Caller, settlements: Sequence[Settlement], pending: Pending
    ) -> Future[list[Outcome]] | list[Outcome] | None: ...
    def settle(
        self,
        caller: Caller,
        settlements: Sequence[Settlement],
        pending: Pending | None = None,
    ) -> Future[list[Outcome]] | list[Outcome] | None:
        """Settle each by itself: receipts say themselves of which queue they are.

        A receipt of a namespace that the caller has no right to refuses the whole call.
        """
        self.admit(caller, Verb.CONSUME, caller.any_namespace)
        if pending is not None and len(settlements) == 1:
            direct = self._direct_of(caller, settlements[0])
            if direct is not None:
                return direct.settle_for(pending, settlements)
        return settle_by_queue(self.store, self._catalogue, caller, settlements)

    def ack(
        self, caller: Caller, receipt: str, pending: Pending
    ) -> Future[list[Outcome]] | list[Outcome] | None:
        """Ack one message: the usual call of `settle`, in fewer steps."""
        self.admit(caller, Verb.CONSUME, caller.any_namespace)
        try:
            read = Receipt.unpack(receipt)
        except ReceiptInvalid:
            queue = None
        else:
            queue = self._catalogue.queue_of(read.identity)
        if queue is not None:
            if caller.namespaces is not None:
                caller.check(Verb.CONSUME, queue.namespace)
            direct = self.store.direct(queue)
            if direct is not None:
                return direct.ack_one_for(pending, receipt, read)
        settlements = [Settlement("ack", receipt)]
        return settle_by_queue(self.store, self._catalogue, caller, settlements)

    def _direct_of(self, caller: Caller, settlement: Settlement) -> DirectQueue | None:
        """Return the queue of a receipt, if it is known and free."""
        try:
            queue = self._catalogue.queue_of(Receipt.unpack(settlement.receipt).identity)
        except ReceiptInvalid:
            return None
        if queue is None:
            return None
        if caller.namespaces is not None:
            caller.check(Verb.CONSUME, queue.namespace)
        return self.store.direct(queue)

    def give_back(self, leased: Sequence[LeasedMessage]) -> None:
        """Release messages that could not be delivered, without counting the attempt."""
        self.release([one.receipt for one in leased])

    def release(self, receipts: Sequence[str]) -> None:
        """Release leased messages by their receipts, without counting the attempt."""
        if receipts and self._open:
            settlements = [Settlement("release", receipt) for receipt in receipts]
            settle_by_queue(self.store, self._catalogue, INSIDE, settlements)

    @property
    def progress(self) -> tuple[int, int]:
        """Queues recovered, and queues in all, while it starts."""
        return self.store.progress

    @property
    def trouble(self) -> str | None:
        """Why some queue takes no writes; None if all is well."""
        return self.store.trouble if self._open else None

    async def database_state(self) -> DatabaseState | None:
        """Return the state of the database behind the store; None if there is none."""
        return await self.store.database_state()

    def has_queue(self, queue: QueueName) -> bool:
        """Return whether the queue exists."""
        return queue in self._catalogue

    # -- looking -----------------------------------------------------------------------------------

    async def queue_of_message(self, id: str) -> QueueName:
        """Return the queue of a message id. Raise NoSuchMessage if there is none."""
        identity = parse_id(id)[1]
        queue = self._catalogue.queue_of(identity) or await self.store.find(identity)
        if queue is None:
            raise NoSuchMessage(f"there is no message {id}")
        return queue

    def run(
        self, caller: Caller, operation: Operation[A], queue: QueueName | None = None
    ) -> Future[A]:
        """Run an operation in a queue. A message's own operations find the queue by its id."""
        if queue is None:
            id_: str = operation.id  # type: ignore[attr-defined]
            queue = self._catalogue.queue_of(parse_id(id_)[1])
            if queue is None:
                return asyncio.ensure_future(self._find_and_run(caller, operation, id_))
        self.admit(caller, operation.verb, queue.namespace)
        if operation.bounded:
            operation = operation.with_internal("max_bytes", self.answer_room())
        elif isinstance(operation, Compact):
            # A namespace with a quota needs the room; elsewhere the last messages stay for replay.
            seal = self._catalogue.has_byte_quota(queue.namespace)
            operation = cast(Operation[A], operation.with_internal("seal", seal))
        if operation.creates_queue:
            return self._in_queue.do(queue, partial(self.store.run, queue, operation))
        return self.store.run(queue, operation)

    async def _find_and_run(self, caller: Caller, operation: Operation[A], id: str) -> A:
        """Another broker may have created the queue a moment ago."""
        return await self.run(caller, operation, await self.queue_of_message(id))

    async def pages(
        self,
        caller: Caller,
        queue: QueueName,
        browse: Browse,
    ) -> AsyncGenerator[Page, None]:
        """Yield all pages of a search, each read when it is asked for."""
        while True:
            page = await self.run(caller, browse, queue)
            yield page
            if not page.next_seq:
                return
            browse = replace(browse, after_seq=page.next_seq)

    def waiting_calls(self, caller: Caller, queue: QueueName) -> dict[str, int]:
        """Return how many calls wait for messages of each group, at this broker."""
        self.admit(caller, Verb.READ, queue.namespace)
        return self.waiting.counts(queue)

    def redrive_paced(
        self, caller: Caller, queue: QueueName, redrive: Redrive, max_rate: float
    ) -> Future[int]:
        """Redrive at most `max_rate` dead letters a second, in the background. Return how many.

        It goes on after a restart, or on another broker of the store. See `paced_redrives`.
        """
        self.admit(caller, redrive.verb, queue.namespace)
        check_number("max_rate", max_rate, 1e-6, 1e9)
        return self._paced.redrive(queue, redrive, rate_per_s=max_rate)

    async def paced_redrives(self, caller: Caller, queue: QueueName) -> list[PacedRedrive]:
        """Return the paced redrives of a queue that run, wait for a retry, or failed."""
        self.admit(caller, Verb.READ, queue.namespace)
        if queue not in self._catalogue:
            raise NoSuchQueue(f"there is no queue {queue}")
        return await self._paced.unfinished(queue)

    async def cancel_paced_redrive(self, caller: Caller, queue: QueueName, id: str) -> None:
        """End a paced redrive. Raise NoSuchRedrive if the queue has none of that id (any more)."""
        self.admit(caller, Redrive.verb, queue.namespace)
        if queue not in self._catalogue:
            raise NoSuchQueue(f"there is no queue {queue}")
        if not await self.background.run(self._paced.cancel(queue, id)):
            raise NoSuchRedrive(f"queue {queue} has no redrive {id!r}: it is finished or cancelled")

    async def cancel_deliverable(self, caller: Caller, queue: QueueName) -> int:
        """Cancel what group main has ready, parked or leased. Return the number of messages.

        Scheduled messages and dead letters stay. What is published meanwhile may stay as well.
        """
        found = await self.run(caller, GetStats(), queue)
        left = found.ready + found.parked + found.leased
        cancelled = 0
        while cancelled < left:  # in steps, so that other calls have their turn
            step = CancelDeliverable(min(left - cancelled, _STEP))
            done = await self.run(caller, step, queue)
            if not done:
                break
            cancelled += done
        return cancelled

    async def metrics_page(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        queues = self._catalogue.queues()
        found: list[tuple[QueueName, Stats]] = []
        for number, queue in enumerate(queues, start=1):
            try:
                found.append((queue, await self.store.run(queue, GetStats())))
            except (PenstockError, OSError):
                continue
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        database = await self.store.database_state()
        return await asyncio.to_thread(self.metrics.page, found, database)

    async def overview(self, caller: Caller, namespace: str | None = None) -> Overview:
        """Return the sum over the queues that the caller may read. It opens no queue."""
        return await self._overviews.totals(self.queues(caller, namespace), self.trouble)

    async def list_queues(
        self,
        caller: Caller,
        namespace: str | None = None,
        *,
        text: str = "",
        sort: str = "name",
        descending: bool = False,
        after: tuple[float | str, str] | None = None,
        limit: int = 50,
        spark: str = "",
    ) -> QueuePage:
        """Return a page of the queues that the caller may read, with their counts.

        `text` is a part of the name. `sort` is one of `QUEUE_COLUMNS`. `after` is the `next` of the
        page before. `spark` is a series of the charts. It opens no queue.
        """
        return await self._overviews.page(
            self.queues(caller, namespace),
            text=text,
            sort=sort,
            descending=descending,
            after=after,
            limit=limit,
            spark=spark,
        )

    async def chart(
        self,
        caller: Caller,
        queue: QueueName | None = None,
        *,
        since: float | None = None,
        until: float | None = None,
        max_points: int = 720,
    ) -> Chart:
        """Return the history of a queue, or of all queues; of the last hour by default."""
        self.admit(caller, Verb.READ, None if queue is None else queue.namespace)
        if queue is not None and queue not in self._catalogue:
            raise NoSuchQueue(f"there is no queue {queue}")
        now_s = self.clock.now_ns() / NS
        check_whole("max_points", max_points, 1, MAX_POINTS)
        since = now_s - 3600 if since is None else check_number("since", since, 0, MAX_TIME_S)
        until = now_s if until is None else check_number("until", until, 0, MAX_TIME_S)
        return await self.charts.read(queue, since, until, max_points)

    async def storage_state(self, caller: Caller) -> StorageState:
        """Return how long syncs take, and how much room the store uses and has."""
        self.admit(caller, Verb.READ, None)
        sizes = await self._overviews.totals(self._catalogue.queues(), self.trouble)
        return StorageState(
            self.metrics.commits.percentiles(),
            sizes.queues,
            sizes.size_bytes,
            sizes.free_bytes,
            self.trouble,
            await self.store.database_state(),
        )

    # -- keys: they need the right to manage the whole broker --------------------------------------

    async def list_keys(self, caller: Caller) -> list[Key]:
        """Return all keys, revoked ones included. None has its secret."""
        self.admit(caller, Verb.MANAGE, None)
        return await self._keys.list()

    async def create_key(
        self,
        caller: Caller,
        label: str,
        verbs: Iterable[str],
        namespaces: Iterable[str] | None = None,
    ) -> tuple[Key, str]:
        """Create a key. Return it, and its token, which is not kept.

        Raise NotAllowed if it would allow a verb that the caller may not use itself.
        """
        self.admit(caller, Verb.MANAGE, None)
        wanted = list(verbs)
        beyond = [verb for verb in wanted if verb in EVERY_VERB - caller.verbs]
        if beyond:
            raise NotAllowed(
                f"this key may not {beyond[0]} itself, so it cannot make a key that may"
            )
        return await self._keys.create(label, wanted, namespaces)

    async def revoke_key(self, caller: Caller, id: str) -> Key:
        """Revoke a key: every broker refuses it within about a second. It stays listed."""
        self.admit(caller, Verb.MANAGE, None)
        return await self._keys.revoke(id)

    # -- catalogue ---------------------------------------------------------------------------------

    def namespaces(self, caller: Caller) -> list[NamespaceInfo]:
        """Return the namespaces that the caller may read."""
        self.admit(caller, Verb.READ, caller.any_namespace)
        every = self._catalogue.namespaces()
        return [one for one in every if caller.may(Verb.READ, one.name)]

    def namespace(self, caller: Caller, name: str) -> NamespaceInfo:
        self.admit(caller, Verb.READ, name)
        return self._catalogue.namespace(name)

    async def create_namespace(
        self,
        caller: Caller,
        name: str,
        *,
        defaults: Mapping[str, Any] | None = None,
        max_queues: int = 0,
        max_bytes: int = 0,
    ) -> NamespaceInfo:
        """Create a namespace. Raise AlreadyExists if it exists; see `change_namespace`."""
        self.admit(caller, Verb.MANAGE, name)
        return await self._catalogue.create_namespace(name, defaults or {}, max_queues, max_bytes)

    async def change_namespace(
        self, caller: Caller, name: str, changes: Mapping[str, Any]
    ) -> NamespaceInfo:
        """Change `defaults`, `max_queues` or `max_bytes`; queues that are there keep their own."""
        self.admit(caller, Verb.MANAGE, name)
        return await self._catalogue.change_namespace(name, changes)

    async def delete_namespace(self, caller: Caller, name: str, *, force: bool = False) -> None:
        """Delete a namespace. Raise NotEmpty if it has queues, unless forced."""
        self.admit(caller, Verb.MANAGE, name)

        async def delete() -> None:
            for queue in await self.store.delete_namespace(name, force=force):
                await self._deleted(queue)

        await self.background.run(delete())

    async def delete_empty_namespace(self, caller: Caller, name: str) -> None:
        """Delete a namespace and its queues; NotEmpty while one of them holds a message."""
        self.admit(caller, Verb.MANAGE, name)
        self._catalogue.namespace(name)
        queues = self._catalogue.queues(name)
        for queue in queues:
            held = (await self.store.run(queue, GetStats())).unfinished
            if held:
                raise NotEmpty(
                    f"queue {queue} holds {held} messages: consume or purge them, or delete the "
                    f"queue, before its namespace"
                )
        for queue in queues:
            await self.background.run(self._delete_queue(queue, if_empty=True))
        await self.store.delete_namespace(name, force=False)

    def queues(self, caller: Caller, namespace: str | None = None) -> list[QueueName]:
        """Return the names of queues that the caller may read, of one namespace or of all."""
        self.admit(caller, Verb.READ, caller.any_namespace if namespace is None else namespace)
        if namespace is not None:
            self._catalogue.namespace(namespace)
        found = self._catalogue.queues(namespace)
        return [queue for queue in found if caller.may(Verb.READ, queue.namespace)]

    def queue_info(self, caller: Caller, queue: QueueName) -> Future[QueueInfo]:
        self.admit(caller, Verb.READ, queue.namespace)
        return self.store.info(queue)

    async def create_queue(
        self, caller: Caller, queue: QueueName, settings: Mapping[str, Any] | None = None
    ) -> QueueInfo:
        """Create a queue, and its namespace if necessary. Raise AlreadyExists if it exists."""
        self.admit(caller, Verb.MANAGE, queue.namespace)
        return await self._catalogue.create_queue(queue, settings or {})

    def change_queue(
        self, caller: Caller, queue: QueueName, settings: Mapping[str, Any]
    ) -> Future[QueueInfo]:
        self.admit(caller, Verb.MANAGE, queue.namespace)
        self._catalogue.check_supported(settings)
        return self.store.change(queue, settings)

    async def delete_queue(self, caller: Caller, queue: QueueName) -> None:
        self.admit(caller, Verb.MANAGE, queue.namespace)
        await self.background.run(self._delete_queue(queue))

    async def _delete_queue(self, queue: QueueName, *, if_empty: bool = False) -> None:
        await self.store.delete(queue, if_empty=if_empty)
        await self._deleted(queue)

    async def _deleted(self, queue: QueueName) -> None:
        """Let go of what was about a queue that this broker deleted."""
        for listener in self.on_deleted:
            await listener(queue)
