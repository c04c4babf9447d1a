"""Archive: sealed segments as Parquet, verified by content.

Each task takes a range of a segment: it decodes it, writes Parquet (zstd) to the archive, reads the
file back and compares every value. After each wave of tasks the driver commits the manifest.
Archived ranges are not read again. Tables that follow the archive (Delta,
Iceberg) are updated at the end.
"""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.archive import Archive, ArchivedFile, ArchiveError, ArchiveManifest, ArchiveStore
from penstock.archive.manifests import Gap
from penstock.archive.names import file_name, folder_of, queue_folder
from penstock.archive.parquet import write_verified
from penstock.archive.places import place_of
from penstock.arrow.locations import QueueLocation, queues_of_job
from penstock.arrow.logs import watcher_of
from penstock.arrow.loss import DataLoss
from penstock.arrow.planning import Partition, check_start
from penstock.arrow.ranges import Range, split
from penstock.arrow.reading import read_partition
from penstock.arrow.segments import LogView
from penstock.arrow.selection import NO_ARCHIVE, Selection, switch_in
from penstock.arrow.tables import schema_of
from penstock.client.files import note_archived as note_call
from penstock.clock import SystemClock
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.queue.compaction import note_archived
from penstock.spark.archive_stores import (
    HandedFiles,
    archive_of,
    check_outside,
    check_place,
    task_store,
    tasks_per_core,
)
from penstock.spark.table_formats import check_asked, make_asked
from penstock.spark.workers import run_waves

# Everything of a message but its position in the queue's files.
ARCHIVED_COLUMNS = (
    *("seq", "timestamp", "timestamp_ns", "priority", "key", "headers", "payload"),
    *("expires_at_ns", "deliver_at_ns", "content_type", "attributes"),
)
RANGE_BYTES = 64 << 20  # per task
MAX_GAPS = 100  # on record for the range of a task

Progress = Callable[[int, int], None]  # number of ranges done, and of all


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What one run archived of a queue."""

    queue: str
    rows: int
    files: int
    size_bytes: int
    next_seq: int  # the archive ends before this seq
    lost: int = 0  # seqs that were removed before they were archived: a gap, now on record


@dataclass(frozen=True, slots=True)
class _Task:
    store: ArchiveStore
    one: Range
    token: str


@dataclass(frozen=True, slots=True)
class _Done:
    first_seq: int
    end_seq: int
    removed: list[tuple[int, int]]  # seqs [first, end) that the queue does not have any more
    files: list[ArchivedFile]
    handed: dict[str, bytes]  # files that the driver must store


def check_archive(location: str, target: str, queue: str | None) -> list[QueueLocation]:
    """Return the queues to archive. Raise if the target cannot be an archive."""
    queues = queues_of_job(location, queue)
    check_outside("archive", target, location)
    check_place(target)
    return queues


def archive(
    spark: SparkSession,
    path: str,
    target: str,
    *,
    queue: str | None = None,
    delta: bool = False,
    iceberg: str | None = None,
    accept_gap: bool = False,
    on_progress: Progress | None = None,
) -> list[ArchiveResult]:
    """Archive the sealed segments of one queue, or of all, that are not archived yet.

    `target` is a directory or the URL of an object store. With `delta`, the whole archive is a
    Delta table as well; with `iceberg`, the name of a catalog, each queue is an Iceberg table.

    If messages were removed before they were archived, this raises DataLoss. With `accept_gap` the
    archive goes on behind them. Its manifest has the gap on record, and readers report it as loss.
    """
    switch_in("accept_gap", accept_gap)
    check_asked(delta=switch_in("delta", delta), iceberg=iceberg)
    queues = check_archive(path, target, queue)
    made = archive_of(spark, target)
    with made.locked():
        results = [
            _archive_one(spark, one, made, target, accept_gap, on_progress) for one in queues
        ]
        make_asked(made, archive_schema(), delta=delta, iceberg=iceberg)
    return results


def archive_schema() -> pa.Schema:
    return schema_of("messages", ARCHIVED_COLUMNS, several_queues=False, include_headers=False)


def _archive_one(
    spark: SparkSession,
    queue: QueueLocation,
    target: Archive,
    location: str,
    accept_gap: bool,
    on_progress: Progress | None,
) -> ArchiveResult:
    view = watcher_of(queue, "messages").view()
    manifest = _manifest(target, view)
    sealed_end = max((s.end_seq for s in view.spans if not s.is_last), default=view.first_seq)
    lost = max(view.low - manifest.next_seq, 0) if accept_gap else 0
    if lost:
        _note_gaps(manifest, [(manifest.next_seq, view.low)])
        manifest.next_seq = view.low
        target.commit(manifest)
    try:
        first = check_start(view, manifest.next_seq, sealed_end)
    except DataLoss as error:
        raise _gap_refused(str(error).partition(". Start later")[0]) from None
    ranges = list(split(view, first, sealed_end, max_bytes=RANGE_BYTES))
    target.store.remove_leftovers(queue_folder(queue.namespace, queue.name))
    # Without a lock another job may write files of the same seqs.
    token = "" if target.store.has_lock else secrets.token_hex(4)
    store = task_store(target.store)
    done: list[ArchivedFile] = []
    tasks = [_Task(store, one, token) for one in ranges]
    number = 0
    for wave in run_waves(
        spark, _archive_range, tasks, tasks_per_core=tasks_per_core(target.store)
    ):
        # In order, so that a killed job leaves an archive without gaps.
        for result in wave:
            removed = _removed_before(result, manifest.next_seq)
            if removed and not accept_gap:
                if done:
                    target.commit(manifest)  # what comes before them
                raise _gap_refused(_removed_sentence(queue.key, removed))
            _store_handed(target.store, result)
            _note_gaps(manifest, removed)
            lost += sum(end - first for first, end in removed)
            manifest.files += result.files
            manifest.next_seq = result.end_seq
            done += result.files
        target.commit(manifest)
        number += len(wave)
        if on_progress is not None:
            on_progress(number, len(tasks))
    if (
        manifest.version or manifest.files
    ):  # else nothing is archived yet, and readers would look for it in vain
        _set_archived(view, manifest.next_seq, place_of(location).recorded)
    return ArchiveResult(
        queue.key,
        sum(file.rows for file in done),
        len(done),
        sum(file.size_bytes for file in done),
        manifest.next_seq,
        lost,
    )


def _removed_before(result: _Done, archived_upto: int) -> list[tuple[int, int]]:
    """Return the seqs [first, end) that were removed before they were archived, up to a result."""
    between = [(archived_upto, result.first_seq)] if archived_upto < result.first_seq else []
    return [*between, *result.removed]


def _note_gaps(manifest: ArchiveManifest, removed: Sequence[tuple[int, int]]) -> None:
    now_ns = SystemClock().now_ns()
    manifest.gaps += [Gap(first, end, now_ns) for first, end in _few(removed)]


def _few(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge the nearest runs until few are left. A gap on record may then have messages in it."""
    few, distance = list(runs), 1
    while len(few) > MAX_GAPS:
        wider = few[:1]
        for first, end in few[1:]:
            if first - wider[-1][1] <= distance:
                wider[-1] = (wider[-1][0], end)
            else:
                wider.append((first, end))
        few, distance = wider, 2 * distance
    return few


def _removed_sentence(key: str, removed: Sequence[tuple[int, int]]) -> str:
    count = sum(end - first for first, end in removed)
    return (
        f"queue {key}: {count:,} messages from seq {removed[0][0]} to {removed[-1][1] - 1} were "
        f"removed by retention or compaction before they were archived"
    )


def _gap_refused(sentence: str) -> DataLoss:
    return DataLoss(
        f"{sentence}. To go on behind this gap, and have it on record, archive with accept_gap "
        "(--accept-gap). Set archive_required, so that it does not happen again."
    )


def _store_handed(store: ArchiveStore, done: _Done) -> None:
    """Store what a task could not, and verify it."""
    for file in done.files if done.handed else ():
        store.write(file.path, done.handed[file.path])
        if hashlib.sha256(store.read(file.path)).hexdigest() != file.sha256:
            raise ArchiveError(
                f"{store.shown}/{file.path} does not read back as it was written: check the store "
                f"of the archive"
            )


def _set_archived(view: LogView, upto: int, location: str) -> None:
    """Tell the queue how far it is archived, and where.

    With `archive_required`, only that can be removed. Readers find the archive by the location.
    """
    queue = view.info.queue
    if queue.url:
        queue.connection.do(note_call(queue.api_path, upto, location, queue.key))
    else:
        note_archived(
            Folder(OsFiles(), queue.path),
            view.info.identity,
            upto,
            next_seq=view.next_seq,
            archive=location,
            archived_as=queue.key,
        )


def _manifest(target: Archive, view: LogView) -> ArchiveManifest:
    key, identity = view.info.queue.key, view.info.identity
    manifest = target.manifest(key)
    if manifest is None:
        return ArchiveManifest(key, identity, first_seq=view.low, next_seq=view.low)
    check_identity(target, manifest, view)
    return manifest


def check_identity(target: Archive, manifest: ArchiveManifest, view: LogView) -> None:
    """Raise ArchiveError if an archive is not of this queue, but of another one of its name."""
    if manifest.identity != view.info.identity:
        raise ArchiveError(
            f"{target.shown} has an archive of another queue with the name {manifest.queue!r}, as "
            f"if this one was deleted and created again: use another archive for it"
        )


# -- in a task -------------------------------------------------------------------------------------


def _archive_range(task: _Task) -> _Done:
    """Write a range, one file per day."""
    first, end = task.one.wanted_from, task.one.wanted_to
    table = read_ranges([task.one])
    files = [
        write_verified(task.store, _path(task, date, part), date, part)
        for date, part in by_day(table)
    ]
    handed = task.store.contents if isinstance(task.store, HandedFiles) else {}
    return _Done(first, end, _missing(table, first, end), files, handed)


def _missing(table: pa.Table, first: int, end: int) -> list[tuple[int, int]]:
    """Return the runs of seqs of [first, end) that a table does not have."""
    if table.num_rows == end - first:
        return []
    seqs = np.concatenate([[first - 1], table.column("seq").to_numpy(), [end]])
    at = np.flatnonzero(np.diff(seqs) > 1)
    return [(int(seqs[one]) + 1, int(seqs[one + 1])) for one in at]


def _path(task: _Task, date: str, table: pa.Table) -> str:
    queue = task.one.info.queue
    name = file_name(queue.key, table.column("seq")[0].as_py(), task.token)
    return f"{folder_of(queue.namespace, queue.name, date)}/{name}"


def by_day(table: pa.Table) -> list[tuple[str, pa.Table]]:
    """Split messages by the date on which they were published."""
    if not table.num_rows:
        return []
    days = table.column("timestamp").cast(pa.date32())
    first, last = days[0].as_py(), days[-1].as_py()
    if first == last:  # Times rise: nearly always all rows are of one day.
        return [(first.isoformat(), table)]
    dates = sorted(pc.unique(days).to_pylist())
    return [(date.isoformat(), table.filter(pc.equal(days, date))) for date in dates]


def read_ranges(ranges: Sequence[Range]) -> pa.Table:
    """Return the archived columns of some ranges, from the live log."""
    schema = archive_schema()
    selection = Selection(location="", archive=NO_ARCHIVE)
    batches = read_partition(Partition(ranges), schema, selection)
    return pa.Table.from_batches(batches, schema)
