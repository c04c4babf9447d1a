"""The sink: tasks stage segments, the driver has them adopted, all of a job or nothing of it."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.clock import SystemClock
from penstock.errors import InvalidInput, PenstockError
from penstock.ledger.json_files import Transaction
from penstock.ledger.staging import Staged
from penstock.queue.adopting import check_transaction
from penstock.spark.options import WriteOptions
from penstock.spark.sink_rows import check_sink_schema
from penstock.spark.staging import Target, stage
from penstock.spark.targets import target_of
from penstock.spark.workers import settle_worker
from penstock.spark.writers import commit_staged, drop_staged

log = logging.getLogger("penstock.spark")

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What one task tells the driver."""

    partition: int
    staged: tuple[Staged, ...]
    size_bytes: int
    query_id: str | None = None
    batch_id: int | None = None


def staged_rows(target: Target, batches: Iterator[pa.RecordBatch], timestamp_ns: int) -> StagedRows:
    """The work of one task."""
    settle_worker()
    context = TaskContext.get()
    staged, size_bytes = stage(target, batches, timestamp_ns)
    if context is None:
        return StagedRows(0, tuple(staged), size_bytes)
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    return StagedRows(
        context.partitionId(),
        tuple(staged),
        size_bytes,
        query_id,
        None if batch_id is None else int(batch_id),
    )


def commit_rows(
    target: Target, messages: Sequence[WriterCommitMessage | None], transaction: Transaction | None
) -> None:
    """Have all that the tasks staged taken in; in the order of their partitions."""
    settle_worker()
    staged = [one for task in _tasks(messages) for one in task.staged]
    commit_staged(target.holder, target.settings, staged, transaction)


def abort_rows(target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove what was staged. What was adopted has left the staging folder, and stays."""
    folders = list(dict.fromkeys(one.folder for task in _tasks(messages) for one in task.staged))
    try:
        drop_staged(target.holder, target.settings, folders)
    except PenstockError as error:
        log.warning("staged segments are left for the next commit to remove: %s", error)


def _tasks(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    tasks = [message for message in messages if isinstance(message, StagedRows)]
    return sorted(tasks, key=lambda task: task.partition)


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("penstock").mode("append")`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_sink_schema(schema)
        self._target = target_of(options)
        self._transaction: Transaction | None = None
        if options.txn_app_id is not None and options.txn_version is not None:
            self._transaction = check_transaction(options.txn_app_id, options.txn_version)
        # One time for the whole job, as for any batch: rows of later tasks are not older.
        self._timestamp_ns = SystemClock().now_ns()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return staged_rows(self._target, iterator, self._timestamp_ns)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_rows(self._target, messages, self._transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_rows(self._target, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("penstock")`: each micro-batch is a transaction of the query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.txn_app_id is not None:
            raise InvalidInput(
                "txnAppId and txnVersion are for batch writes: a stream has its query id and "
                "batch ids, from its checkpoint"
            )
        check_sink_schema(schema)
        self._target = target_of(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return staged_rows(self._target, iterator, SystemClock().now_ns())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        query_id = next((task.query_id for task in _tasks(messages) if task.query_id), None)
        if query_id is None:
            if any(task.staged for task in _tasks(messages)):
                raise InvalidInput("Spark did not say which query this is: nothing was written")
            return
        commit_rows(self._target, messages, Transaction(query_id, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort_rows(self._target, messages)
