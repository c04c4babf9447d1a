"""The broker's calls about segment files: reading logs, staging segments and adopting them.

The values are those of the queue layer, here for the transports.
"""

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from penstock.broker.access import Admit, Caller
from penstock.broker.store import Store, StoreFiles
from penstock.errors import NotSupported
from penstock.names import QueueName
from penstock.operations import Verb
from penstock.queue.segments import (
    MAX_RANGE_BYTES,
    MAX_STAGED_SEGMENT_BYTES,
    MAX_STAGED_SEGMENTS,
    Adoption,
    LogInfo,
    LogName,
    QueueSegments,
    SegmentBytes,
    SegmentInfo,
    SnapshotInfo,
    StagedSegment,
    StagingInfo,
)

__all__ = [
    "MAX_RANGE_BYTES",
    "MAX_STAGED_SEGMENTS",
    "MAX_STAGED_SEGMENT_BYTES",
    "Adoption",
    "FileCalls",
    "LogInfo",
    "LogName",
    "QueueSegments",
    "SegmentBytes",
    "SegmentInfo",
    "SnapshotInfo",
    "StagedSegment",
    "StagingInfo",
]

_T = TypeVar("_T")


class _InQueue(Protocol):
    def __call__(self, queue: QueueName, work: Callable[[], Future[_T]]) -> Future[_T]: ...


class FileCalls:
    """The file calls of a broker. Raise NotSupported if its store has no files."""

    def __init__(
        self,
        store: Store,
        admit: Admit,
        in_queue: _InQueue,
    ) -> None:
        self._store = store
        self._admit = admit
        self._in_queue = in_queue

    @property
    def _files(self) -> StoreFiles:
        if self._store.files is None:
            raise NotSupported("this broker's store has no segment files: read through the queue")
        return self._store.files

    def segments(
        self, caller: Caller, queue: QueueName, *, time_ns: int | None = None
    ) -> Future[QueueSegments]:
        """Return the files of a queue, for readers of whole logs."""
        self._admit(caller, Verb.READ, queue.namespace)
        return self._files.segments(queue, time_ns=time_ns)

    def read_segment(
        self,
        caller: Caller,
        queue: QueueName,
        log: LogName,
        base: int,
        *,
        start: int = 0,
        end: int | None = None,
    ) -> Future[SegmentBytes]:
        self._admit(caller, Verb.READ, queue.namespace)
        return self._files.read_segment(queue, log, base, start, end)

    def read_index(
        self, caller: Caller, queue: QueueName, log: LogName, base: int
    ) -> Future[bytes]:
        self._admit(caller, Verb.READ, queue.namespace)
        return self._files.read_index(queue, log, base)

    def note_archived(
        self,
        caller: Caller,
        queue: QueueName,
        upto: int,
        *,
        archive: str = "",
        archived_as: str = "",
    ) -> Future[None]:
        """Note that messages below a seq are archived, so that compaction may remove them.

        Note where, too, so that readers find them.
        """
        self._admit(caller, Verb.MANAGE, queue.namespace)
        return self._files.note_archived(queue, upto, archive, archived_as)

    def staging(
        self, caller: Caller, queue: QueueName, applications_with: str | None = None
    ) -> Future[StagingInfo]:
        """Return what a writer of segments needs. Create the queue if it does not exist."""
        self._admit(caller, Verb.PUBLISH, queue.namespace)
        return self._in_queue(queue, lambda: self._files.staging(queue, applications_with))

    def stage(
        self, caller: Caller, queue: QueueName, folder: str, name: str, offset: int, data: bytes
    ) -> Future[None]:
        self._admit(caller, Verb.PUBLISH, queue.namespace)
        return self._files.stage(queue, folder, name, offset, data)

    def unstage(self, caller: Caller, queue: QueueName, folder: str) -> Future[None]:
        self._admit(caller, Verb.PUBLISH, queue.namespace)
        return self._files.unstage(queue, folder)

    def adopt(
        self,
        caller: Caller,
        queue: QueueName,
        staged: Sequence[StagedSegment],
        *,
        app: str | None = None,
        version: int = 0,
    ) -> Future[Adoption]:
        """Take staged segments in as messages, all or none; a named transaction once."""
        self._admit(caller, Verb.PUBLISH, queue.namespace)
        return self._files.adopt(queue, staged, app, version)
