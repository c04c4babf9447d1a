"""The segments of the queues in a PostgreSQL store; see `penstock.broker.store.StoreFiles`."""

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Any

from penstock.names import QueueName
from penstock.queue.segments import (
    Adoption,
    LogName,
    QueueSegments,
    SegmentBytes,
    StagedSegment,
    StagingInfo,
)


class PostgresStoreFiles:
    """The segments of the queues; see `StoreFiles`."""

    def __init__(self, call: Callable[..., Future[Any]]) -> None:
        self._call = call

    def segments(self, queue: QueueName, *, time_ns: int | None = None) -> Future[QueueSegments]:
        return self._call(queue, "segments", time_ns)

    def read_segment(
        self, queue: QueueName, log: LogName, base: int, start: int, end: int | None
    ) -> Future[SegmentBytes]:
        return self._call(queue, "read_segment", log, base, start, end)

    def read_index(self, queue: QueueName, log: LogName, base: int) -> Future[bytes]:
        return self._call(queue, "read_index", log, base)

    def note_archived(
        self, queue: QueueName, upto: int, archive: str = "", archived_as: str = ""
    ) -> Future[None]:
        return self._call(queue, "note_archived", upto, archive, archived_as)

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
