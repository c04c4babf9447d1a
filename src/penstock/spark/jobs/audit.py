"""Audit: every checksum read again, every seq accounted for, and the archive against the queue.

Says what is wrong, where, and how many; nothing is changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from penstock import codec
from penstock.codec.layout import TOMBSTONE
from penstock.ledger.segment_header import segment_name
from penstock.spark.archive_files import ArchivedFile, ArchiveManifest, checksum_of
from penstock.spark.decoding import Irregular, decode
from penstock.spark.errors import DamagedSegment, DataLoss
from penstock.spark.event_columns import EventColumns
from penstock.spark.exact import exact_reader
from penstock.spark.jobs.archive import ARCHIVED_COLUMNS, Progress
from penstock.spark.jobs.inputs import check_audit
from penstock.spark.options import ReadOptions
from penstock.spark.partitions import Lot, read_lot
from penstock.spark.places import QueueAt
from penstock.spark.range_bytes import range_bytes
from penstock.spark.ranges import Range, cut
from penstock.spark.segments import LogView
from penstock.spark.tables import schema_of
from penstock.spark.tasks import run_tasks
from penstock.spark.watching import watcher_of

_RANGE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    queue: str
    what: str  # a short code: "damage", "gap", "order", "event without message", "archive"
    where: str
    count: int
    detail: str


@dataclass(slots=True)
class AuditResult:
    """What was read, and what is wrong."""

    messages: int = 0
    events: int = 0
    bytes_read: int = 0
    archived_rows: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class _Task:
    one: Range
    next_message: int  # an event about this message or a later one is about none


@dataclass(frozen=True, slots=True)
class _Found:
    log: str
    entries: int
    size_bytes: int
    problems: tuple[Problem, ...]


def audit(
    spark: SparkSession,
    path: str,
    *,
    queue: str | None = None,
    archive: str | None = None,
    on_progress: Progress | None = None,
) -> AuditResult:
    """Audit one queue, or all of a place; with `archive`, that too, and against the queue."""
    result = AuditResult()
    queues, root = check_audit(path, queue, archive)
    for one in queues:
        _audit_queue(spark, one, root, result, on_progress)
    return result


def _audit_queue(
    spark: SparkSession,
    queue: QueueAt,
    archive: Path | None,
    result: AuditResult,
    on_progress: Progress | None,
) -> None:
    # Events first: a message that one of them is about is then in the view of the messages.
    events = watcher_of(queue, "events").look()
    messages = watcher_of(queue, "messages").look()
    tasks = [_Task(one, messages.next_seq) for view in (messages, events) for one in _whole(view)]
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
    if archive is not None:
        _audit_archive(spark, messages, archive, result)


def _whole(view: LogView) -> Iterator[Range]:
    return cut(view, view.first_seq, view.next_seq, max_bytes=_RANGE_BYTES)


# -- one range of a log ----------------------------------------------------------------------------


def _audit_range(task: _Task) -> _Found:
    one = task.one
    entries, bad = _skimmed(one)
    problems: list[Problem] = []
    if entries is None:
        entries, problems = _examined(one)
        if bad is not None and not problems:
            # Between the entries: a note of the log to itself. No message is lost by it.
            where = f"{one.log}/{segment_name(one.header.base_seq)}"
            problems.append(Problem(one.facts.queue.key, "damage", where, 0, bad))
    if one.log == "events":
        problems += _about_nothing(one, task.next_message)
    return _Found(one.log, entries, one.size_bytes, tuple(problems))


def _skimmed(one: Range) -> tuple[int | None, str | None]:
    """How many entries, if every checksum is right and every seq there once; else None, and why."""
    if not one.sound:
        return None, None
    view = range_bytes(one)
    if view is None:
        return None, None
    found = codec.skim(
        view,
        one.start,
        one.end,
        whole_batches=False,
        seq_base=one.header.seq_base,
        max_entry_bytes=one.facts.max_entry_bytes,
    )
    # So many entries from the first seq to the last: none is missing, none there twice.
    whole = found.problem is None and found.stop == one.end and found.next_seq == one.end_seq
    dense = found.entries == one.end_seq - one.first_seq
    bad = None if found.problem is None else f"offset {found.stop}: {found.problem}"
    return (found.entries if whole and dense else None), bad


def _examined(one: Range) -> tuple[int, list[Problem]]:
    """The same by the ledger's own reader, which knows tombstones and says what is damaged."""
    key, where = one.facts.queue.key, f"{one.log}/{segment_name(one.header.base_seq)}"
    problems, entries, last_ns = [], 0, 0
    with exact_reader(one.facts.queue, one.log) as reader:
        for lot in reader.entries(one.wanted_from, one.wanted_to):
            entries += sum(entry.type != TOMBSTONE for entry in lot)
            for entry in lot:
                if entry.timestamp_ns < last_ns:
                    problems.append(
                        Problem(key, "order", where, 1, f"seq {entry.seq} is older than the last")
                    )
                last_ns = max(last_ns, entry.timestamp_ns)
        for damage in reader.damages:
            lost = max(damage.last_lost_seq - damage.first_lost_seq + 1, 0)
            inside = one.wanted_from <= damage.first_lost_seq < one.wanted_to
            # Seqs of this range may be lost with another file: a segment that is missing.
            mine = (
                inside and damage.file.startswith(f"{one.log}/") if lost else damage.file == where
            )
            if mine:
                problems.append(Problem(key, "damage", damage.file, lost, str(damage)))
    return entries, problems


def _about_nothing(one: Range, next_message: int) -> list[Problem]:
    """Events about messages that were never published."""
    table = EventColumns(one.facts, one.header.base_seq, ["seq"], {})
    count = 0
    try:
        for (seqs,), _ in decode(one, table):
            above = pc.sum(pc.greater_equal(seqs, next_message)).as_py() or 0
            count += above + (pc.sum(pc.less(seqs, 1)).as_py() or 0)
    except Irregular:
        return []  # damaged: told already
    if not count:
        return []
    where = f"{one.log}/{segment_name(one.header.base_seq)}"
    detail = f"about messages from seq {next_message} on, which were never published"
    return [Problem(one.facts.queue.key, "event without message", where, count, detail)]


# -- the archive -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ArchiveTask:
    queue: str
    root: str
    file: ArchivedFile
    live: tuple[Range, ...]  # what the queue still has of it


def _audit_archive(spark: SparkSession, messages: LogView, root: Path, result: AuditResult) -> None:
    queue = messages.facts.queue
    manifest = ArchiveManifest.load(root, queue.key)
    if manifest is None:
        result.problems.append(
            Problem(queue.key, "archive", str(root), 1, "nothing of this queue is archived")
        )
        return
    if manifest.next_seq < messages.first_seq:
        lost = messages.first_seq - manifest.next_seq
        detail = f"seq {manifest.next_seq} to {messages.first_seq - 1} are in neither"
        result.problems.append(Problem(queue.key, "gap", str(root), lost, detail))
    tasks = [
        _ArchiveTask(queue.key, str(root), file, tuple(_live(messages, file)))
        for file in manifest.files
    ]
    for rows, problems in run_tasks(spark, _audit_file, tasks):
        result.archived_rows += rows
        result.problems += problems


def _live(view: LogView, file: ArchivedFile) -> Iterator[Range]:
    first = max(file.first_seq, view.first_seq)
    return cut(view, first, min(file.last_seq + 1, view.next_seq), max_bytes=_RANGE_BYTES)


def _audit_file(task: _ArchiveTask) -> tuple[int, list[Problem]]:
    place = Path(task.root) / task.file.path

    def wrong(detail: str, count: int = 1) -> tuple[int, list[Problem]]:
        return 0, [Problem(task.queue, "archive", task.file.path, count, detail)]

    try:
        if checksum_of(place) != task.file.sha256:
            return wrong("the checksum is not that of the manifest", task.file.rows)
        table = pq.read_table(place, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        return wrong(f"cannot be read: {error}", task.file.rows)
    if table.num_rows != task.file.rows:
        return wrong(f"{table.num_rows} rows, the manifest says {task.file.rows}")
    columns = schema_of("messages", ARCHIVED_COLUMNS, several_queues=False, include_headers=False)
    try:
        batches = list(read_lot(Lot(task.live), columns, ReadOptions(place="")))
    except (DamagedSegment, DataLoss):
        return table.num_rows, []  # the live log is damaged there: told already
    if not batches:
        return table.num_rows, []
    live = pa.Table.from_batches(batches)
    seqs = live.column("seq")
    shared = table.filter(pc.is_in(table.column("seq"), value_set=seqs.combine_chunks()))
    live = live.filter(pc.is_in(seqs, value_set=table.column("seq").combine_chunks()))
    if not shared.equals(live):
        return wrong("some rows are not what the live log has", shared.num_rows)
    return table.num_rows, []
