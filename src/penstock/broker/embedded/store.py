"""The store on this machine's files. See `penstock.broker.store` for what each call means."""

import asyncio
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from penstock.broker.embedded.commit_loop import HeldResult, SyncThreads, Threads
from penstock.broker.embedded.data_directory import DataDirectory, Home, Options
from penstock.broker.embedded.open_queue import OpenQueue
from penstock.broker.embedded.quotas import Quotas
from penstock.broker.store import (
    NamespaceInfo,
    Outcome,
    Publishable,
    QueueInfo,
    Samples,
    Settlement,
    StoreListener,
    no_byte_limit,
    payload_bytes,
)
from penstock.clock import Clock, SystemClock
from penstock.ledger.files import Files, OsFiles
from penstock.model import MAIN_GROUP_NAME, LeasedMessage, Published
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

_T = TypeVar("_T")
_OWNER = "local"  # the queues have no other owner, whichever broker of the process is asked


def _unobserved(seconds: float, answers: int) -> None:
    """The default of `observe_commit`."""


class EmbeddedStore:
    """Queues in a directory, for the brokers of one process at a time."""

    def __init__(
        self,
        path: str,
        *,
        max_open: int = 256,
        idle_close_s: float = 300.0,
        observe_commit: Callable[[float, int], None] = _unobserved,
        files: Files | None = None,
        clock: Clock | None = None,
        sync_threads: Callable[[asyncio.AbstractEventLoop], Threads] = SyncThreads,
        shared: DataDirectory | None = None,
        claimed: Home | None = None,
    ) -> None:
        """`shared`: use a directory that another store of this process uses; see `for_another`.

        `claimed`: where the files are, if it was opened already.
        """
        options = Options(max_open, idle_close_s, observe_commit, sync_threads)
        self._directory = shared or DataDirectory(
            path, files or OsFiles(), clock or SystemClock(), options, claimed
        )
        self._path = path
        self._listener: StoreListener | None = None
        # Each publish, lease and ack asks, so it is the shelf's own method once that is open.
        self.direct: Callable[[QueueName], OpenQueue | None] = _not_open
        self.files = EmbeddedFiles(self)

    def for_another(self) -> "EmbeddedStore":
        """Return a store on the same directory for another broker of this process."""
        return EmbeddedStore(self._path, shared=self._directory)

    # -- life --------------------------------------------------------------------------------------

    async def claim(self) -> None:
        await self._directory.claim()

    async def open(self, listener: StoreListener) -> None:
        try:
            await self._directory.open(listener)
            self.direct = self._directory.shelf.direct
            self._listener = listener
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        self.direct = _not_open
        await self._directory.close(listener)

    @property
    def has_one_queue(self) -> bool:
        return self._directory.has_one_queue

    def announce(self, url: str) -> Future[None]:
        return self._directory.announce(url)

    @property
    def progress(self) -> tuple[int, int]:
        return self._directory.progress

    async def database_state(self) -> None:
        return None

    def sample(self) -> Future[Samples]:
        return _done(Samples(_OWNER, self._directory.shelf.sample()))

    def ask_others(self, question: Any) -> Future[list[Any]]:
        return _done([])  # all brokers of the directory know the same queues

    def free_bytes(self) -> Future[int | None]:
        return self._directory.free_bytes()

    @property
    def trouble(self) -> str | None:
        return self._directory.shelf.trouble()

    @property
    def open_queues(self) -> Mapping[QueueName, OpenQueue]:
        """Return the queues whose files are open."""
        return self._directory.shelf.open_queues

    @property
    def quotas(self) -> Quotas:
        """Return what the namespaces may hold, and hold."""
        return self._directory.shelf.quotas

    def watch(self, queue: QueueName) -> None:
        self._directory.shelf.watch(queue)

    def unwatch(self, queue: QueueName) -> None:
        self._directory.shelf.unwatch(queue)

    def do(
        self,
        queue: QueueName,
        work: Callable[[OpenQueue], Future[_T]],
        size: Callable[[_T], int] | None = None,
    ) -> Future[_T]:
        """Work in the queue, at once if it is open. `size`: bytes to count of the result."""
        shelf = self._directory.shelf
        found = shelf.get(queue)
        if found is not None and found.is_free():
            answer = work(found)
            if shelf.quotas.is_counting:
                shelf.quotas.note(found, answer)
            return answer
        return self._directory.commits.run(partial(self._open_and_do, queue, work, size))

    async def _open_and_do(
        self,
        queue: QueueName,
        work: Callable[[OpenQueue], Future[_T]],
        size: Callable[[_T], int] | None,
        held: HeldResult,
    ) -> _T:
        shelf = self._directory.shelf
        with shelf.wanted(queue):
            while True:
                found = await shelf.opened(queue)
                async with found.threads.turn:
                    # Else it was closed while this call waited, or many messages are due.
                    if shelf.get(queue) is found and found.is_free():
                        answer = work(found)
                        break
                await asyncio.sleep(0)  # let the tick have its turn first
        shelf.quotas.note(found, answer)
        result = await answer
        if size is not None:
            held.hold(size(result))
        return result

    # -- catalogue ---------------------------------------------------------------------------------

    def replace_namespace(self, old: NamespaceInfo | None, new: NamespaceInfo) -> Future[bool]:
        return self._directory.replace_namespace(old, new)

    def delete_namespace(self, name: str, *, force: bool) -> Future[list[QueueName]]:
        return self._directory.delete_namespace(name, force=force)

    def create(self, queue: QueueName, settings: QueueSettings) -> Future[QueueInfo]:
        return self._directory.create(queue, settings)

    def info(self, queue: QueueName) -> Future[QueueInfo]:
        found = self._directory.shelf.get(queue)
        if found is not None:
            return _done(found.info)

        async def info() -> QueueInfo:
            return (await self._directory.shelf.opened(queue)).info

        return asyncio.ensure_future(info())

    def find(self, identity: int) -> Future[QueueName | None]:
        return _done(self._directory.shelf.find(identity))

    def change(self, queue: QueueName, settings: Mapping[str, Any]) -> Future[QueueInfo]:
        return self._directory.shelf.change(queue, settings)

    def delete(self, queue: QueueName, *, if_empty: bool = False) -> Future[None]:
        return self._directory.shelf.delete(queue, if_empty=if_empty)

    # -- messages ----------------------------------------------------------------------------------

    def elsewhere(self, queue: QueueName) -> None:
        return None

    def publish(self, queue: QueueName, messages: Sequence[Publishable]) -> Future[list[Published]]:
        self._directory.shelf.quotas.check_bytes(queue.namespace)
        return self.do(queue, lambda one: one.publish(messages))

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
        return self.do(
            queue,
            lambda one: one.lease(
                n, lease_s=lease_s, group=group, holder=holder, dead=dead, max_bytes=max_bytes
            ),
            payload_bytes,
        )

    @property
    def unanswered_bytes(self) -> int:
        return self._directory.commits.held_bytes

    def ready_hint(self, queue: QueueName, group: str) -> int | None:
        found = self._directory.shelf.get(queue)
        return None if found is None or found.threads.is_occupied else found.ready_hint(group)

    def settle(self, queue: QueueName, settlements: Sequence[Settlement]) -> Future[list[Outcome]]:
        return self.do(queue, lambda one: one.settle(settlements))

    def run(self, queue: QueueName, operation: Operation[_T]) -> Future[_T]:
        if isinstance(operation, GetStats):
            closed: Any = self._directory.shelf.stats_of_closed(queue)
            if closed is not None:  # looking at all queues does not open them all
                return _done(closed)
        return self.do(queue, lambda one: one.run(operation))

    # -- documents and locks -----------------------------------------------------------------------

    def load_document(self, name: str) -> Future[bytes | None]:
        return self._directory.load_document(name)

    def replace_document(self, name: str, old: bytes | None, new: bytes | None) -> Future[bool]:
        return self._directory.replace_document(name, old, new)

    def acquire_lock(self, name: str, owner: str, for_s: float) -> Future[bool]:
        return _done(self._directory.acquire_lock(name, owner, for_s))

    def release_lock(self, name: str, owner: str) -> Future[None]:
        self._directory.release_lock(name, owner)
        return _done(None)


class EmbeddedFiles:
    """The files of the queues; see `StoreFiles`."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def segments(self, queue: QueueName, *, time_ns: int | None = None) -> Future[QueueSegments]:
        return self._store.do(queue, lambda one: one.files.segments(time_ns))

    def read_segment(
        self, queue: QueueName, log: LogName, base: int, start: int, end: int | None
    ) -> Future[SegmentBytes]:
        return self._store.do(queue, lambda one: one.files.read_segment(log, base, start, end))

    def read_index(self, queue: QueueName, log: LogName, base: int) -> Future[bytes]:
        return self._store.do(queue, lambda one: one.files.read_index(log, base))

    def note_archived(
        self, queue: QueueName, upto: int, archive: str = "", archived_as: str = ""
    ) -> Future[None]:
        return self._store.do(
            queue, lambda one: one.files.note_archived(upto, archive, archived_as)
        )

    def staging(
        self, queue: QueueName, applications_with: str | None = None
    ) -> Future[StagingInfo]:
        return self._store.do(queue, lambda one: one.files.staging(applications_with))

    def stage(
        self, queue: QueueName, folder: str, name: str, offset: int, data: bytes
    ) -> Future[None]:
        self._store.quotas.check_bytes(queue.namespace)
        return self._store.do(queue, lambda one: one.files.stage(folder, name, offset, data))

    def unstage(self, queue: QueueName, folder: str) -> Future[None]:
        return self._store.do(queue, lambda one: one.files.unstage(folder))

    def adopt(
        self, queue: QueueName, staged: Sequence[StagedSegment], app: str | None, version: int
    ) -> Future[Adoption]:
        self._store.quotas.check_bytes(queue.namespace)
        return self._store.do(queue, lambda one: one.files.adopt(staged, app, version))


def _not_open(queue: QueueName) -> None:
    return None


def _done(result: _T) -> Future[_T]:
    answer: Future[_T] = asyncio.get_running_loop().create_future()
    answer.set_result(result)
    return answer
