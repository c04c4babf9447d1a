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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from penstock.broker.background import Background
from penstock.broker.embedded.commit_loop import CommitLoop, HeldResult, SyncThreads, Threads
from penstock.broker.embedded.open_queue import OpenQueue
from penstock.broker.embedded.quotas import Quotas
from penstock.broker.embedded.shelf import Shelf
from penstock.broker.embedded.timer import Timer
from penstock.broker.postgres import schema
from penstock.broker.postgres.caches import MAX_CACHE_BYTES, Caches
from penstock.broker.postgres.channel import Door
from penstock.broker.postgres.committer import MAX_ROUNDS, Committer
from penstock.broker.postgres.creating import Creations
from penstock.broker.postgres.database import Database
from penstock.broker.postgres.elsewhere import Elsewhere
from penstock.broker.postgres.feed import Feed
from penstock.broker.postgres.health import Health
from penstock.broker.postgres.membership import ALIVE_S, Membership
from penstock.broker.postgres.methods import done
from penstock.broker.postgres.outbox import Outbox
from penstock.broker.postgres.rebalancing import Rebalancing
from penstock.broker.postgres.routing import Router
from penstock.broker.postgres.scheduled_queues import ScheduledQueues
from penstock.broker.postgres.store_files import PostgresStoreFiles
from penstock.broker.postgres.tables import Tables
from penstock.broker.store import (
    DatabaseState,
    NamespaceInfo,
    Outcome,
    Publishable,
    QueueInfo,
    Samples,
    Settlement,
    StoreListener,
    no_byte_limit,
)
from penstock.clock import Clock, SystemClock
from penstock.errors import NoSuchQueue, NotEmpty, PenstockError
from penstock.model import MAIN_GROUP_NAME, LeasedMessage, Published
from penstock.names import QueueName
from penstock.operations import GetStats, Operation, PutSchedule, ScheduleState
from penstock.queue.settings import QueueSettings

log = logging.getLogger("penstock.broker")
_T = TypeVar("_T")

BEAT_S = 1.0  # between two looks for changes, and signs of life


class ClusterOptions(NamedTuple):
    """How a broker takes part in a cluster."""

    schema: str = "penstock"
    max_connections: int = 16
    host: str = ""  # where other brokers reach this one; "": as the database sees it
    port: int = 0  # 0: any
    cache: str | None = None  # directory of the cache; None: that of temporary files
    cache_bytes: int = MAX_CACHE_BYTES  # copies of complete files beyond that are dropped
    migrate: bool = True
    patience_s: float = 30.0  # for a database, or an owner of a queue, that does not answer
    beat_s: float = BEAT_S
    alive_s: float = ALIVE_S  # how long a broker that shows no sign of life keeps its queues
    rebalance_s: float = 10.0  # between two looks whether other brokers own fewer queues
    outbox_s: float = 0.2  # between two looks into the outbox, by the broker that moves it
    queue_defaults: Mapping[str, Any] = MappingProxyType({"sync": "always"})  # of new queues
    locks_clock: Clock | None = None  # None: the database's


def _unobserved(seconds: float, answers: int) -> None:
    """The default of `observe_commit`."""


class PostgresStore:
    """Queues in a database, for any number of brokers."""

    has_one_queue = False

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
            max_connections=options.max_connections - MAX_ROUNDS - 1,  # and one that shows life
            patience_s=options.patience_s,
        )
        self._tables = Tables(self.database, options.locks_clock)
        self.membership = Membership(self.database, options.alive_s)
        self._health = Health(self.database)
        self._is_claimed = False
        self._listener: StoreListener | None = None
        self._trouble: str | None = None
        self._committer: Committer | None = None
        self._beating: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._outbox: Outbox | None = None
        self._is_open = False
        self.files = PostgresStoreFiles(lambda *arguments: self._router.call(*arguments))

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
        self._committer = Committer(self.database)
        await self._committer.open()
        self._commits = CommitLoop(
            self._clock, self._observe_commit, self._sync_threads, self._committer
        )
        self._timer: Timer[QueueName] = Timer(self._wake)
        self.caches = Caches(
            self.database,
            self.membership,
            self._options.cache,
            lambda queue: loop.call_soon_threadsafe(self._on_lost, queue),
            self._sync_soon,
            self._tables.made,
            self._tables.delete_queue,
            self._options.cache_bytes,
        )
        await asyncio.to_thread(self.caches.open)
        self._shelf = Shelf(
            self.caches,
            self._commits,
            self._timer,
            self._background,
            on_ready=self._on_ready,
            on_queue=lambda queue, identity: None,  # the changes tell of it
            clock=self._clock,
            max_open=self._max_open,
            idle_close_s=self._idle_close_s,
        )
        self._creations = Creations(
            self._tables,
            self.membership,
            self._shelf,
            self._clock,
            patience_s=self._options.patience_s,
            refresh=self.refresh,
        )
        key, seen_at = await asyncio.to_thread(self.membership.cluster_key)
        self._router = Router(
            self._shelf,
            self._commits,
            self._background,
            {
                "change": self._change_here,
                "delete": self._delete_here,
                "stats": self._stats_here,
            },
            key=key,
            patience_s=self._options.patience_s,
            refresh=self.refresh,
            on_ready=self._tell_ready,
            on_question=self._answer_question,
        )
        self._feed = Feed(self._tables, self._shelf, self._router.forget_owner)
        self._door = Door(self._router, key)
        self.rebalancing = Rebalancing(
            self.membership,
            self._shelf,
            self._router,
            self.acquire_lock,
            self._options.rebalance_s,
        )
        self.scheduled_queues = ScheduledQueues(
            self,
            self.database,
            self.membership,
            self._shelf,
            lambda queue: self._router.find_and_call(queue, "info"),
        )
        self._is_open = True
        host = self._options.host or seen_at
        self._outbox = Outbox(self.database, self, self._options.outbox_s, self._new_settings)
        port = await self._door.open(host, self._options.port)
        await asyncio.to_thread(self.membership.join, f"{host}:{port}")
        self._listener = self._feed.listener = listener
        await self._feed.reload()
        self._shelf.close_idle_later()
        self._beating = loop.create_task(self._beat())
        self._tidying = loop.create_task(self._tidy())
        self._outbox.start(f"{host}:{port}")
        self.rebalancing.start()

    async def close(self) -> None:
        self._listener = None
        for task in (self._beating, self._tidying):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._beating = self._tidying = None
        if self._outbox is not None:
            await self._outbox.close()
            self._outbox = None
        if self._is_open:
            self._is_open = False
            await self.rebalancing.close()
            self._feed.listener = None
            self._router.stop()
            self._timer.close()
            await self._background.finished()
            await self._shelf.close()
            await self._commits.close()
            with suppress(PenstockError):  # then its queues are free as soon as it counts as dead
                await asyncio.to_thread(self.membership.leave)
            self._door.close()
            self._router.close()
            await asyncio.to_thread(self.caches.close)
        if self._committer is not None:
            await self._committer.close()
            self._committer = None
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

    def sample(self) -> Future[Samples]:
        async def sample() -> Samples:
            owned = await asyncio.to_thread(self.membership.owned)
            found = [one for one in self._shelf.sample() if one.queue in owned]
            return Samples(f"broker-{self.membership.number}", found)

        return asyncio.ensure_future(sample())

    def ask_others(self, question: Any) -> Future[list[Any]]:
        async def ask() -> list[Any]:
            addresses = await asyncio.to_thread(self.membership.others)
            return await self._router.ask(addresses, question)

        return asyncio.ensure_future(ask())

    async def _answer_question(self, question: Any) -> Any:
        return None if self._listener is None else await self._listener.on_question(question)

    def free_bytes(self) -> Future[int | None]:
        return done(None)  # the database's own disk is not known here

    @property
    def quotas(self) -> Quotas:
        """Return what the namespaces may hold, and hold."""
        return self._shelf.quotas

    # -- changes that other brokers made, and signs of life ----------------------------------------

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._options.beat_s)
            try:
                if not await asyncio.to_thread(self.membership.renew):
                    await self._close_lost_queues()
                await self._give_up_dead_brokers()
                await self.refresh()
                await self.scheduled_queues.tend()
                await self._feed.share_sizes(self.membership.number)
                await self._feed.forget_old()
                self._trouble = None
            except Exception as error:
                self._trouble = f"PostgreSQL ({self.database.name}) does not answer: {error}"
                log.warning("%s", self._trouble)

    async def _close_lost_queues(self) -> None:
        """Close the queues that others took over while this broker showed no sign of life."""
        owned = await asyncio.to_thread(self.membership.owned)
        for queue in set(self._shelf.open_queues) - owned:
            self._router.on_lost(queue, "another broker took it over while this one hung")

    async def _give_up_dead_brokers(self) -> None:
        connected = self._router.peers
        if connected:
            alive = await asyncio.to_thread(self.membership.others)
            for address in set(connected) - set(alive):
                self._router.give_up(address)

    async def _tidy(self) -> None:
        """Look after the copies of files: seal them, fetch what is read next, drop the oldest."""
        while True:
            await asyncio.sleep(self._options.beat_s)
            try:
                for found in list(self._shelf.open_queues.values()):
                    with suppress(FileNotFoundError):  # it was closed, or a file was removed
                        if await asyncio.to_thread(self.caches.opened, found.core):
                            found.expect_slow_reads()
                await asyncio.to_thread(self.caches.tidy)
            except Exception as error:  # the files are read and written all the same
                log.warning("the cache is not looked after: %s", error)

    async def refresh(self) -> None:
        """Read what changed in the catalogue and the documents, and notify the listener."""
        await self._feed.refresh()

    def watch(self, queue: QueueName) -> None:
        self._router.watch(queue)

    def unwatch(self, queue: QueueName) -> None:
        self._router.unwatch(queue)

    def _on_ready(self, queue: QueueName) -> None:
        self._router.on_ready(queue)

    def _tell_ready(self, queue: QueueName) -> None:
        if self._listener is not None:
            self._listener.on_ready(queue)

    def _sync_soon(self, queue: QueueName) -> None:
        found = self._shelf.get(queue)
        if found is not None:
            self._commits.soon(found)

    def _on_lost(self, queue: QueueName) -> None:
        self._router.on_lost(queue)

    def _wake(self, queue: QueueName) -> None:
        found = self._shelf.get(queue)
        if found is not None:
            found.wakeups.wake()

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
        return self._background.run(self._creations.create(queue, settings))

    def info(self, queue: QueueName) -> Future[QueueInfo]:
        return self._router.call(queue, "info")

    def find(self, identity: int) -> Future[QueueName | None]:
        return self._in_thread(self._tables.find, identity)

    def change(self, queue: QueueName, settings: Mapping[str, Any]) -> Future[QueueInfo]:
        return self._router.find_and_call(queue, "change", dict(settings))

    async def _change_here(self, queue: QueueName, settings: Mapping[str, Any]) -> QueueInfo:
        return await self._shelf.change(queue, settings)

    def delete(self, queue: QueueName, *, if_empty: bool = False) -> Future[None]:
        async def delete(held: HeldResult) -> None:
            await self._router.find_and_call(queue, "delete", if_empty)
            await self.refresh()

        return self._commits.run(delete)

    async def _delete_here(self, queue: QueueName, if_empty: bool) -> None:
        await self._shelf.opened(queue)  # become the owner, or find out who is
        await self._shelf.delete(queue, if_empty=if_empty)
        await self.refresh()

    # -- messages ----------------------------------------------------------------------------------

    def direct(self, queue: QueueName) -> OpenQueue | None:
        found = self._router.free(queue)
        if found is None or queue.namespace in self._shelf.quotas.limited:
            return None
        return found

    def elsewhere(self, queue: QueueName) -> Elsewhere | None:
        return self._router.elsewhere(queue)

    def publish(self, queue: QueueName, messages: Sequence[Publishable]) -> Future[list[Published]]:
        return self._router.call(queue, "publish", messages)

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
        return self._router.call(queue, "lease", n, lease_s, group, holder, dead, max_bytes)

    @property
    def unanswered_bytes(self) -> int:
        return self._commits.held_bytes

    def ready_hint(self, queue: QueueName, group: str) -> int | None:
        found = self._router.free(queue)
        return None if found is None else found.ready_hint(group)

    def settle(self, queue: QueueName, settlements: Sequence[Settlement]) -> Future[list[Outcome]]:
        return self._router.call(queue, "settle", settlements)

    def run(self, queue: QueueName, operation: Operation[_T]) -> Future[_T]:
        if isinstance(operation, GetStats) and self._shelf.get(queue) is None:
            return self._router.find_and_call(queue, "stats", operation)
        if isinstance(operation, PutSchedule):
            putting: Any = self._put_schedule(queue, operation)
            return self._background.run(putting)
        return self._router.call(queue, "run", operation)

    async def _put_schedule(self, queue: QueueName, operation: PutSchedule) -> ScheduleState:
        """Put a schedule in a queue that is on the list of those with schedules."""
        await self.scheduled_queues.add(queue)
        result: ScheduleState = await self._router.call(queue, "run", operation)
        await self.scheduled_queues.add(queue)  # its owner may have found it empty meanwhile
        return result

    async def _stats_here(self, queue: QueueName, operation: Operation[_T]) -> _T:
        """Return the counts of a queue of this broker: looking does not open a closed one."""
        if self._shelf.stats_of_closed(queue) is not None:
            is_owner = await asyncio.to_thread(self.membership.is_owner, queue)
            closed: Any = self._shelf.stats_of_closed(queue)
            if is_owner and closed is not None:
                found: _T = closed
                return found
        await self._shelf.opened(queue)  # become the owner, or find out who is
        result: _T = await self._router.call(queue, "run", operation)
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
