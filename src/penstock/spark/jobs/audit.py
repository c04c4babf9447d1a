"""Audit: verify every checksum and every seq of a queue, and compare an archive with it.

Reports what is wrong, where, and how many. Nothing is changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock import codec
from penstock.archive import Archive, ArchivedFile, ArchiveError, ArchiveStore, open_archive
from penstock.archive.parquet import check_sum
from penstock.archive.parquet import decode as decode_parquet
from penstock.archive.places import place_of
from penstock.arrow.decoding import FastPathFailed, decode
from penstock.arrow.event_columns import EventColumns
from penstock.arrow.locations import QueueLocation, queues_of_job
from penstock.arrow.logs import ledger_reader, watcher_of
from penstock.arrow.loss import DamagedSegment, DataLoss
from penstock.arrow.ranges import Range, range_bytes, split
from penstock.arrow.segments import LogView
from penstock.codec.layout import TOMBSTONE
from penstock.spark.archive_stores import archive_of, task_store, tasks_per_core
from penstock.spark.jobs.archive import RANGE_BYTES, Progress, archive_schema, read_ranges
from penstock.spark.workers import run_tasks, waves


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem."""

    queue: str
    what: str  # kind of the problem: "damage", "gap", "order", "event without message", "archive"
    where: str
    count: int
    detail: str


@dataclass(slots=True)
class AuditResult:
    """What was read, and the problems found."""

    messages: int = 0
    events: int = 0
    bytes_read: int = 0
    archived_rows: int = 0
    problems: list[Problem] = field(default_factory=list)
    gaps: list[Problem] = field(default_factory=list)  # on record in the archive: accepted

    @property
    def is_sound(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class _Task:
    one: Range
    next_message: int  # no message with this seq or a higher one exists


@dataclass(frozen=True, slots=True)
class _Found:
    log: str
    entries: int
    size_bytes: int
    problems: tuple[Problem, ...]


def check_audit(location: str, queue: str | None, archive: str | None) -> list[QueueLocation]:
    """Return the queues to audit. Raise if an archive is given and there is none.

    An archive on Hadoop's file systems is checked when Spark runs.
    """
    queues = queues_of_job(location, queue)
    if archive is not None and place_of(archive).kind != "hadoop":
        open_archive(archive)
    return queues


def audit(
    spark: SparkSession,
    path: str,
    *,
    queue: str | None = None,
    archive: str | None = None,
    on_progress: Progress | None = None,
) -> AuditResult:
    """Audit one queue, or all of a location. Compare an archive with them, if one is given."""
    result = AuditResult()
    queues = check_audit(path, queue, archive)
    kept = None if archive is None else archive_of(spark, archive)
    if kept is not None:
        kept.manifests()
    for one in queues:
        _audit_queue(spark, one, kept, result, on_progress)
    return result


def _audit_queue(
    spark: SparkSession,
    queue: QueueLocation,
    archive: Archive | None,
    result: AuditResult,
    on_progress: Progress | None,
) -> None:
    # Events first, so that the view of the messages has every message of an event.
    events = watcher_of(queue, "events").view()
    messages = watcher_of(queue, "messages").view()
    tasks = [
        _Task(one, messages.next_seq)
        for view in (messages, events)
        for one in split(view, view.first_seq, view.next_seq, max_bytes=RANGE_BYTES)
    ]
    for number, found in enumerate(run_tasks(spark, _audit_range, tasks), start=1):
        result.bytes_read += found.size_bytes
        result.problems += found.problems
        if found.log == "messages":
            result.messages += found.entries
        else:
            result.events += found.entries
        if on_progress is not None:
            on_progress(number, len(tasks))
    for view in (messages, events):
        if view.low < view.first_seq:
            detail = f"seq {view.low} to {view.first_seq - 1} are lost: their segments are missing"
            lost = view.first_seq - view.low
            result.problems.append(Problem(queue.key, "damage", view.log, lost, detail))
    with ledger_reader(queue, "events") as reader:
        for damage in reader.damages_beside_the_logs():
            result.problems.append(Problem(queue.key, "damage", damage.file, 0, str(damage)))
    if archive is not None:
        _audit_archive(spark, messages, archive, result)


# -- one range of a log ----------------------------------------------------------------------------


def _audit_range(task: _Task) -> _Found:
    one = task.one
    entries, bad = _skim(one)
    problems: list[Problem] = []
    if entries is None:
        entries, problems = _examine(one)
        if bad is not None and not problems:
            # A damaged checkpoint between entries: no message is lost.
            problems.append(Problem(one.info.queue.key, "damage", one.file, 0, bad))
    if one.log == "events":
        problems += _events_without_message(one, task.next_message)
    return _Found(one.log, entries, one.size_bytes, tuple(problems))


def _skim(one: Range) -> tuple[int | None, str | None]:
    """Return the number of entries, or None and the reason.

    None unless every checksum is right and every seq exists once.
    """
    view = range_bytes(one) if one.intact else None
    if view is None:
        return None, None
    found = codec.skim(
        view,
        one.start,
        one.end,
        whole_batches=False,
        seq_base=one.header.seq_base,
        max_entry_bytes=one.info.max_entry_bytes,
    )
    # As many entries as seqs: none is missing, and none exists twice.
    whole = found.problem is None and found.stop == one.end and found.next_seq == one.end_seq
    dense = found.entries == one.end_seq - one.first_seq
    bad = None if found.problem is None else f"offset {found.stop}: {found.problem}"
    return (found.entries if whole and dense else None), bad


def _examine(one: Range) -> tuple[int, list[Problem]]:
    """Count entries with the ledger's reader, which knows tombstones and reports damage."""
    key, where = one.info.queue.key, one.file
    problems, count, last_ns = [], 0, 0
    with ledger_reader(one.info.queue, one.log) as reader:
        for entries in reader.entries(one.wanted_from, one.wanted_to):
            count += sum(entry.type != TOMBSTONE for entry in entries)
            for entry in entries:
                if entry.timestamp_ns < last_ns:
                    detail = f"seq {entry.seq} is older than the one before"
                    problems.append(Problem(key, "order", where, 1, detail))
                last_ns = max(last_ns, entry.timestamp_ns)
        for damage in reader.damages:
            lost = max(damage.last_lost_seq - damage.first_lost_seq + 1, 0)
            inside = one.wanted_from <= damage.first_lost_seq < one.wanted_to
            # Seqs of this range may be lost with another file, a missing segment.
            mine = (
                inside and damage.file.startswith(f"{one.log}/") if lost else damage.file == where
            )
            if mine:
                problems.append(Problem(key, "damage", damage.file, lost, str(damage)))
    return count, problems


def _events_without_message(one: Range, next_message: int) -> list[Problem]:
    """Return events of messages that were never published."""
    table = EventColumns(one.info, one.header.base_seq, ["seq"], {})
    count = 0
    try:
        for (seqs,), _ in decode(one, table):
            above = pc.sum(pc.greater_equal(seqs, next_message)).as_py() or 0
            count += above + (pc.sum(pc.less(seqs, 1)).as_py() or 0)
    except FastPathFailed:
        return []  # damaged: reported already
    if not count:
        return []
    detail = f"about messages from seq {next_message} on, which were never published"
    return [Problem(one.info.queue.key, "event without message", one.file, count, detail)]


# -- the archive -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ArchiveTask:
    queue: str
    store: ArchiveStore
    file: ArchivedFile
    live: tuple[Range, ...]  # the part that the queue still has


def _audit_archive(
    spark: SparkSession, messages: LogView, archive: Archive, result: AuditResult
) -> None:
    queue = messages.info.queue
    manifest = archive.manifest(queue.key)
    if manifest is None:
        # Only sealed segments are archived: a queue without one has nothing to archive yet.
        if any(not span.is_last for span in messages.spans):
            detail = "nothing of this queue is archived, although it has sealed segments"
            result.problems.append(Problem(queue.key, "archive", archive.shown, 1, detail))
        return
    for gap in manifest.gaps:
        detail = f"seq {gap.first_seq} to {gap.end_seq - 1} were removed before they were archived"
        result.gaps.append(
            Problem(queue.key, "gap", archive.shown, gap.end_seq - gap.first_seq, detail)
        )
    if manifest.next_seq < messages.first_seq:
        lost = messages.first_seq - manifest.next_seq
        detail = f"seq {manifest.next_seq} to {messages.first_seq - 1} are in neither"
        result.problems.append(Problem(queue.key, "gap", archive.shown, lost, detail))

    def task(file: ArchivedFile) -> _ArchiveTask:
        store = _handed(archive.store, file)
        return _ArchiveTask(queue.key, store, file, tuple(_live(messages, file)))

    # Hadoop's files pass through the driver, so only those of one wave are in its memory.
    per_core = tasks_per_core(archive.store)
    for wave in waves(manifest.files, per_core * spark.sparkContext.defaultParallelism):
        for rows, problems in run_tasks(spark, _audit_file, [task(file) for file in wave]):
            result.archived_rows += rows
            result.problems += problems


def _handed(store: ArchiveStore, file: ArchivedFile) -> ArchiveStore:
    try:
        return task_store(store, file.path)
    except FileNotFoundError:
        return task_store(store)  # the task reports that it is missing


def _live(view: LogView, file: ArchivedFile) -> Iterator[Range]:
    first = max(file.first_seq, view.first_seq)
    return split(view, first, min(file.last_seq + 1, view.next_seq), max_bytes=RANGE_BYTES)


def _audit_file(task: _ArchiveTask) -> tuple[int, list[Problem]]:
    file = task.file

    def wrong(detail: str, count: int = 1) -> tuple[int, list[Problem]]:
        return 0, [Problem(task.queue, "archive", file.path, count, detail)]

    try:
        stored = task.store.read(file.path)
        check_sum(task.store, file, stored)
        table = decode_parquet(stored, archive_schema())
    except ArchiveError as error:
        return wrong(str(error), file.rows)
    except (OSError, pa.ArrowException) as error:
        return wrong(f"cannot be read: {error}", file.rows)
    if table.num_rows != file.rows:
        return wrong(f"{table.num_rows} rows, the manifest says {file.rows}")
    try:
        live = read_ranges(task.live)
    except (DamagedSegment, DataLoss):
        return table.num_rows, []  # the live log is damaged there: reported already
    seqs = live.column("seq")
    shared = table.filter(pc.is_in(table.column("seq"), value_set=seqs.combine_chunks()))
    live = live.filter(pc.is_in(seqs, value_set=table.column("seq").combine_chunks()))
    if not shared.equals(live):
        return wrong("some rows differ from the live log", shared.num_rows)
    return table.num_rows, []
