"""Archive: sealed segments as Parquet, verified by content.

Each task takes a range of a segment: it decodes it, writes Parquet (zstd), syncs, reads the file
back and compares every value, then renames the file. The driver adds it to the manifest. Archived
ranges are not read again. With `delta`, a Delta log is updated at the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from penstock.arrow.locations import QueueLocation, queues_of_job
from penstock.arrow.logs import watcher_of
from penstock.arrow.planning import Partition, check_start
from penstock.arrow.ranges import Range, split
from penstock.arrow.reading import read_partition
from penstock.arrow.segments import LogView
from penstock.arrow.selection import Selection
from penstock.arrow.tables import schema_of
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
    local_directory,
    locked,
    make_directory,
    sync,
)
from penstock.spark.delta_log import check_installed, follow_manifests
from penstock.spark.workers import run_tasks

# Everything of a message but its position in the queue's files.
ARCHIVED_COLUMNS = (
    *("seq", "timestamp", "timestamp_ns", "priority", "key", "headers", "payload"),
    *("expires_at_ns", "deliver_at_ns", "content_type", "attributes"),
)
# Dictionaries and statistics cost time; other columns hardly gain from them.
_WITH_DICTIONARY = ["priority", "key", "content_type"]
_WITH_STATISTICS = ["seq", "timestamp", "timestamp_ns", "priority", "key"]
RANGE_BYTES = 64 << 20  # per task
# Readers skip row groups and pages by their statistics: a range of times reads about these many
# rows more than it has. Smaller ones take more memory for their metadata, and save nothing.
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 1 << 16, 64 << 20

Progress = Callable[[int, int], None]  # number of ranges done, and of all


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What one run archived of a queue."""

    queue: str
    rows: int
    files: int
    size_bytes: int
    next_seq: int  # the archive ends before this seq


@dataclass(frozen=True, slots=True)
class _Task:
    archive: str
    one: Range


def check_archive(
    location: str, target: str, queue: str | None
) -> tuple[list[QueueLocation], Path]:
    """Return the queues to archive, and the archive's directory."""
    return queues_of_job(location, queue), local_directory(target)


def archive(
    spark: SparkSession,
    path: str,
    target: str,
    *,
    queue: str | None = None,
    delta: bool = False,
    on_progress: Progress | None = None,
) -> list[ArchiveResult]:
    """Archive the sealed segments of one queue, or of all, that are not archived yet.

    With `delta`, the whole archive is a Delta table as well.
    """
    if delta:
        check_installed()
    queues, root = check_archive(path, target, queue)
    with locked(root):
        results = [_archive_one(spark, one, root, on_progress) for one in queues]
        if delta:
            follow_manifests(root, archive_schema())
    return results


def archive_schema() -> pa.Schema:
    return schema_of("messages", ARCHIVED_COLUMNS, several_queues=False, include_headers=False)


def _archive_one(
    spark: SparkSession, queue: QueueLocation, root: Path, on_progress: Progress | None
) -> ArchiveResult:
    view = watcher_of(queue, "messages").view()
    manifest = _manifest(root, view)
    sealed_end = max((s.end_seq for s in view.spans if not s.is_last), default=view.first_seq)
    first = check_start(view, manifest.next_seq, sealed_end)
    ranges = list(split(view, first, sealed_end, max_bytes=RANGE_BYTES))
    _remove_leftovers(root, queue)
    done: list[ArchivedFile] = []
    tasks = [_Task(str(root.absolute()), one) for one in ranges]
    for number, (upto, files) in enumerate(run_tasks(spark, _archive_range, tasks), start=1):
        # In order, so that a killed job leaves an archive without gaps.
        manifest.files += files
        manifest.next_seq = upto
        done += files
        manifest.save(root)
        if on_progress is not None:
            on_progress(number, len(tasks))
    _set_archived(view, manifest.next_seq)
    return ArchiveResult(
        queue.key,
        sum(file.rows for file in done),
        len(done),
        sum(file.size_bytes for file in done),
        manifest.next_seq,
    )


def _set_archived(view: LogView, upto: int) -> None:
    """Tell the queue how far it is archived: with `archive_required`, only that can be removed."""
    queue = view.info.queue
    if queue.url:
        queue.connection.do(note_call(queue.api_path, upto))
    else:
        root = Folder(OsFiles(), queue.path)
        note_archived(root, view.info.identity, upto, next_seq=view.next_seq)


def _manifest(root: Path, view: LogView) -> ArchiveManifest:
    key, identity = view.info.queue.key, view.info.identity
    manifest = ArchiveManifest.load(root, key)
    if manifest is None:
        return ArchiveManifest(key, identity, first_seq=view.low, next_seq=view.low)
    if (manifest.identity, manifest.queue) != (identity, key):
        raise ArchiveError(
            f"{root} has an archive of another queue with the name {manifest.queue!r}: archive "
            f"this one elsewhere"
        )
    return manifest


def _remove_leftovers(root: Path, queue: QueueLocation) -> None:
    """Remove temporary files of a killed job."""
    folder = root / folder_of(queue, "").rpartition("/")[0]
    for leftover in folder.glob("date=*/.*.tmp"):
        leftover.unlink()


# -- in a task -------------------------------------------------------------------------------------


def _archive_range(task: _Task) -> tuple[int, list[ArchivedFile]]:
    """Write a range, one file per day. Return the end of the range, and the files."""
    table = read_ranges([task.one])
    if not table.num_rows:
        return task.one.wanted_to, []
    days = table.column("timestamp").cast(pa.date32())
    first, last = days[0].as_py(), days[-1].as_py()
    # Times rise: nearly always all rows are of one day.
    dates = [first] if first == last else sorted(pc.unique(days).to_pylist())
    files = []
    for date in dates:
        part = table if len(dates) == 1 else table.filter(pc.equal(days, date))
        files.append(_write(Path(task.archive), task.one, date.isoformat(), part))
    return task.one.wanted_to, files


def read_ranges(ranges: Sequence[Range]) -> pa.Table:
    """Return the archived columns of some ranges."""
    schema = archive_schema()
    batches = read_partition(Partition(ranges), schema, Selection(location=""))
    return pa.Table.from_batches(batches, schema)


def _write(root: Path, one: Range, date: str, table: pa.Table) -> ArchivedFile:
    queue = one.info.queue
    folder = folder_of(queue, date)
    seqs, times = table.column("seq"), table.column("timestamp_ns")
    name = file_name(queue, seqs[0].as_py())
    make_directory(root / folder)
    path, temporary = root / folder / name, root / folder / f".{name}.tmp"
    pq.write_table(
        table,
        temporary,
        compression="zstd",
        row_group_size=_row_group_rows(table),
        write_page_index=True,
        use_dictionary=_WITH_DICTIONARY,
        write_statistics=_WITH_STATISTICS,
    )
    sync(temporary)
    if not pq.read_table(temporary, partitioning=None).equals(table):
        raise ArchiveError(
            f"{temporary} does not read back as it was written: check the disk of the archive"
        )
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
    temporary.replace(path)
    sync(path.parent)
    return file


def _row_group_rows(table: pa.Table) -> int:
    """Return the rows of a row group. A reader holds the columns of a whole row group."""
    within: int = ROW_GROUP_BYTES * table.num_rows // max(table.nbytes, 1)
    return max(min(within, ROW_GROUP_ROWS), 1)
