"""The sink: tasks stage segments, and the driver has them adopted, all of a job or none.

Each attempt of a task writes segments of its own, in a folder of the queue's `staging/`. The folder
is named by its time, so that leftovers of failed and speculative attempts can be removed by age.
"""

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock import codec
from penstock.arrow.broker_files import staging_files, write_bytes
from penstock.clock import SystemClock
from penstock.codec import ENTRY_OVERHEAD_BYTES, Draft, Packer
from penstock.codec.layout import CHECKPOINT_BYTES
from penstock.errors import InvalidInput, PenstockError, TooLarge
from penstock.ledger.folder import Folder, write_fully
from penstock.ledger.json_files import Transaction
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.ledger.staging import STAGING, Staged, folder_name, staged_header
from penstock.queue.adopting import check_transaction
from penstock.spark.options import WriteOptions
from penstock.spark.sink_rows import Payloads, RowsToMessages, check_sink_schema, max_entry_size
from penstock.spark.versions import DataSourceStreamArrowWriter
from penstock.spark.workers import tune_worker
from penstock.spark.writers import Target, commit_staged, open_target, remove_staged

log = logging.getLogger("penstock.spark")

QUERY_ID = "sql.streaming.queryId"  # Spark's name of a local property
_WRITE_BACK_BYTES = 8 << 20  # the kernel is told to write each time this much was written


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What one task staged."""

    partition: int
    staged: tuple[Staged, ...]
    query_id: str | None = None


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("penstock").mode("append")`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_sink_schema(schema)
        self._target = open_target(options)
        self._transaction: Transaction | None = None
        if options.txn_app_id is not None and options.txn_version is not None:
            self._transaction = check_transaction(options.txn_app_id, options.txn_version)
        # One time for the whole job, so that rows of later partitions are not older.
        self._timestamp_ns = SystemClock().now_ns()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage_rows(self._target, iterator, self._timestamp_ns)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._target, messages, self._transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._target, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("penstock")`: each micro-batch is a transaction of the query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.txn_app_id is not None:
            raise InvalidInput(
                "txnAppId and txnVersion are for batch writes: a stream has the query id and batch "
                "ids of its checkpoint"
            )
        check_sink_schema(schema)
        self._target = open_target(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage_rows(self._target, iterator, SystemClock().now_ns())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        query_id = next((task.query_id for task in _tasks(messages) if task.query_id), None)
        if query_id is None:
            if any(task.staged for task in _tasks(messages)):
                raise InvalidInput("Spark gave no query id: nothing was written")
            return
        _commit(self._target, messages, Transaction(query_id, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._target, messages)


def _commit(
    target: Target, messages: Sequence[WriterCommitMessage | None], transaction: Transaction | None
) -> None:
    """Have everything that the tasks staged adopted, in the order of their partitions."""
    tune_worker()
    commit_staged(target, [one for task in _tasks(messages) for one in task.staged], transaction)


def _abort(target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove what was staged. Adopted segments are not in the staging folder any more."""
    folders = list(dict.fromkeys(one.folder for task in _tasks(messages) for one in task.staged))
    try:
        remove_staged(target, folders)
    except PenstockError as error:
        log.warning("staged segments were not removed; a later commit removes them: %s", error)


def _tasks(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    tasks = [message for message in messages if isinstance(message, StagedRows)]
    return sorted(tasks, key=lambda task: task.partition)


# -- in a task -------------------------------------------------------------------------------------


def stage_rows(target: Target, batches: Iterable[pa.RecordBatch], timestamp_ns: int) -> StagedRows:
    """Write the rows of a task to staged segments."""
    tune_worker()
    writer = _SegmentWriter(target, timestamp_ns)
    rows = RowsToMessages(target.settings)
    try:
        for batch in batches:
            if batch.num_rows:
                writer.write(rows.messages(batch, timestamp_ns))
        staged = tuple(writer.finish())
    except BaseException:
        writer.remove()
        raise
    context = TaskContext.get()
    if context is None:
        return StagedRows(0, staged)
    return StagedRows(context.partitionId(), staged, context.getLocalProperty(QUERY_ID))


class _SegmentWriter:
    """Segments in one folder of a staging area."""

    def __init__(self, target: Target, timestamp_ns: int) -> None:
        self._target = target
        self._timestamp_ns = timestamp_ns
        self._files = staging_files(target.queue)
        staging = Folder(self._files, target.queue.path).child(STAGING)
        staging.make()
        self._name = folder_name(SystemClock().now_ns(), secrets.token_hex(8))
        self._folder = staging.child(self._name)
        self._folder.make()
        self._fd = -1
        self._offset = self._written_back = 0
        self._next_seq = 0
        self._staged: list[Staged] = []
        self._max_entry_bytes = target.settings.storage.ledger_settings().max_entry_bytes
        self._segment_bytes = target.settings.storage.segment_bytes
        # Small enough that a full buffer is written while it is in the processor's cache.
        self._write_bytes = min(write_bytes(target.queue), self._segment_bytes - HEADER_BYTES)
        self._buffer = bytearray(self._write_bytes)

    def write(self, messages: Payloads | Sequence[Draft]) -> None:
        """Append messages, each to a segment with enough room."""
        if isinstance(messages, Payloads):
            self._write_payloads(messages)
        else:
            self._write_drafts(messages)

    def _write_payloads(self, payloads: Payloads) -> None:
        row, offsets = 0, payloads.offsets.cast("i")
        while row < payloads.count:
            first_bytes = ENTRY_OVERHEAD_BYTES + offsets[row + 1] - offsets[row]
            self._make_room(first_bytes)
            room = max(first_bytes, min(self._write_bytes, self._segment_bytes - self._offset))
            with memoryview(self._buffer) as whole, whole[:room] as view:
                after, size = codec.pack_payloads(
                    view,
                    payloads.offsets,
                    payloads.data,
                    row,
                    seq=self._next_seq,
                    timestamp_ns=self._timestamp_ns,
                    max_entry_bytes=self._max_entry_bytes,
                )
                self._append(view[:size], after - row)
            row = after

    def _write_drafts(self, drafts: Sequence[Draft]) -> None:
        batch: list[Draft] = []
        size = CHECKPOINT_BYTES
        for draft in drafts:
            more = max_entry_size(draft)
            if batch and size + more > self._write_bytes:
                self._write_batch(batch, size)
                batch, size = [], CHECKPOINT_BYTES
            batch.append(draft)
            size += more
        self._write_batch(batch, size)

    def _write_batch(self, batch: Sequence[Draft], size_bytes: int) -> None:
        self._make_room(size_bytes)
        packer = Packer(
            self._buffer,
            position=0,
            limit=len(self._buffer),
            next_seq=self._next_seq,
            max_entry_bytes=self._max_entry_bytes,
        )
        if packer.append_batch(batch, self._timestamp_ns) < 0:
            raise TooLarge("the messages are larger than computed: please report this")
        with memoryview(self._buffer) as whole, whole[: packer.position] as view:
            self._append(view, len(batch))
        packer.release()

    def _make_room(self, size_bytes: int) -> None:
        """Make room in the buffer and the segment. A large message may get its own segment."""
        if size_bytes > len(self._buffer):
            self._buffer = bytearray(size_bytes)
        if self._fd >= 0 and self._offset + size_bytes > self._segment_bytes:
            self._seal()
        if self._fd < 0:
            self._begin()

    def _append(self, data: memoryview, entries: int) -> None:
        write_fully(self._files, self._fd, data, self._offset)
        self._offset += len(data)
        self._next_seq += entries
        unwritten = self._offset - self._written_back
        if unwritten >= _WRITE_BACK_BYTES:  # so that the sync at the end has little left to do
            self._files.start_writing(self._fd, self._written_back, unwritten)
            self._written_back = self._offset

    def _begin(self) -> None:
        self._fd = self._files.open(self._folder.file(f"{len(self._staged)}.log"), "create")
        header = staged_header(self._target.identity, self._timestamp_ns)
        write_fully(self._files, self._fd, header.pack(), 0)
        self._offset = self._written_back = HEADER_BYTES
        self._next_seq = 0

    def _seal(self) -> None:
        self._files.fdatasync(self._fd)
        self._files.close(self._fd)
        self._fd = -1
        self._staged.append(Staged(self._name, f"{len(self._staged)}.log", self._next_seq))

    def finish(self) -> list[Staged]:
        """Return the segments. The folder of a task without rows is removed."""
        if self._fd >= 0:
            self._seal()
        if not self._staged:
            self._files.remove_directory(self._folder.path)
        return self._staged

    def remove(self) -> None:
        """Remove the folder. If that fails, it is removed by age."""
        try:
            if self._fd >= 0:
                self._files.close(self._fd)
            for name in self._files.names(self._folder.path):
                self._folder.remove(name)
            self._files.remove_directory(self._folder.path)
        except (OSError, PenstockError):
            pass
