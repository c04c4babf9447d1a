"""An open data directory, shared by the embedded stores of one process.

Each broker has its own `EmbeddedStore`. The first one recovers the directory when it opens, the
last one closes it. All of them are notified of each change.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.broker.background import Background
from penstock.broker.embedded.commit_loop import MOST_THREADS, CommitLoop, SyncThreads, Threads
from penstock.broker.embedded.disk_committer import DiskCommitter
from penstock.broker.embedded.layout import Layout
from penstock.broker.embedded.shelf import QueueHome, Shelf
from penstock.broker.embedded.timer import Timer
from penstock.broker.store import NamespaceInfo, QueueInfo, StoreListener
from penstock.clock import Clock
from penstock.errors import NoSuchNamespace, NoSuchQueue, NotEmpty
from penstock.ledger.files import Files, as_ledger_error, new_sync_pool
from penstock.model import NS
from penstock.names import QueueName
from penstock.queue.settings import QueueSettings

_T = TypeVar("_T")


class Options(NamedTuple):
    """How a data directory is used; see `EmbeddedStore`."""

    max_open: int
    idle_close_s: float
    observe_commit: Callable[[float, int], None]
    sync_threads: Callable[[asyncio.AbstractEventLoop], Threads]


class Home(QueueHome, Protocol):
    """Where a data directory has its files: `Layout`, or one queue alone."""

    path: str

    def open(self, clock: Clock) -> None: ...

    def close(self) -> None: ...

    def announce(self, clock: Clock, url: str) -> None: ...

    def free_bytes(self) -> int: ...

    def namespaces(self) -> list[NamespaceInfo]: ...

    def save_namespace(self, namespace: NamespaceInfo) -> None: ...

    def delete_namespace(self, name: str) -> None: ...

    def queues(self, namespace: str) -> list[QueueName]: ...

    def load_document(self, name: str) -> bytes | None: ...

    def replace_document(self, name: str, old: bytes | None, new: bytes | None) -> bool: ...


class DataDirectory:
    """The queues, namespaces, documents and locks of a directory, in one process."""

    def __init__(
        self,
        path: str,
        files: Files,
        clock: Clock,
        options: Options,
        claimed: Home | None = None,
    ) -> None:
        """`claimed`: where the files are, if it was opened already."""
        self._files = files
        self._clock = clock
        self._options = options
        self._layout: Home = claimed or Layout(files, path)
        self._committer: DiskCommitter | None = None
        self._listeners: list[StoreListener] = []
        self._locks: dict[str, tuple[str, int]] = {}  # by name: the owner, and until when
        self._is_claimed = claimed is not None
        self._is_started = False
        self._is_open = False  # and recovered
        self._background = Background()  # changes of queues and files
        self._claims = Background()  # opening and closing; the latter waits for those changes
        self._claim_turn = asyncio.Lock()
        self._file_turn = asyncio.Lock()
        self._catalogue_turn = asyncio.Lock()

    # -- life --------------------------------------------------------------------------------------

    async def claim(self) -> None:
        await self._claims.run(self._claim())

    async def _claim(self) -> None:
        async with self._claim_turn:
            if not self._is_claimed:
                await self._in_thread(self._layout.open, self._clock)
                self._is_claimed = True

    async def open(self, listener: StoreListener) -> None:
        """Recover the queues, unless another store did, and tell the listener what there is.

        If it fails or is cancelled, call `close`.
        """
        while True:
            await self.claim()
            async with self._claim_turn:
                if self._is_started and not self._is_open:  # another store was cancelled here
                    await self._claims.run(self._close_now())
                if not self._is_claimed:
                    continue  # another store closed the directory in the meantime
                if not self._is_open:
                    await self._open()
                self._listeners.append(listener)
                namespaces = sorted(self.shelf.quotas.namespaces.values())
                listener.on_catalogue(namespaces, self.shelf.identities())
                return

    async def _open(self) -> None:
        options = self._options
        if options.sync_threads is SyncThreads:  # else a test decides when a sync ends
            pool = new_sync_pool(self._files, MOST_THREADS)
            if pool is not None:
                self._committer = DiskCommitter(asyncio.get_running_loop(), pool, self._clock)
        self.commits = CommitLoop(
            self._clock, options.observe_commit, options.sync_threads, self._committer
        )
        self._timer: Timer[QueueName] = Timer(self._wake)
        self.shelf = Shelf(
            self._layout,
            self.commits,
            self._timer,
            self._background,
            on_ready=self._on_ready,
            on_queue=self._on_queue,
            clock=self._clock,
            max_open=options.max_open,
            idle_close_s=options.idle_close_s,
            keeps_stopped=True,
        )
        self._is_started = True
        queues: list[QueueName] = []
        for namespace in await asyncio.to_thread(self._layout.namespaces):
            self.shelf.quotas.set_namespace(namespace)
            queues += await asyncio.to_thread(self._layout.queues, namespace.name)
        await self.shelf.recover(queues)
        self._is_open = True

    async def close(self, listener: StoreListener | None) -> None:
        """Close the directory if no other listener is left."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        if not self._listeners:
            await self._claims.run(self._close())

    async def _close(self) -> None:
        async with self._claim_turn:
            if not self._listeners:  # another store may have opened it in the meantime
                await self._close_now()

    async def _close_now(self) -> None:
        if self._is_started:
            self._is_started = self._is_open = False
            self._timer.close()
            await self.shelf.close()
            await self.commits.close()
            if self._committer is not None:
                self._committer.close()
                self._committer = None
        if self._is_claimed:
            self._is_claimed = False
            await asyncio.to_thread(self._layout.close)

    @property
    def has_one_queue(self) -> bool:
        return not self._layout.can_delete

    def announce(self, url: str) -> Future[None]:
        return self._change_files(self._layout.announce, self._clock, url)

    def free_bytes(self) -> Future[int | None]:
        return asyncio.ensure_future(self._in_thread(self._layout.free_bytes))

    @property
    def progress(self) -> tuple[int, int]:
        return self.shelf.progress if self._is_started else (0, 0)

    # -- notices -----------------------------------------------------------------------------------

    def _on_ready(self, queue: QueueName) -> None:
        for listener in self._listeners:
            listener.on_ready(queue)

    def _on_queue(self, queue: QueueName, identity: int | None) -> None:
        for listener in self._listeners:
            listener.on_queue(queue, identity)

    def _on_namespace(self, name: str, namespace: NamespaceInfo | None) -> None:
        for listener in self._listeners:
            listener.on_namespace(name, namespace)

    def _wake(self, queue: QueueName) -> None:
        found = self.shelf.get(queue)
        if found is not None:
            found.wakeups.wake()

    # -- threads -----------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Work in a thread; raise an error of the system as one of ours."""
        try:
            return await asyncio.to_thread(work, *arguments)
        except OSError as error:
            raise as_ledger_error(self._layout.path, "writing the broker's files", error) from error

    def _change_files(self, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Make one change after another, each to its end, also if the caller is cancelled."""

        async def change() -> _T:
            async with self._file_turn:
                return await self._in_thread(work, *arguments)

        return self._background.run(change())

    # -- catalogue: one change at a time, each to its end ------------------------------------------

    def replace_namespace(self, old: NamespaceInfo | None, new: NamespaceInfo) -> Future[bool]:
        async def replace() -> bool:
            async with self._catalogue_turn:
                if self.shelf.quotas.namespaces.get(new.name) != old:
                    return False
                await self._save_namespace(new)
                return True

        return self._background.run(replace())

    async def _save_namespace(self, namespace: NamespaceInfo) -> None:
        await self._in_thread(self._layout.save_namespace, namespace)
        self.shelf.quotas.set_namespace(namespace)
        self._on_namespace(namespace.name, namespace)

    def delete_namespace(self, name: str, *, force: bool) -> Future[list[QueueName]]:
        async def delete() -> list[QueueName]:
            async with self._catalogue_turn:
                quotas = self.shelf.quotas
                if name not in quotas.namespaces:
                    raise NoSuchNamespace(f"there is no namespace {name!r}")
                queues = self.shelf.names(name)
                if queues and not force:
                    raise NotEmpty(
                        f"namespace {name!r} has {len(queues)} queues ({queues[0].name} …): delete "
                        f"them first, or use force"
                    )
                for queue in queues:
                    with suppress(NoSuchQueue):  # deleted in the meantime
                        await self.shelf.delete(queue)
                await self._in_thread(self._layout.delete_namespace, name)
                quotas.forget(name)
                self._on_namespace(name, None)
                return queues

        return self._background.run(delete())

    def create(self, queue: QueueName, settings: QueueSettings) -> Future[QueueInfo]:
        async def create() -> QueueInfo:
            async with self._catalogue_turn:
                quotas = self.shelf.quotas
                await self.shelf.until_settled(queue)  # it may be about to be deleted
                self.shelf.check_absent(queue)
                quotas.check_new_queue(queue.namespace)
                if queue.namespace not in quotas.namespaces:
                    new = NamespaceInfo(queue.namespace, self._clock.now_ns(), {})
                    await self._save_namespace(new)
                return await self.shelf.create(queue, settings)

        return self._background.run(create())

    # -- documents and locks -----------------------------------------------------------------------

    def load_document(self, name: str) -> Future[bytes | None]:
        return asyncio.ensure_future(self._in_thread(self._layout.load_document, name))

    def replace_document(self, name: str, old: bytes | None, new: bytes | None) -> Future[bool]:
        async def replace() -> bool:
            async with self._file_turn:
                done = await self._in_thread(self._layout.replace_document, name, old, new)
            if done and new != old:
                for listener in self._listeners:
                    listener.on_document(name)
            return done

        return self._background.run(replace())

    def acquire_lock(self, name: str, owner: str, for_s: float) -> bool:
        """Locks are kept in memory: all brokers of the directory are in this process."""
        now_ns = self._clock.monotonic_ns()
        known, until_ns = self._locks.get(name, (owner, 0))
        if known != owner and now_ns < until_ns:
            return False
        self._locks[name] = owner, now_ns + round(for_s * NS)
        return True

    def release_lock(self, name: str, owner: str) -> None:
        if self._locks.get(name, ("", 0))[0] == owner:
            del self._locks[name]
