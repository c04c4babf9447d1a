"""Archive: sealed segments as plain Parquet, verified by content before anyone relies on it.

Each task takes a range of a segment: decodes it, writes Parquet (zstd), syncs, reads the file back
and compares every value with what the segment says; then the file gets its name. The driver puts it
into the manifest. What was archived is not read again. With `delta` a Delta log follows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.client.files import note_archived as note_call
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.queue.compaction import note_archived
from penstock.spark.archive_files import (
    ArchivedFile,
    ArchiveError,
    ArchiveManifest,
    checksum_of,
    file_name,
    folder_of,
    locked,
    make_directory,
    sync_directory,
    sync_file,
)
from penstock.spark.delta_log import check_installed, follow_manifests
from penstock.spark.http_files import path_of
from penstock.spark.jobs.inputs import check_archive
from penstock.spark.options import ReadOptions
from penstock.spark.partitions import Lot, read_lot
from penstock.spark.places import QueueAt, connection_to
from penstock.spark.planning import checked_start
from penstock.spark.ranges import Range, cut
from penstock.spark.segments import LogView
from penstock.spark.tables import arrow_schema_of, schema_of
from penstock.spark.tasks import run_tasks
from penstock.spark.watching import watcher_of

# All that a message is; where it lay in the queue's files says nothing in an archive.
ARCHIVED_COLUMNS = (
    "seq",
    "timestamp",
    "timestamp_ns",
    "priority",
    "key",
    "headers",
    "payload",
    "expires_at_ns",
    "deliver_at_ns",
    "content_type",
    "attributes",
)
# A dictionary of values that hardly repeat, or the least payload, costs much and helps nobody.
_REPEATED = ["priority", "key", "content_type"]
_SOUGHT = ["seq", "timestamp", "timestamp_ns", "priority", "key"]
_RANGE_BYTES = 64 << 20

Progress = Callable[[int, int], None]  # ranges done, ranges in all


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What a run archived."""

    queue: str
    rows: int
    files: int
    size_bytes: int
    next_seq: int  # archived up to here, this run or before


@dataclass(frozen=True, slots=True)
class _Task:
    archive: str
    one: Range


def archive(
    spark: SparkSession,
    path: str,
    target: str,
    *,
    queue: str | None = None,
    delta: bool = False,
    on_progress: Progress | None = None,
) -> list[ArchiveResult]:
    """Archive what sealed segments have and the archive has not; one queue, or all of them.

    With `delta` the archive, all that is in it, is a Delta table as well.
    """
    if delta:
        check_installed()
    queues, root = check_archive(path, target, queue)
    with locked(root):
        results = [_archive_one(spark, one, root, on_progress) for one in queues]
        if delta:
            follow_manifests(root, arrow_schema_of(_columns()))
    return results


def _columns() -> StructType:
    return schema_of("messages", ARCHIVED_COLUMNS, several_queues=False, include_headers=False)


def _archive_one(
    spark: SparkSession, queue: QueueAt, root: Path, on_progress: Progress | None
) -> ArchiveResult:
    view = watcher_of(queue, "messages").look()
    manifest = _manifest(root, view)
    sealed_end = max((s.end_seq for s in view.spans if not s.is_last), default=view.first_seq)
    first = checked_start(view, manifest.next_seq, sealed_end)
    ranges = list(cut(view, first, sealed_end, max_bytes=_RANGE_BYTES))
    _remove_strays(root, queue)
    done: list[ArchivedFile] = []
    before = len(manifest.files)
    tasks = [_Task(str(root.absolute()), one) for one in ranges]
    for number, (upto, files) in enumerate(run_tasks(spark, _archive_range, tasks), start=1):
        # In the order of the ranges: a killed job has archived a first part, without gaps.
        manifest.files += files
        manifest.next_seq = upto
        done += files
        manifest.save(root)
        if on_progress is not None:
            on_progress(number, len(tasks))
    assert len(manifest.files) == before + len(done)
    _note(view, manifest.next_seq)
    return ArchiveResult(
        queue.key,
        sum(file.rows for file in done),
        len(done),
        sum(file.size_bytes for file in done),
        manifest.next_seq,
    )


def _note(view: LogView, upto: int) -> None:
    """Tell the queue: where an archive is required, segments below may go now."""
    queue = view.facts.queue
    if queue.url:
        connection_to(queue.url, queue.api_key).do(note_call(path_of(queue), upto))
    else:
        root = Folder(OsFiles(), queue.path)
        note_archived(root, view.facts.identity, upto, next_seq=view.next_seq)


def _manifest(root: Path, view: LogView) -> ArchiveManifest:
    queue = view.facts.queue
    manifest = ArchiveManifest.load(root, queue.key)
    if manifest is None:
        return ArchiveManifest(
            queue.key, view.facts.identity, first_seq=view.low, next_seq=view.low
        )
    if (manifest.identity, manifest.queue) != (view.facts.identity, queue.key):
        raise ArchiveError(
            f"{root} has an archive of another queue that was called {manifest.queue!r}: "
            f"archive this one elsewhere"
        )
    return manifest


def _remove_strays(root: Path, queue: QueueAt) -> None:
    """What a killed job was writing when it died."""
    folder = root / folder_of(queue, "").rpartition("/")[0]
    for stray in folder.glob("date=*/.*.tmp"):
        stray.unlink()


# -- in a task -------------------------------------------------------------------------------------


def _archive_range(task: _Task) -> tuple[int, list[ArchivedFile]]:
    """Write a range, a file for each day; the seq it reaches up to, and the files."""
    batches = list(read_lot(Lot([task.one]), _columns(), ReadOptions(place="")))
    if not batches:
        return task.one.wanted_to, []
    table = pa.Table.from_batches(batches)
    days = table.column("timestamp").cast(pa.date32())
    first, last = days[0].as_py(), days[-1].as_py()
    # Times never go back: a range of one day, nearly always, needs no cutting.
    dates = [first] if first == last else sorted(pc.unique(days).to_pylist())
    files = []
    for date in dates:
        part = table if len(dates) == 1 else table.filter(pc.equal(days, date))
        files.append(_write(Path(task.archive), task.one, date.isoformat(), part))
    return task.one.wanted_to, files


def _write(root: Path, one: Range, date: str, table: pa.Table) -> ArchivedFile:
    folder = folder_of(one.facts.queue, date)
    seqs, times = table.column("seq"), table.column("timestamp_ns")
    name = file_name(one.facts.queue, seqs[0].as_py())
    make_directory(root / folder)
    place, temporary = root / folder / name, root / folder / f".{name}.tmp"
    pq.write_table(
        table,
        temporary,
        compression="zstd",
        row_group_size=1 << 20,
        use_dictionary=_REPEATED,
        write_statistics=_SOUGHT,
    )
    sync_file(temporary)
    _compare(temporary, table)
    file = ArchivedFile(
        path=f"{folder}/{name}",
        date=date,
        rows=table.num_rows,
        first_seq=seqs[0].as_py(),
        last_seq=seqs[-1].as_py(),
        first_ns=times[0].as_py(),
        last_ns=times[-1].as_py(),
        size_bytes=temporary.stat().st_size,
        sha256=checksum_of(temporary),
    )
    temporary.replace(place)
    sync_directory(place.parent)
    return file


def _compare(path: Path, table: pa.Table) -> None:
    """Every value that was written is read back, or nothing is archived."""
    written = pq.read_table(path, partitioning=None)
    if not written.equals(table):
        raise ArchiveError(
            f"{path} does not read back as it was written: check the disk of the archive"
        )
