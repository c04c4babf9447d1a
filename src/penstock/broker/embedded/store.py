"""The store on this machine's files. See `penstock.broker.store` for what each call means."""

import asyncio
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from penstock.broker.background import Background
from penstock.broker.embedded.commit_loop import CommitLoop, HeldResult
from penstock.broker.embedded.layout import Layout
from penstock.broker.embedded.open_queue import OpenQueue
from penstock.broker.embedded.shelf import Shelf
from penstock.broker.embedded.sync_threads import SyncThreads, Threads
from penstock.broker.embedded.timer import Timer
from penstock.broker.segments import (
    Adoption,
    LogName,
    QueueSegments,
    SegmentBytes,
    StagedSegment,
    StagingInfo,
)
from penstock.broker.store import (
    NamespaceInfo,
    Outcome,
    Publishable,
    QueueInfo,
    Settlement,
    no_byte_limit,
    payload_bytes,
)
from penstock.clock import Clock, SystemClock
from penstock.ledger.files import Files, OsFiles, as_ledger_error
from penstock.model import MAIN_GROUP_NAME, LeasedMessage, Published
from penstock.names import QueueName
from penstock.operations import GetStats, Operation
from penstock.queue.settings import QueueSettings

_T = TypeVar("_T")


def _unobserved(seconds: float, answers: int) -> None:
    """Nobody wants to know how long a round of syncs took."""


class EmbeddedStore:
    """Queues in a directory, one process at a time."""

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
    ) -> None:
        self._sync_threads = sync_threads
        self._files = files or OsFiles()
        self._layout = Layout(self._files, path)
        self._clock = clock or SystemClock()
        self._max_open = max_open
        self._idle_close_s = idle_close_s
        self._observe_commit = observe_commit
        self._progress: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._is_claimed = False
        self._is_open = False
        self._background = Background()  # changes of queues and files
        self._claims = Background()  # beginning and ending; the latter waits for those changes
        self._claim_turn = asyncio.Lock()
        self._file_turn = asyncio.Lock()

    # -- life --------------------------------------------------------------------------------------

    async def claim(self) -> None:
        await self._claims.run(self._claim())

    async def _claim(self) -> None:
        async with self._claim_turn:
            if not self._is_claimed:
                await self._with_files(self._layout.open, self._clock)
                self._is_claimed = True

    async def open(self, *, on_ready: Callable[[QueueName], None]) -> None:
        try:
            await self.claim()
            await self._open(on_ready)
        except BaseException:
            await self.close()
            raise

    async def _open(self, on_ready: Callable[[QueueName], None]) -> None:
        self._commits = CommitLoop(self._clock, self._observe_commit, self._sync_threads)
        self._timer: Timer[QueueName] = Timer(self._wake)
        self._shelf = Shelf(
            self._layout,
            self._commits,
            self._timer,
            on_ready,
            self._background,
            files=self._files,
            clock=self._clock,
            max_open=self._max_open,
            idle_close_s=self._idle_close_s,
        )
        self._progress = lambda: self._shelf.progress
        self._is_open = True
        await self._shelf.recover()

    async def close(self) -> None:
        await self._claims.run(self._close())

    async def _close(self) -> None:
        async with self._claim_turn:
            if self._is_open:
                self._is_open = False
                self._timer.close()
                await self._shelf.close()
                await self._commits.close()
            if self._is_claimed:
                self._is_claimed = False
                await asyncio.to_thread(self._layout.close)

    def announce(self, url: str) -> Future[None]:
        return self._change_files(self._layout.announce, self._clock, url)

    @property
    def progress(self) -> tuple[int, int]:
        return self._progress()

    @property
    def trouble(self) -> str | None:
        return self._shelf.trouble()

    def _wake(self, queue: QueueName) -> None:
        found = self._shelf.get(queue)
        if found is not None:
            found.wake()

    def watch(self, queue: QueueName) -> None:
        self._shelf.watch(queue)

    def unwatch(self, queue: QueueName) -> None:
        self._shelf.unwatch(queue)

    def _do(
        self,
        queue: QueueName,
        work: Callable[[OpenQueue], Future[_T]],
        size: Callable[[_T], int] | None = None,
    ) -> Future[_T]:
        """Do it in the queue; at once where that is open. `size`: bytes to count of the result."""
        found = self._shelf.get(queue)
        if found is not None and not found.is_occupied:
            answer = work(found)
            if self._shelf.sizes:
                self._shelf.sizes.note(found, answer)
            return answer
        return self._commits.run(partial(self._open_and_do, queue, work, size))

    async def _open_and_do(
        self,
        queue: QueueName,
        work: Callable[[OpenQueue], Future[_T]],
        size: Callable[[_T], int] | None,
        held: HeldResult,
    ) -> _T:
        while True:
            found = await self._shelf.opened(queue)
            async with found.turn:
                if self._shelf.get(queue) is found:  # else it was closed while this one waited
                    answer = work(found)
                    break
        if self._shelf.sizes:
            self._shelf.sizes.note(found, answer)
        result = await answer
        if size is not None:
            held.hold(size(result))
        return result

    async def _with_files(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """In a thread; an error of the system is said as one of ours."""
        try:
            return await asyncio.to_thread(work, *arguments)
        except OSError as error:
            raise as_ledger_error(self._layout.path, "writing the broker's files", error) from error

    def _change_files(self, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """One change after another, each to its end: the last one that was asked for stands."""

        async def change() -> _T:
            async with self._file_turn:
                return await self._with_files(work, *arguments)

        return self._background.run(change())

    # -- catalogue ---------------------------------------------------------------------------------

    def namespaces(self) -> Future[list[NamespaceInfo]]:
        return asyncio.ensure_future(self._with_files(self._layout.namespaces))

    def save_namespace(self, namespace: NamespaceInfo) -> Future[None]:
        return self._change_files(self._layout.save_namespace, namespace)

    def delete_namespace(self, name: str) -> Future[None]:
        return self._shelf.delete_namespace(name)

    def queues(self, namespace: str | None = None) -> list[QueueName]:
        return self._shelf.names(namespace)

    def has(self, queue: QueueName) -> bool:
        return queue in self._shelf

    def create(self, queue: QueueName, settings: QueueSettings) -> Future[QueueInfo]:
        return self._shelf.create(queue, settings)

    def info(self, queue: QueueName) -> Future[QueueInfo]:
        async def info() -> QueueInfo:
            return (await self._shelf.opened(queue)).info

        return asyncio.ensure_future(info())

    def change(self, queue: QueueName, settings: Mapping[str, Any]) -> Future[QueueInfo]:
        return self._shelf.change(queue, settings)

    def delete(self, queue: QueueName, *, if_empty: bool = False) -> Future[None]:
        return self._shelf.delete(queue, if_empty=if_empty)

    def bytes_of(self, namespace: str, *, recount: bool = False) -> int:
        return self._shelf.bytes_of(namespace, recount=recount)

    def queue_of(self, identity: int) -> QueueName | None:
        return self._shelf.by_identity.get(identity)

    # -- messages ----------------------------------------------------------------------------------

    def publish(self, queue: QueueName, messages: Sequence[Publishable]) -> Future[list[Published]]:
        return self._do(queue, lambda one: one.publish(messages))

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
        return self._do(
            queue,
            lambda one: one.lease(
                n, lease_s=lease_s, group=group, holder=holder, dead=dead, max_bytes=max_bytes
            ),
            payload_bytes,
        )

    @property
    def unanswered_bytes(self) -> int:
        return self._commits.held_bytes

    def ready_hint(self, queue: QueueName, group: str) -> int | None:
        found = self._shelf.get(queue)
        return None if found is None or found.is_occupied else found.ready_hint(group)

    def settle(self, queue: QueueName, settlements: Sequence[Settlement]) -> Future[list[Outcome]]:
        return self._do(queue, lambda one: one.settle(settlements))

    def run(self, queue: QueueName, operation: Operation[_T]) -> Future[_T]:
        if isinstance(operation, GetStats):
            closed = self._shelf.stats_of_closed(queue)
            if closed is not None:  # looking at all queues does not open them all
                answer: Future[Any] = asyncio.get_running_loop().create_future()
                answer.set_result(closed)
                return answer
        return self._do(queue, lambda one: one.run(operation))

    # -- files -------------------------------------------------------------------------------------

    def segments(self, queue: QueueName, *, time_ns: int | None = None) -> Future[QueueSegments]:
        return self._do(queue, lambda one: one.files.segments(time_ns))

    def read_segment(
        self, queue: QueueName, log: LogName, base: int, start: int, end: int | None
    ) -> Future[SegmentBytes]:
        return self._do(queue, lambda one: one.files.read_segment(log, base, start, end))

    def read_index(self, queue: QueueName, log: LogName, base: int) -> Future[bytes]:
        return self._do(queue, lambda one: one.files.read_index(log, base))

    def note_archived(self, queue: QueueName, upto: int) -> Future[None]:
        return self._do(queue, lambda one: one.files.note_archived(upto))

    def staging(
        self, queue: QueueName, applications_with: str | None = None
    ) -> Future[StagingInfo]:
        return self._do(queue, lambda one: one.files.staging(applications_with))

    def stage(
        self, queue: QueueName, folder: str, name: str, offset: int, data: bytes
    ) -> Future[None]:
        return self._do(queue, lambda one: one.files.stage(folder, name, offset, data))

    def unstage(self, queue: QueueName, folder: str) -> Future[None]:
        return self._do(queue, lambda one: one.files.unstage(folder))

    def adopt(
        self, queue: QueueName, staged: Sequence[StagedSegment], app: str | None, version: int
    ) -> Future[Adoption]:
        return self._do(queue, lambda one: one.files.adopt(staged, app, version))

    # -- documents ---------------------------------------------------------------------------------

    def load_document(self, name: str) -> Future[bytes | None]:
        return asyncio.ensure_future(self._with_files(self._layout.load_document, name))

    def replace_document(self, name: str, old: bytes | None, new: bytes | None) -> Future[bool]:
        return self._change_files(self._layout.replace_document, name, old, new)
