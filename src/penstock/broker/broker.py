"""The broker: the only interface that transports use; nothing above it knows the store.

Each call names its caller. The broker checks the caller's rights and rate, creates queues on first
use, and lets calls wait for messages. Several brokers may share one store. Calls return futures,
see `store`. Everything runs in one event loop.
"""

import asyncio
import secrets
from asyncio import Future
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast, overload

from penstock.broker.access import INSIDE, Caller
from penstock.broker.background import Background
from penstock.broker.call_sharing import CallSharing
from penstock.broker.catalogue import Catalogue, CreateOnUse
from penstock.broker.charts import Charts
from penstock.broker.ended_sessions import EndedSessions
from penstock.broker.endings import Endings
from penstock.broker.following import Following
from penstock.broker.forwarded import ForwardedLease, ForwardedPublish
from penstock.broker.keys import KeyCalls, KeyEditor
from penstock.broker.limits import ClientBuckets, Held, encoded_bytes
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.moving import refuse_unfinished
from penstock.broker.namespaces import NamespaceCalls
from penstock.broker.overview import Overviews
from penstock.broker.paced_redrive import PacedRedrives, RedriveCalls
from penstock.broker.readers import Readers
from penstock.broker.segments import FileCalls
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
from penstock.broker.survey import Survey
from penstock.broker.waiting import Later, WaitingLines
from penstock.checking import check_number
from penstock.clock import Clock, SystemClock
from penstock.codec import parse_id
from penstock.errors import (
    NoSuchMessage,
    PenstockError,
    ReceiptInvalid,
    Unavailable,
)
from penstock.model import (
    MAIN_GROUP_NAME,
    LeasedMessage,
    Message,
    NewMessage,
    Published,
    Receipt,
)
from penstock.names import QueueName
from penstock.operations import (
    AwaitEnding,
    Browse,
    CancelDeliverable,
    Compact,
    GetStats,
    Operation,
    Page,
    Verb,
)
from penstock.queue.gate import are_behind_gates

A = TypeVar("A")

_SECRET_DOCUMENT = "secret"
_ABSURD_S = 86400.0  # asking to wait longer is a mistake
_STEP = 10_000  # messages cancelled at a time


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
        self.endings = Endings(store, most=self.settings.max_waiters)
        self.background = Background()
        self._catalogue = Catalogue(store, lambda: self.settings, self.clock)
        self._in_queue = CreateOnUse(
            store,
            self._catalogue,
            self.clock,
            self.metrics,
            is_allowed=lambda: self.settings.create_on_use,
        )
        self.files = FileCalls(store, self.admit, self._in_queue.do)
        self._limits = self._buckets()
        self.call_sharing = CallSharing(store, lambda: self._limits)
        self.node_id = secrets.token_hex(16)  # of this broker, as long as it runs
        self.ended_sessions = EndedSessions(store, self.clock)
        self.keys = KeyCalls(KeyEditor(store, self.clock), self.admit)
        self._paced = PacedRedrives(store, self.clock, self.node_id)
        self.readers = Readers(store, self.clock, self.admit, self.has_queue)
        self.following = Following(store, self.background)
        self.redrives = RedriveCalls(self._paced, self.admit, self.has_queue, self.background)
        self.namespaces = NamespaceCalls(
            store, self._catalogue, self.admit, self.background, self._deleted
        )
        self._open = False
        self.charts = Charts(store, self.clock, self.has_queue)  # a server starts it
        self._overviews = Overviews(store, self.clock, self.charts)
        self.survey = Survey(self, self._overviews)
        self.secret = b""  # of all brokers of the store, for cursors; known once it is started
        self.on_deleted: list[Callable[[QueueName], Awaitable[None]]] = [
            self._paced.queue_deleted,
            self.readers.queue_deleted,
        ]
        # Told the names of documents that changed.
        self.on_document_changed: list[Callable[[str], None]] = [
            self._paced.on_document,
            self.following.on_document,
            self.ended_sessions.on_document,
        ]

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
            await self.following.start()
        except BaseException:
            await self.store.close()
            raise
        self._open = True
        self.call_sharing.start()

    async def announce(self, url: str) -> None:
        """Publish the broker's URL, for processes that find the store locked."""
        await self.store.announce(url)

    async def stop(self) -> None:
        """Refuse new calls, answer waiting ones without messages, and close the store."""
        self._open = False
        self.waiting.close()
        self.endings.close()
        await self.call_sharing.stop()
        await self.charts.stop()
        await self._paced.close()
        await self.following.close()
        await self.background.finished()
        await self.store.close()

    # -- notices of the store ----------------------------------------------------------------------

    def on_ready(self, queue: QueueName) -> None:
        self.waiting.on_ready(queue)
        self.following.on_ready(queue)
        self.endings.on_ready(queue)

    def on_catalogue(self, namespaces: Sequence[NamespaceInfo], queues: QueueIdentities) -> None:
        gone = [queue for queue in self._catalogue.queues() if queue not in queues]
        self._catalogue.replace(namespaces, queues)
        for queue in gone:
            self.waiting.gone(queue)
            self.endings.gone(queue)
        self.following.on_missed()
        self.endings.on_missed()

    def on_namespace(self, name: str, namespace: NamespaceInfo | None) -> None:
        self._catalogue.set_namespace(name, namespace)

    def on_queue(self, queue: QueueName, identity: int | None) -> None:
        if self._catalogue.set_queue(queue, identity):
            self.waiting.gone(queue)
            self.endings.gone(queue)
            self.following.on_ready(queue)  # what comes after its messages is dead

    def on_document(self, name: str) -> None:
        for listener in self.on_document_changed:
            listener(name)

    async def on_question(self, question: Any) -> Any:
        match question:
            case ["overview"]:
                return await self._overviews.for_another()
            case ["calls", *taken]:
                self.call_sharing.received(taken)
                return None
            case ["chart", key, ring]:
                return self.charts.rows_for(key, ring)
        return None  # of a newer broker

    # -- settings and rights -----------------------------------------------------------------------

    def change_settings(self, settings: BrokerSettings) -> None:
        """Use new settings from now on. Existing queues keep theirs."""
        self._catalogue.check_supported(settings.queues)
        self.settings = settings
        self._limits = self._buckets()
        if self._open:
            self.call_sharing.start()

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
        for message in messages:
            if type(message) is NewMessage and message.after:
                ids = self.following.elsewhere(messages, self.identity_of(queue))
                if ids:
                    publish = partial(self._in_queue.publish, queue, messages)
                    are_gated = are_behind_gates(messages)
                    return self.background.run(
                        self.following.publish(queue, ids, publish, are_gated=are_gated)
                    )
                break
        direct = None if pending is None else self.store.direct(queue)
        if pending is not None and direct is not None:
            try:
                return direct.publish_for(pending, messages)
            except PenstockError as error:
                self.metrics.refused(error)
                raise
        if pending is not None:
            elsewhere = self.store.elsewhere(queue)
            if elsewhere is not None:
                answer = ForwardedPublish(self._in_queue, queue, messages, pending)
                if elsewhere.publish_for(answer, messages):
                    return None
        return self._in_queue.publish(queue, messages)

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
            lease if wait_s else in_queue.unless_deleted(queue, lease, nothing),
            lambda: in_queue.check_lease(queue, n, lease_s, group),
            if_missing=None if wait_s else nothing,
        )
        if later is not None and later.waiter is None:
            self.waiting.expect(answer, later)  # the queue is being created
        return answer

    def lease_one(
        self,
        caller: Caller,
        queue: QueueName,
        pending: Pending,
        length_of: Callable[[Message], int] | None = None,
    ) -> Future[list[LeasedMessage]] | list[LeasedMessage] | None:
        """Lease a message of group `main` without waiting: the usual `lease`, in fewer steps.

        `length_of`: the wished length of the lease, see `DirectQueue.lease_one_for`.
        """
        direct = self.store.direct(queue) if self._open else None
        if direct is not None:
            self.admit(caller, Verb.CONSUME, queue.namespace)
            try:
                unanswered = self.store.unanswered_bytes
                self.held.check_room(encoded_bytes(unanswered) if unanswered else 0)
                return direct.lease_one_for(pending, self.answer_room, length_of)
            except PenstockError as error:
                self.metrics.refused(error)
                raise
        elsewhere = self.store.elsewhere(queue) if self._open else None
        if elsewhere is None or queue not in self._catalogue:
            return self.lease(caller, queue, pending=pending)
        self.admit(caller, Verb.CONSUME, queue.namespace)
        try:
            elsewhere.lease_one_for(ForwardedLease(self.metrics, pending), self.answer_room())
        except PenstockError as error:
            self.metrics.refused(error)
            raise
        return None

    def lease_dead(
        self,
        caller: Caller,
        queue: QueueName,
        *,
        n: int = 1,
        lease_s: float | None = None,
        wait_s: float = 0.0,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
    ) -> Future[list[LeasedMessage]]:
        """Lease up to `n` dead letters. An ack removes them; after anything else they stay dead.

        Wait up to `wait_s` for the first, at most `max_wait_s`. The queue is not created.
        """
        self.admit(caller, Verb.CONSUME, queue.namespace)
        wait_s = min(check_number("wait_s", wait_s, 0, _ABSURD_S), self.settings.max_wait_s)
        if wait_s:
            return self.waiting.lease(
                queue,
                n,
                lease_s=lease_s,
                group=group,
                holder=holder,
                wait_s=wait_s,
                dead=True,
            )
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
        self, caller: Caller, receipt: str, read: Receipt, pending: Pending
    ) -> Future[list[Outcome]] | list[Outcome] | None:
        """Ack one message: the usual call of `settle`, in fewer steps.

        `read` is the unpacked receipt.
        """
        has_all = caller.namespaces is None
        self.admit(caller, Verb.CONSUME, None if has_all else caller.any_namespace)
        queue = self._catalogue.queue_of(read[0])
        if queue is not None:
            if not has_all:
                caller.check(Verb.CONSUME, queue.namespace)
            direct = self.store.direct(queue)
            if direct is not None:
                return direct.ack_one_for(pending, receipt, read)
            elsewhere = self.store.elsewhere(queue)
            if elsewhere is not None:
                elsewhere.ack_one_for(pending, receipt)
                return None
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
            releasing = settle_by_queue(self.store, self._catalogue, INSIDE, settlements)
            # If it fails, they are delivered again when their leases end.
            releasing.add_done_callback(lambda done: done.cancelled() or done.exception())

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
        return queue in self._catalogue.identities

    def identity_of(self, queue: QueueName) -> int | None:
        """Return the identity of a queue; None if there is no such queue."""
        return self._catalogue.identities.get(queue)

    def every_queue(self) -> list[QueueName]:
        """Return the names of all queues."""
        return self._catalogue.queues()

    # -- looking -----------------------------------------------------------------------------------

    async def queue_of_message(self, id: str) -> QueueName:
        """Return the queue of a message id. Raise NoSuchMessage if there is none."""
        identity = parse_id(id)[1]
        queue = self._catalogue.queue_of(identity) or await self.store.find(identity)
        if queue is None:
            raise NoSuchMessage(f"there is no message {id}")
        return queue

    def queue_of_receipt(self, receipt: str) -> QueueName | None:
        """Return the queue of a receipt; None if the receipt is invalid or the queue unknown."""
        try:
            return self._catalogue.queue_of(Receipt.unpack(receipt).identity)
        except PenstockError:
            return None

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
        if isinstance(operation, AwaitEnding):
            return cast(Future[A], asyncio.ensure_future(self.endings.wait(queue, operation)))
        if operation.bounded:
            operation = operation.with_internal("max_bytes", self.answer_room())
        elif isinstance(operation, Compact):
            # A namespace with a quota needs the room; elsewhere the last messages stay for replay.
            seal = self._catalogue.has_byte_quota(queue.namespace)
            operation = cast(Operation[A], operation.with_internal("seal", seal))
        if operation.creates_queue:
            run = partial(self.store.run, queue, operation)
            return self._in_queue.do(queue, self._in_queue.unless_deleted(queue, run))
        return self.store.run(queue, operation)

    def browse(self, caller: Caller, queue: QueueName, browse: Browse) -> Future[Page] | Page:
        """Return a page, at once if that takes little time: the usual `run`, in fewer steps."""
        direct = self.store.direct(queue) if self._open else None
        if direct is None:
            return self.run(caller, browse, queue)
        self.admit(caller, Verb.READ, queue.namespace)
        room = self.answer_room()
        page = direct.browse_now(browse, room)
        return page or self.store.run(queue, browse.with_internal("max_bytes", room))

    async def _find_and_run(self, caller: Caller, operation: Operation[A], id: str) -> A:
        """Another broker may have created the queue a moment ago."""
        return await self.run(caller, operation, await self.queue_of_message(id))

    async def browse_on(self, queue: QueueName, browse: Browse, max_bytes: int) -> Page:
        """Return a page of an export, of at most `max_bytes` but at least one message.

        `admit` was called for the whole export: a page counts as no call of the client.
        """
        if not self._open:
            raise Unavailable("the broker is stopping: try again in a moment")
        most = min(max_bytes, self.settings.max_answer_bytes)
        return await self.store.run(queue, browse.with_internal("max_bytes", most))

    def waiting_calls(self, caller: Caller, queue: QueueName) -> dict[str, int]:
        """Return how many calls wait for messages of each group, at this broker."""
        self.admit(caller, Verb.READ, queue.namespace)
        return self.waiting.counts(queue)

    async def cancel_deliverable(self, caller: Caller, queue: QueueName) -> int:
        """Cancel what group main has ready, parked, blocked or leased. Return how many.

        Scheduled messages and dead letters stay. What is published meanwhile may stay as well.
        """
        found = await self.run(caller, GetStats(), queue)
        left = found.ready + found.parked + found.blocked + found.leased
        cancelled = 0
        while cancelled < left:  # in steps, so that other calls have their turn
            step = CancelDeliverable(min(left - cancelled, _STEP))
            done = await self.run(caller, step, queue)
            if not done:
                break
            cancelled += done
        return cancelled

    # -- catalogue ---------------------------------------------------------------------------------

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

        async def delete() -> None:
            await self.store.delete(queue)
            await self._deleted(queue)

        await self.background.run(delete())

    async def _deleted(self, queue: QueueName) -> None:
        """Let go of what was about a queue that this broker deleted."""
        for listener in self.on_deleted:
            await listener(queue)
