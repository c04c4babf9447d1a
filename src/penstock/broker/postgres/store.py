"""The store on a PostgreSQL database. See `penstock.broker.store` for what each call means.

Each queue is open in one broker at a time, its owner, which keeps its log in the database (see
`files`). The other brokers forward their calls to the owner (see `channel`). If the owner stops or
dies, the next broker that needs the queue takes it over, and recovers it as after a crash.

Times are those of the owner's clock, as on files: its leases and delays are decided in one process.
The database's clock decides only between brokers: who is alive, and who has a lock.
"""

import asyncio
import logging
from asyncio import Future
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from penstock.broker.background import Background
from penstock.broker.embedded.commit_loop import CommitLoop, HeldResult, SyncThreads, Threads
from penstock.broker.embedded.open_queue import OpenQueue
from penstock.broker.embedded.quotas import Quotas
from penstock.broker.embedded.shelf import Shelf
from penstock.broker.embedded.timer import Timer
from penstock.broker.postgres import schema
from penstock.broker.postgres.channel import Caller, ChannelLost, Door, NotSent, Peer
from penstock.broker.postgres.committer import Committer
from penstock.broker.postgres.database import Database
from penstock.broker.postgres.health import Health
from penstock.broker.postgres.membership import Caches, Membership, OwnedElsewhere
from penstock.broker.postgres.outbox import Outbox
from penstock.broker.postgres.tables import BeingMade, Change, Tables
from penstock.broker.store import (
    DatabaseState,
    NamespaceInfo,
    Outcome,
    Publishable,
    QueueInfo,
    Settlement,
    StoreListener,
    no_byte_limit,
    payload_bytes,
)
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    NoSuchQueue,
    NotEmpty,
    PenstockError,
    Unavailable,
)
from penstock.model import MAIN_GROUP_NAME, LeasedMessage, NewMessage, Published
from penstock.names import QueueName
from penstock.operations import GetStats, Operation
from penstock.queue.segments import (
    Adoption,
    LogName,
    QueueSegments,
    SegmentBytes,
    StagedSegment,
    StagingInfo,
)
from penstock.queue.settings import QueueSettings

log = logging.getLogger("penstock.broker")
_T = TypeVar("_T")

BEAT_S = 1.0  # between two looks for changes, and signs of life
_RETRY_S = 0.05
_UNWATCH_AFTER_S = 10.0
_RELOAD_AFTER_S = 600.0  # without a look for changes: then the whole catalogue is read again


class ClusterOptions(NamedTuple):
    """How a broker takes part in a cluster."""

    schema: str = "penstock"
    max_connections: int = 16
    host: str = ""  # where other brokers reach this one; "": as the database sees it
    port: int = 0  # 0: any
    cache: str | None = None  # directory of the cache; None: that of temporary files
    migrate: bool = True
    patience_s: float = 30.0  # for a database, or an owner of a queue, that does not answer
    beat_s: float = BEAT_S
    outbox_s: float = 0.2  # between two looks into the outbox, by the broker that moves it
    queue_defaults: Mapping[str, Any] = MappingProxyType({"sync": "always"})  # of new queues
    locks_clock: Clock | None = None  # None: the database's


def _unobserved(seconds: float, answers: int) -> None:
    """The default of `observe_commit`."""


class PostgresStore:
    """Queues in a database, for any number of brokers."""

    def __init__(
        self,
        url: str,
        options: ClusterOptions | None = None,
        *,
        max_open: int = 256,
        idle_close_s: float = 300.0,
        observe_commit: Callable[[float, int], None] = _unobserved,
        clock: Clock | None = None,
        sync_threads: Callable[[asyncio.AbstractEventLoop], Threads] = SyncThreads,
    ) -> None:
        self._url = url
        self._options = options = options or ClusterOptions()
        self._max_open = max_open
        self._idle_close_s = idle_close_s
        self._observe_commit = observe_commit
        self._clock = clock or SystemClock()
        self._sync_threads = sync_threads
        self.database = Database(
            url,
            schema=options.schema,
            max_connections=options.max_connections,
            patience_s=options.patience_s,
        )
        self._tables = Tables(self.database, options.locks_clock)
        self.membership = Membership(self.database)
        self._health = Health(self.database)
        self._is_claimed = False
        self._listener: StoreListener | None = None
        self._last_change = 0
        self._looked_at = 0.0
        self._trouble: str | None = None
        self._owners: dict[QueueName, str] = {}  # addresses of other brokers, as last known
        self._peers: dict[str, Peer] = {}
        self._watched: Counter[QueueName] = Counter()
        self._watching: dict[QueueName, set[Caller]] = {}  # other brokers, by what they watch
        self._opening: dict[QueueName, Future[OpenQueue]] = {}
        self._lost: dict[QueueName, Future[None]] = {}  # queues that are being closed
        self._beating: asyncio.Task[None] | None = None
        self._outbox: Outbox | None = None
        self._is_open = False
        self.files = PostgresStoreFiles(self)

    # -- life --------------------------------------------------------------------------------------

    async def claim(self) -> None:
        if not self._is_claimed:
            self.database.open_again()
            try:
                await asyncio.to_thread(self._prepare)
            except BaseException:
                self.database.close()
                raise
            self._is_claimed = True

    async def open(self, listener: StoreListener) -> None:
        try:
            await self._open(listener)
        except BaseException:
            await self.close()
            raise

    async def _open(self, listener: StoreListener) -> None:
        await self.claim()
        loop = self._loop = asyncio.get_running_loop()
        self._background = Background()
        self._refreshing = asyncio.Lock()
        self._committer = Committer(self.database)
        await self._committer.open()
        self._commits = CommitLoop(
            self._clock, self._observe_commit, self._sync_threads, self._committer
        )
        self._timer: Timer[QueueName] = Timer(self._wake)
        self._caches = Caches(
            self.database,
            self.membership,
            self._options.cache,
            self._on_lost_in_thread,
            self._tables.delete_queue,
        )
        await asyncio.to_thread(self._caches.open)
        self._shelf = Shelf(
            self._caches,
            self._commits,
            self._timer,
            self._background,
            on_ready=self._on_ready,
            on_queue=_ignore,  # the changes tell of it
            clock=self._clock,
            max_open=self._max_open,
            idle_close_s=self._idle_close_s,
        )
        self._is_open = True
        self._key, seen_at = await asyncio.to_thread(self.membership.cluster_key)
        host = self._options.host or seen_at
        self._door = Door(self, self._key)
        self._outbox = Outbox(self.database, self, self._options.outbox_s, self._new_settings)
        port = await self._door.open(host, self._options.port)
        await asyncio.to_thread(self.membership.join, f"{host}:{port}")
        self._listener = listener
        await self._reload()
        self._shelf.close_idle_later()
        self._beating = loop.create_task(self._beat())
        self._outbox.start(f"{host}:{port}")

    async def close(self) -> None:
        self._listener = None
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
            self._beating = None
        if self._outbox is not None:
            await self._outbox.close()
            self._outbox = None
        if self._is_open:
            self._is_open = False
            self._timer.close()
            await self._background.finished()
            await self._shelf.close()
            await self._commits.close()
            await self._committer.close()
            with suppress(PenstockError):  # then its queues are free as soon as it counts as dead
                await asyncio.to_thread(self.membership.leave)
            self._door.close()
            for peer in list(self._peers.values()):
                peer.close()
            await asyncio.to_thread(self._caches.close)
        self._is_claimed = False
        await asyncio.to_thread(self.database.close)

    def announce(self, url: str) -> Future[None]:
        return self._in_thread(self.membership.announce, url)

    @property
    def progress(self) -> tuple[int, int]:
        return (1, 1) if self._listener is not None else (0, 1)

    @property
    def trouble(self) -> str | None:
        return self._trouble or (self._shelf.trouble() if self._is_open else None)

    async def database_state(self) -> DatabaseState:
        return await self._health.state()

    @property
    def quotas(self) -> Quotas:
        """Return what the namespaces may hold, and hold."""
        return self._shelf.quotas

    # -- changes that other brokers made, and signs of life ----------------------------------------

    async def _beat(self) -> None:
        forget_at = self._loop.time() + _RELOAD_AFTER_S
        while True:
            await asyncio.sleep(self._options.beat_s)
            try:
                await asyncio.to_thread(self.membership.renew)
                await self.refresh()
                await self._share_sizes()
                if self._loop.time() >= forget_at:
                    forget_at = self._loop.time() + _RELOAD_AFTER_S
                    await asyncio.to_thread(self._tables.forget_old_changes)
                self._trouble = None
            except Exception as error:
                self._trouble = f"PostgreSQL ({self.database.name}) does not answer: {error}"
                log.warning("%s", self._trouble)

    async def refresh(self) -> None:
        """Read what changed in the catalogue and the documents, and notify the listener."""
        async with self._refreshing:
            if self._loop.time() - self._looked_at > _RELOAD_AFTER_S:
                await self._reload()
                return
            last, changes = await asyncio.to_thread(self._tables.changes_since, self._last_change)
            self._last_change, self._looked_at = last, self._loop.time()
            for change in changes:
                await self._apply(change)

    async def _reload(self) -> None:
        """Read the whole catalogue."""
        last, namespaces, queues = await asyncio.to_thread(self._tables.catalogue)
        self._last_change, self._looked_at = last, self._loop.time()
        found = {row.queue: row for row in queues}
        for queue in self._shelf.names(None):
            if queue not in found:
                await self._shelf.forget(queue)
        for row in queues:
            self._shelf.add(row.queue, row.size_bytes)
        self._shelf.quotas.namespaces.clear()
        self._shelf.quotas.namespaces.update({one.name: one for one in namespaces})
        if self._listener is not None:
            self._listener.on_catalogue(namespaces, {row.queue: row.identity for row in queues})

    async def _apply(self, change: Change) -> None:
        listener = self._listener
        if change.kind == "document":
            if listener is not None:
                listener.on_document(change.name)
        elif change.kind == "namespace":
            quotas = self._shelf.quotas
            if change.namespace is None:
                quotas.forget(change.name)
            else:
                quotas.namespaces[change.name] = change.namespace
            if listener is not None:
                listener.on_namespace(change.name, change.namespace)
        else:
            queue = QueueName.parse(change.name)
            self._owners.pop(queue, None)
            if change.queue is None:
                await self._shelf.forget(queue)
            else:
                self._shelf.add(queue, change.queue.size_bytes)
            if listener is not None:
                listener.on_queue(queue, change.queue and change.queue.identity)

    async def _share_sizes(self) -> None:
        """Exchange the sizes of queues with the other brokers, for quotas of bytes."""
        shelf = self._shelf
        limited = [one.name for one in shelf.quotas.namespaces.values() if one.max_bytes]
        if not limited:
            return
        own = {q: size for q, size in shelf.open_sizes().items() if q.namespace in limited}
        number = self.membership.number
        await asyncio.to_thread(self._tables.save_sizes, number, own)
        for row in await asyncio.to_thread(self._tables.sizes_of, limited):
            if row.queue in shelf:
                shelf.add(row.queue, row.size_bytes)

    def _on_ready(self, queue: QueueName) -> None:
        if self._listener is not None:
            self._listener.on_ready(queue)
        for caller in self._watching.get(queue, ()):
            caller.notify(queue)

    def _wake(self, queue: QueueName) -> None:
        found = self._shelf.get(queue)
        if found is not None:
            found.wake()

    def _on_lost_in_thread(self, queue: QueueName) -> None:
        self._loop.call_soon_threadsafe(self._on_lost, queue)

    def _on_lost(self, queue: QueueName) -> None:
        """Close a queue whose log takes no more writes. The next call finds its owner anew."""
        if queue in self._lost or not self._is_open:
            return
        log.warning("queue %s: the database took no write; it is opened again", queue)
        closing = self._lost[queue] = asyncio.ensure_future(self._shelf.discard(queue))

        def closed(done: Future[None]) -> None:
            del self._lost[queue]
            if not done.cancelled() and done.exception() is not None:
                log.error("queue %s could not be closed: %s", queue, done.exception())
            self._on_ready(queue)  # waiting calls look for the new owner

        closing.add_done_callback(closed)

    # -- finding the owner of a queue --------------------------------------------------------------

    def watch(self, queue: QueueName) -> None:
        self._watched[queue] += 1
        self._shelf.watch(queue)
        if self._shelf.get(queue) is None and self._watching_peer(queue) is None:
            looking = self.call(queue, "find")
            _forgotten(looking)
            # A message may have come before the owner knew that this broker watches.
            looking.add_done_callback(lambda _: self._on_notice(queue))

    def unwatch(self, queue: QueueName) -> None:
        self._shelf.unwatch(queue)
        self._watched[queue] -= 1
        if not self._watched[queue]:
            del self._watched[queue]
            if self._watching_peer(queue) is not None:
                # Not at once: the next call that waits is likely to come soon.
                self._loop.call_later(_UNWATCH_AFTER_S, self._unwatch_elsewhere, queue)

    def _watching_peer(self, queue: QueueName) -> Peer | None:
        """Return the owner of a queue, if that watches it for this broker."""
        peer = self._peers.get(self._owners.get(queue, ""))
        return peer if peer is not None and queue in peer.watched else None

    def _unwatch_elsewhere(self, queue: QueueName) -> None:
        peer = self._watching_peer(queue)
        if peer is not None and queue not in self._watched:
            peer.watched.discard(queue)
            with suppress(ChannelLost):
                _forgotten(peer.call("unwatch", (queue,), _ignore))

    def call(self, queue: QueueName, method: str, *arguments: Any) -> "Future[Any]":
        """Carry out a method of a queue: here if it is open here, else where its owner is."""
        found = self._free(queue)
        if found is not None:
            return self._call_here(found, method, arguments)
        return self._commits.run(partial(self._find_and_call, queue, method, arguments))

    def _free(self, queue: QueueName) -> OpenQueue | None:
        """Return the queue if it is open here and can be used now."""
        found = self._shelf.get(queue)
        if found is None or found.is_occupied or queue in self._lost:
            return None
        return found

    def _call_here(self, found: OpenQueue, method: str, arguments: Any) -> "Future[Any]":
        quotas = self._shelf.quotas
        if method in _ADDING:
            quotas.check_bytes(found.name.namespace)
        answer: Future[Any] = _METHODS[method](found, *arguments)
        if quotas.is_counting:
            quotas.note(found, answer)
        return answer

    async def _find_and_call(
        self, queue: QueueName, method: str, arguments: Any, held: HeldResult
    ) -> Any:
        ends_at = self._loop.time() + self._options.patience_s
        while True:
            address = self._owners.get(queue)
            try:
                if address is None:
                    result = await self._open_and_call(queue, method, arguments)
                else:
                    result = await self._forward(address, queue, method, arguments)
                if method == "lease":
                    held.hold(payload_bytes(result))
                return result
            except OwnedElsewhere as error:
                if address is None:  # the database says so, perhaps to many calls at once
                    self._owners[queue] = error.address
                else:
                    self._forget_owner(queue, address)
            except NoSuchQueue:
                # The owner as last known may have deleted it, and another broker made it anew.
                if address is None:
                    raise
                self._forget_owner(queue, address)
            except ChannelLost as error:
                if address is not None:
                    self._forget_owner(queue, address)
                may_repeat = isinstance(error, NotSent) or _is_repeatable(method, arguments)
                if self._loop.time() >= ends_at or not may_repeat:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def _opened(self, queue: QueueName) -> OpenQueue:
        """Open a queue, or learn who owns it: once for all calls that wait for it."""
        opening = self._opening.get(queue)
        if opening is None:
            opening = self._background.run(self._shelf.opened(queue))
            self._opening[queue] = opening
            opening.add_done_callback(lambda _: self._opening.pop(queue))
            _forgotten(opening)  # its callers may all be cancelled
        return await asyncio.shield(opening)

    def _forget_owner(self, queue: QueueName, address: str) -> None:
        """Forget who owns a queue, unless another call has found a new owner meanwhile."""
        if self._owners.get(queue) == address:
            del self._owners[queue]

    async def _open_and_call(self, queue: QueueName, method: str, arguments: Any) -> Any:
        """Call a method of a queue that this broker owns, or takes over."""
        if queue not in self._shelf:
            await self.refresh()  # another broker may have created it a moment ago
        while True:
            if queue in self._lost:
                await asyncio.wait([self._lost[queue]])
            if method in _OF_SHELF:
                return await _OF_SHELF[method](self, queue, *arguments)
            found = await self._opened(queue)
            async with found.turn:
                if self._shelf.get(queue) is found and queue not in self._lost:
                    answer = self._call_here(found, method, arguments)
                    break
        return await answer

    async def _forward(self, address: str, queue: QueueName, method: str, arguments: Any) -> Any:
        peer = self._peers.get(address)
        if peer is None:
            peer = Peer(address, self._key, self._on_notice, self._on_peer_lost)
            self._peers[address] = peer
        if not peer.is_connected:
            await peer.connect()
        if queue in self._watched and queue not in peer.watched:
            # Before the call, on the same connection: no message is missed.
            peer.watched.add(queue)
            _forgotten(peer.call("watch", (queue,), _ignore))
        if method == "lease":
            *others, max_bytes = arguments
            arguments = (*others, max_bytes())
        return await peer.call(method, (queue, *arguments), partial(self._late, queue, method))

    def _late(self, queue: QueueName, method: str, result: Any) -> None:
        """Give back messages that came after their call was cancelled."""
        if method == "lease" and result and self._is_open:
            _forgotten(self.settle(queue, [Settlement("release", one.receipt) for one in result]))

    def _on_notice(self, queue: QueueName) -> None:
        if self._listener is not None and queue in self._watched:
            self._listener.on_ready(queue)

    def _on_peer_lost(self, peer: Peer) -> None:
        """Look for the owners anew; waiting calls do so at once."""
        if self._peers.get(peer.address) is peer:
            del self._peers[peer.address]
        queues = [queue for queue, owner in self._owners.items() if owner == peer.address]
        for queue in queues:
            del self._owners[queue]
            self._on_notice(queue)

    # -- calls of other brokers --------------------------------------------------------------------

    def answer(self, caller: Caller, method: str, arguments: Any) -> "Future[Any]":
        """Answer a call that another broker forwarded. It is not forwarded once more."""
        queue, *others = arguments
        if method == "watch":
            return self._watch_for(caller, queue)
        if method == "unwatch":
            self._unwatch_for(caller, queue)
            return _done(None)
        if not self._is_open:
            raise Unavailable("the broker is stopping: try again in a moment")
        if method == "lease":
            *others, max_bytes = others
            others.append(lambda: max_bytes)
        found = self._free(queue) if method not in _OF_SHELF else None
        if found is not None:
            return self._call_here(found, method, others)
        return asyncio.ensure_future(self._open_and_call(queue, method, others))

    def undelivered(self, method: str, arguments: Any, result: Any) -> None:
        self._late(arguments[0], method, result)

    def caller_lost(self, caller: Caller) -> None:
        for queue in list(caller.watched):
            self._unwatch_for(caller, queue)

    def _watch_for(self, caller: Caller, queue: QueueName) -> "Future[None]":
        if queue not in caller.watched:
            caller.watched.add(queue)
            self._watching.setdefault(queue, set()).add(caller)
            self._shelf.watch(queue)
        return _done(None)

    def _unwatch_for(self, caller: Caller, queue: QueueName) -> None:
        if queue in caller.watched:
            caller.watched.discard(queue)
            self._watching[queue].discard(caller)
            if not self._watching[queue]:
                del self._watching[queue]
            self._shelf.unwatch(queue)

    # -- catalogue ---------------------------------------------------------------------------------

    def replace_namespace(self, old: NamespaceInfo | None, new: NamespaceInfo) -> Future[bool]:
        return self._change(self._tables.replace_namespace, old, new)

    def delete_namespace(self, name: str, *, force: bool) -> Future[list[QueueName]]:
        async def delete() -> list[QueueName]:
            queues = await asyncio.to_thread(self._tables.queues_of, name)
            if queues and not force:
                raise NotEmpty(
                    f"namespace {name!r} has {len(queues)} queues ({queues[0].name} …): delete "
                    f"them first, or use force"
                )
            for queue in queues:
                with suppress(NoSuchQueue):  # deleted in the meantime
                    await self.delete(queue)
            await asyncio.to_thread(self._tables.delete_namespace, name)
            await self.refresh()
            return queues

        return self._background.run(delete())

    def create(self, queue: QueueName, settings: QueueSettings) -> Future[QueueInfo]:
        return self._background.run(self._create(queue, settings))

    async def _create(self, queue: QueueName, settings: QueueSettings) -> QueueInfo:
        self._shelf.quotas.check_bytes(queue.namespace)
        ends_at = self._loop.time() + self._options.patience_s
        now_ns = self._clock.now_ns()
        while True:
            try:
                number = self.membership.number
                await asyncio.to_thread(self._tables.reserve, queue, number, now_ns)
                break
            except BeingMade:
                if self._loop.time() >= ends_at:
                    raise
                await asyncio.sleep(_RETRY_S)
        try:
            if queue in self._shelf:  # deleted elsewhere a moment ago
                await self._shelf.forget(queue)
            info = await self._shelf.create(queue, settings)
        except BaseException:
            await asyncio.to_thread(self._tables.delete_queue, queue)
            raise
        await asyncio.to_thread(self._tables.made, queue)
        await self.refresh()
        return info

    def info(self, queue: QueueName) -> Future[QueueInfo]:
        return self.call(queue, "info")

    def find(self, identity: int) -> Future[QueueName | None]:
        return self._in_thread(self._tables.find, identity)

    def change(self, queue: QueueName, settings: Mapping[str, Any]) -> Future[QueueInfo]:
        return self._commits.run(partial(self._find_and_call, queue, "change", (dict(settings),)))

    async def _change_here(self, queue: QueueName, settings: Mapping[str, Any]) -> QueueInfo:
        return await self._shelf.change(queue, settings)

    def delete(self, queue: QueueName, *, if_empty: bool = False) -> Future[None]:
        async def delete(held: HeldResult) -> None:
            await self._find_and_call(queue, "delete", (if_empty,), held)
            await self.refresh()

        return self._commits.run(delete)

    async def _delete_here(self, queue: QueueName, if_empty: bool) -> None:
        await self._shelf.opened(queue)  # become the owner, or find out who is
        await self._shelf.delete(queue, if_empty=if_empty)
        await self.refresh()

    # -- messages ----------------------------------------------------------------------------------

    def direct(self, queue: QueueName) -> OpenQueue | None:
        found = self._free(queue)
        if found is None or self._shelf.quotas.apply_to(queue.namespace):
            return None
        return found

    def publish(self, queue: QueueName, messages: Sequence[Publishable]) -> Future[list[Published]]:
        return self.call(queue, "publish", messages)

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
        return self.call(queue, "lease", n, lease_s, group, holder, dead, max_bytes)

    @property
    def unanswered_bytes(self) -> int:
        return self._commits.held_bytes

    def ready_hint(self, queue: QueueName, group: str) -> int | None:
        found = self._free(queue)
        return None if found is None else found.ready_hint(group)

    def settle(self, queue: QueueName, settlements: Sequence[Settlement]) -> Future[list[Outcome]]:
        return self.call(queue, "settle", settlements)

    def run(self, queue: QueueName, operation: Operation[_T]) -> Future[_T]:
        if isinstance(operation, GetStats) and self._shelf.stats_of_closed(queue) is not None:
            work: Any = partial(self._stats, queue, operation)
            return self._commits.run(work)
        return self.call(queue, "run", operation)

    async def _stats(self, queue: QueueName, operation: Operation[_T], held: HeldResult) -> _T:
        """Return the counts of a queue that was closed here: looking does not open it."""
        if await asyncio.to_thread(self.membership.is_owner, queue):
            closed: Any = self._shelf.stats_of_closed(queue)
            if closed is not None:
                found: _T = closed
                return found
        result: _T = await self._find_and_call(queue, "run", (operation,), held)
        return result

    # -- documents and locks -----------------------------------------------------------------------

    def load_document(self, name: str) -> Future[bytes | None]:
        return self._in_thread(self._tables.load_document, name)

    def replace_document(self, name: str, old: bytes | None, new: bytes | None) -> Future[bool]:
        return self._change(self._tables.replace_document, name, old, new)

    def acquire_lock(self, name: str, owner: str, for_s: float) -> Future[bool]:
        return self._in_thread(self._tables.acquire_lock, name, owner, for_s)

    def release_lock(self, name: str, owner: str) -> Future[None]:
        return self._in_thread(self._tables.release_lock, name, owner)

    def _new_settings(self, queue: QueueName) -> QueueSettings:
        """Return the settings of a queue that the outbox creates."""
        namespace = self._shelf.quotas.namespaces.get(queue.namespace)
        defaults = {} if namespace is None else namespace.defaults
        return QueueSettings.of(defaults, QueueSettings.of(self._options.queue_defaults))

    # -- small things ------------------------------------------------------------------------------

    def _change(self, work: Callable[..., _T], *arguments: Any) -> "Future[_T]":
        """Change the catalogue; the listener is told before the answer."""

        async def change() -> _T:
            result = await self._in_thread(work, *arguments)
            if self._is_open:
                await self.refresh()
            return result

        if self._is_open:
            return self._background.run(change())
        return asyncio.ensure_future(change())

    def _in_thread(self, work: Callable[..., _T], *arguments: Any) -> "Future[_T]":
        if self._is_claimed:
            return asyncio.ensure_future(asyncio.to_thread(work, *arguments))
        return asyncio.ensure_future(asyncio.to_thread(self._alone, work, *arguments))

    def _alone(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Use the database for one call: programs read documents without opening a store."""
        self.database.open_again()
        try:
            self._prepare()
            return work(*arguments)
        finally:
            self.database.close()

    def _prepare(self) -> None:
        (schema.migrate if self._options.migrate else schema.check)(self.database)


class PostgresStoreFiles:
    """The segments of the queues; see `StoreFiles`."""

    def __init__(self, store: PostgresStore) -> None:
        self._call = store.call

    def segments(self, queue: QueueName, *, time_ns: int | None = None) -> Future[QueueSegments]:
        return self._call(queue, "segments", time_ns)

    def read_segment(
        self, queue: QueueName, log: LogName, base: int, start: int, end: int | None
    ) -> Future[SegmentBytes]:
        return self._call(queue, "read_segment", log, base, start, end)

    def read_index(self, queue: QueueName, log: LogName, base: int) -> Future[bytes]:
        return self._call(queue, "read_index", log, base)

    def note_archived(self, queue: QueueName, upto: int) -> Future[None]:
        return self._call(queue, "note_archived", upto)

    def staging(
        self, queue: QueueName, applications_with: str | None = None
    ) -> Future[StagingInfo]:
        return self._call(queue, "staging", applications_with)

    def stage(
        self, queue: QueueName, folder: str, name: str, offset: int, data: bytes
    ) -> Future[None]:
        return self._call(queue, "stage", folder, name, offset, data)

    def unstage(self, queue: QueueName, folder: str) -> Future[None]:
        return self._call(queue, "unstage", folder)

    def adopt(
        self, queue: QueueName, staged: Sequence[StagedSegment], app: str | None, version: int
    ) -> Future[Adoption]:
        return self._call(queue, "adopt", staged, app, version)


def _lease(
    queue: OpenQueue,
    n: int,
    lease_s: float | None,
    group: str,
    holder: str,
    dead: bool,
    max_bytes: Callable[[], int],
) -> Future[list[LeasedMessage]]:
    return queue.lease(
        n, lease_s=lease_s, group=group, holder=holder, dead=dead, max_bytes=max_bytes
    )


_METHODS: dict[str, Callable[..., "Future[Any]"]] = {
    "publish": OpenQueue.publish,
    "lease": _lease,
    "settle": OpenQueue.settle,
    "run": OpenQueue.run,
    "info": lambda queue: _done(queue.info),
    "find": lambda queue: _done(None),
    "segments": lambda queue, *args: queue.files.segments(*args),
    "read_segment": lambda queue, *args: queue.files.read_segment(*args),
    "read_index": lambda queue, *args: queue.files.read_index(*args),
    "note_archived": lambda queue, *args: queue.files.note_archived(*args),
    "staging": lambda queue, *args: queue.files.staging(*args),
    "stage": lambda queue, *args: queue.files.stage(*args),
    "unstage": lambda queue, *args: queue.files.unstage(*args),
    "adopt": lambda queue, *args: queue.files.adopt(*args),
}
_ADDING = frozenset({"publish", "stage", "adopt"})  # what a quota of bytes limits
_OF_SHELF: dict[str, Any] = {
    "change": PostgresStore._change_here,
    "delete": PostgresStore._delete_here,
}


def _is_repeatable(method: str, arguments: Any) -> bool:
    """Return whether a call may be sent again if it may have been carried out.

    A publish is, if each message has a dedup id. An operation says it itself.
    """
    if method == "publish":
        return all(isinstance(one, NewMessage) and one.dedup_id is not None for one in arguments[0])
    if method == "run":
        return bool(arguments[0].idempotent)
    return method not in ("adopt", "delete", "change")


def _done(result: _T) -> "Future[_T]":
    answer: Future[_T] = asyncio.get_running_loop().create_future()
    answer.set_result(result)
    return answer


def _ignore(*arguments: Any) -> None:
    """Do nothing with a notice or an answer."""


def _forgotten(answer: "Future[Any]") -> None:
    """Let a call run whose answer, or error, does not matter."""
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
