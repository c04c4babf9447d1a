"""Plan a read on the driver, and read its partitions in tasks.

A plan turns options, offsets and bounds into partitions: ranges of segments, one group per task. A
task decodes its ranges on the fast path. Where a range is not as planned, it uses the ledger's
reader, which reports damage and loss.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput, LedgerError
from penstock.ledger import Damage
from penstock.ledger.json_files import MANIFEST_NAME
from penstock.spark.decoding import FastPathFailed, TableColumns, columns_of, decode
from penstock.spark.event_columns import EventColumns
from penstock.spark.locations import QueueLocation, queues_at
from penstock.spark.logs import LedgerReader, find_time, group_names, ledger_reader, watcher_of
from penstock.spark.message_columns import MessageColumns, QueueStates, StateColumns, fold_states
from penstock.spark.options import EARLIEST, LATEST, Offsets, ReadOptions
from penstock.spark.pushdown import Bounds
from penstock.spark.ranges import NOTHING_REQUIRED, Range, pack, split
from penstock.spark.segments import LogView
from penstock.spark.tables import arrow_schema_of

log = logging.getLogger("penstock.spark")

_EARLIEST_NUMBER, _LATEST_NUMBER = -2, -1  # in JSON, as in Kafka's source
_MIN_RANGE_BYTES = 4096


class DataLoss(LedgerError):
    """A requested range does not exist any more: retention or compaction removed it."""


class DamagedSegment(LedgerError):
    """Bytes of a segment differ from what was written."""


class ReadPartition(InputPartition):
    """The work of one task."""

    def __init__(
        self,
        ranges: Sequence[Range],
        groups: Mapping[str, Mapping[int, str]] | None = None,
        states: Mapping[str, QueueStates] | None = None,
    ) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.groups = groups or {}  # names of consumer groups by number, by path of the queue
        self.states = states or {}  # for the table `state`, by path of the queue


# -- planning a batch ------------------------------------------------------------------------------


def queues_of(options: ReadOptions) -> list[QueueLocation]:
    """Return the queues that a read names."""
    return queues_at(
        options.location,
        names=options.subscribe,
        pattern=options.subscribe_pattern,
        api_key=options.key,
    )


def log_of(options: ReadOptions) -> str:
    return "events" if options.table == "events" else "messages"


def plan_batch(options: ReadOptions, bounds: Bounds, columns: Sequence[str]) -> list[ReadPartition]:
    """Return the partitions of a batch read."""
    ranges: list[Range] = []
    views: dict[str, LogView] = {}
    groups: dict[str, Mapping[int, str]] = {}
    states: dict[str, QueueStates] = {}
    queues = queues_of(options)
    check_queues_named(options.starting_offsets, queues, "startingOffsets")
    check_queues_named(options.ending_offsets, queues, "endingOffsets")
    for queue in queues:
        if not _is_within(queue, bounds):
            continue
        watcher = watcher_of(queue, log_of(options))
        if options.table == "state":
            # The fold lacks what was lost since the queue was closed; the read must report it.
            closed_next = watcher.closed_next()
            # Fold first: the view that follows syncs what the fold has read.
            states[queue.path], folded_upto = fold_states(queue, options.state_group)
            known_upto = max(folded_upto, closed_next)
        view = views[queue.path] = watcher.view()
        first, end = _batch_seqs(view, options)
        if options.table == "state":
            end = min(end, known_upto)
        first, end = _narrowed(view, first, end, bounds)
        required = first if names_a_seq(options.starting_offsets, queue) else NOTHING_REQUIRED
        ranges += plan_ranges(view, first, end, required, options)
        if options.table == "events" and "group" in columns:
            groups[queue.path] = group_names(view)
    return [
        ReadPartition(
            part,
            {path: names for path, names in groups.items() if path in _paths(part)},
            {path: _states_within(states[path], part, path) for path in _paths(part) & {*states}},
        )
        for part in group_ranges(ranges, views, options)
    ]


def _paths(ranges: Sequence[Range]) -> set[str]:
    return {one.info.queue.path for one in ranges}


def _states_within(states: QueueStates, ranges: Sequence[Range], path: str) -> QueueStates:
    own = [one for one in ranges if one.info.queue.path == path]
    return states.within(min(r.wanted_from for r in own), max(r.wanted_to for r in own))


def _is_within(queue: QueueLocation, bounds: Bounds) -> bool:
    if bounds.is_empty:
        return False
    if bounds.namespaces is not None and queue.namespace not in bounds.namespaces:
        return False
    return bounds.queues is None or queue.name in bounds.queues


def plan_ranges(
    view: LogView, first: int, end: int, required_from: int, options: ReadOptions
) -> list[Range]:
    """Split [first, end) into ranges. A seq from `required_from` on that was removed is loss."""
    pieces = split(view, first, end, max_bytes=options.max_partition_bytes)
    ranges = [replace(one, required_from=required_from) for one in pieces]
    reached = max(first, required_from)
    for low, high in [*((one.wanted_from, one.wanted_to) for one in ranges), (end, end)]:
        if reached < low:  # removed without a tombstone
            key, fail = view.info.queue.key, options.fail_on_data_loss
            report_loss(key, view.log, reached, low - 1, fail=fail)
        reached = max(reached, high)
    return ranges


def group_ranges(
    ranges: Sequence[Range], views: Mapping[str, LogView], options: ReadOptions
) -> list[list[Range]]:
    """Group ranges into tasks, at least `minPartitions` of them if there is enough to read.

    `views` are the views that the ranges come from, by path of the queue.
    """
    groups = pack(ranges, max_bytes=options.max_partition_bytes)
    if len(groups) >= options.min_partitions:
        return groups
    total = sum(one.size_bytes for one in ranges)
    target = max(-(-total // options.min_partitions), _MIN_RANGE_BYTES)
    smaller = [
        piece for one in ranges for piece in _resplit(one, views[one.info.queue.path], target)
    ]
    return pack(smaller, max_bytes=target)


def _resplit(one: Range, view: LogView, max_bytes: int) -> list[Range]:
    if one.size_bytes <= max_bytes or not one.intact:
        return [one]
    pieces = split(view, one.wanted_from, one.wanted_to, max_bytes=max_bytes)
    return [replace(piece, required_from=one.required_from) for piece in pieces]


# -- where a read starts and ends ------------------------------------------------------------------


def _batch_seqs(view: LogView, options: ReadOptions) -> tuple[int, int]:
    """Return the seqs [first, end) of a batch read of one queue."""
    first = starting_seq(view, options, default=EARLIEST)
    end = view.next_seq
    if options.ending_timestamp_ns is not None:
        end = min(find_time(view, options.ending_timestamp_ns), end)
    elif options.ending_offsets is not None:
        end = _seq_of(view, options.ending_offsets)
        if isinstance(options.ending_offsets, int):
            end = min(end, view.next_seq)
        elif end > view.next_seq:
            raise InvalidInput(
                f"endingOffsets is {end} for queue {view.info.queue.key}, whose next seq is "
                f"{view.next_seq}: give at most that, or 'latest'"
            )
    if first > end:
        if not isinstance(options.starting_offsets, dict):
            return end, end  # this queue has nothing in the range of seqs or times
        raise InvalidInput(
            f"queue {view.info.queue.key}: the read would start at seq {first} and end at {end}"
        )
    return check_start(view, first, end, options), end


def starting_seq(view: LogView, options: ReadOptions, *, default: str) -> int:
    """Return the seq at which the options start a read."""
    if options.starting_timestamp_ns is not None:
        found = min(find_time(view, options.starting_timestamp_ns), view.next_seq)
        # If no existing message is older than that time, a lost message may be younger.
        return found if found > view.first_seq else view.low
    return _seq_of(view, options.starting_offsets or default)


def check_start(view: LogView, first: int, end: int, options: ReadOptions | None = None) -> int:
    """Return `first`, or the first seq after it that exists.

    Raise DataLoss for what was removed and DamagedSegment for what is lost, unless the options say
    to skip it.
    """
    if first >= min(view.first_seq, end):
        return first
    queue = view.info.queue
    if first < view.low:
        fail = options is None or options.fail_on_data_loss
        report_loss(queue.key, view.log, first, min(view.low, end) - 1, fail=fail)
    lost_from, lost_end = max(first, view.low), min(view.first_seq, end)
    if lost_from < lost_end:
        sentence = (
            f"queue {queue.key}: seq {lost_from} to {lost_end - 1} of {view.log} are lost: their "
            f"segments are missing, and {MANIFEST_NAME} does not say that they were removed"
        )
        _report_damage(sentence, queue, verify=options is None or options.verify)
    return lost_end


def _seq_of(view: LogView, offsets: Offsets) -> int:
    if isinstance(offsets, dict):
        offsets = offsets[view.info.queue.key]
    if offsets in (EARLIEST, _EARLIEST_NUMBER):
        return view.low
    if offsets in (LATEST, _LATEST_NUMBER):
        return view.next_seq
    assert isinstance(offsets, int)
    return max(offsets, 1)


def names_a_seq(offsets: Offsets | None, queue: QueueLocation) -> bool:
    """Return whether the user names the first seq. Then every message from there on is required."""
    if isinstance(offsets, int):
        return True
    return isinstance(offsets, dict) and offsets[queue.key] >= 0


def check_queues_named(
    offsets: Offsets | None, queues: Sequence[QueueLocation], option: str
) -> None:
    """Raise InvalidInput unless JSON offsets name exactly the queues that are read."""
    if not isinstance(offsets, dict):
        return
    keys = {queue.key for queue in queues}
    for key in offsets:
        if key not in keys:
            raise InvalidInput(f"{option} names the queue {key!r}, which is not read")
    for key in sorted(keys):
        if key not in offsets:
            raise InvalidInput(f"{option} does not name the queue {key!r}")


def _narrowed(view: LogView, first: int, end: int, bounds: Bounds) -> tuple[int, int]:
    unbounded = Bounds()
    first, end = max(first, bounds.first_seq), min(end, bounds.end_seq)
    if bounds.from_ns > unbounded.from_ns and first < end:
        first = max(first, find_time(view, bounds.from_ns))
    if bounds.to_ns < unbounded.to_ns and first < end:
        end = min(end, find_time(view, bounds.to_ns))
    return first, max(first, end)


# -- reading in a task -----------------------------------------------------------------------------


def read_partition(
    partition: ReadPartition, schema: StructType, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task as Arrow batches."""
    arrow_schema = arrow_schema_of(schema)
    for one in partition.ranges:
        table = _columns(partition, one, schema.fieldNames(), options)
        for arrays, rows in _read_range(one, table, options):
            if rows:
                yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _columns(
    partition: ReadPartition, one: Range, names: Sequence[str], options: ReadOptions
) -> TableColumns:
    path, segment, unpack = one.info.queue.path, one.header.base_seq, options.decompress
    match options.table:
        case "events":
            return EventColumns(one.info, segment, names, partition.groups.get(path, {}))
        case "state":
            return StateColumns(one.info, segment, names, partition.states[path], unpack=unpack)
        case "messages":
            return MessageColumns(one.info, segment, names, unpack=unpack)


def _read_range(
    one: Range, table: TableColumns, options: ReadOptions
) -> Iterator[tuple[list[pa.Array], int]]:
    def on_gap(first: int, end: int) -> None:
        _report_gap(one, first, end, fail=options.fail_on_data_loss)

    try:
        yield from decode(one, table, on_gap)
    except FastPathFailed as failed:
        with ledger_reader(one.info.queue, one.log) as reader:
            yield from _read_with_ledger(one, failed.from_seq, table, options, reader)


def _read_with_ledger(
    one: Range, first: int, table: TableColumns, options: ReadOptions, reader: LedgerReader
) -> Iterator[tuple[list[pa.Array], int]]:
    if reader.first_seq > first:
        last = min(reader.first_seq, one.wanted_to) - 1
        report_loss(one.info.queue.key, one.log, first, last, fail=options.fail_on_data_loss)
        first = reader.first_seq
    rows, gaps, expected = 0, [], first
    for entries in reader.entries(first, one.wanted_to):
        rows += len(entries)
        for entry in entries:
            if entry.seq > expected:
                gaps.append((expected, entry.seq))
            expected = entry.seq + 1
    gaps.append((expected, one.wanted_to))
    lost = [damage for damage in reader.damages if _concerns(damage, one, first)]
    if lost:
        count = sum(
            min(d.last_lost_seq, one.wanted_to - 1) - max(d.first_lost_seq, first) + 1 for d in lost
        )
        sentence = (
            f"queue {one.info.queue.key}: of seq {first} to {one.wanted_to - 1} in {one.log}, "
            f"{rows} entries can be read and {count} are lost ({'; '.join(map(str, lost[:3]))})"
        )
        _report_damage(sentence, one.info.queue, verify=options.verify)
    for low, high in gaps:
        if not any(d.first_lost_seq < high and low <= d.last_lost_seq for d in lost):
            _report_gap(one, low, high, fail=options.fail_on_data_loss)
    for entries in reader.entries(first, one.wanted_to):
        found = columns_of(entries, list(table.needed), events=one.log == "events")
        arrays = table.arrays(found)
        yield arrays, len(arrays[0]) if arrays else found.rows


def _concerns(damage: Damage, one: Range, first: int) -> bool:
    """Return whether seqs of this range are lost by the damage."""
    return (
        damage.file.startswith(f"{one.log}/")
        and not damage.torn
        and damage.first_lost_seq <= damage.last_lost_seq
        and damage.last_lost_seq >= first
        and damage.first_lost_seq < one.wanted_to
    )


# -- damage and loss -------------------------------------------------------------------------------


def _report_gap(one: Range, first: int, end: int, *, fail: bool) -> None:
    """Report removed seqs [first, end) as loss, as far as they are required."""
    first = max(first, one.wanted_from, one.required_from)
    end = min(end, one.wanted_to)
    if first < end:
        report_loss(one.info.queue.key, one.log, first, end - 1, fail=fail)


def report_loss(key: str, log_name: str, first: int, last: int, *, fail: bool) -> None:
    """Raise DataLoss for a removed range, or log it."""
    sentence = (
        f"queue {key}: seq {first} to {last} of {log_name} were requested, and were removed by "
        f"retention or compaction"
    )
    if fail:
        raise DataLoss(
            f"{sentence}. Start later, keep more (retention_s, retention_bytes), or set "
            f"failOnDataLoss=false to skip them."
        )
    log.warning("%s; skipped (failOnDataLoss=false)", sentence)


def _report_damage(sentence: str, queue: QueueLocation, *, verify: bool) -> None:
    """Raise DamagedSegment, or log the damage."""
    if verify:
        raise DamagedSegment(
            f"{sentence}. Nothing of this range was read. To skip what is lost, set the option "
            f"verify=false; to list all damage, run: penstock verify {queue.path}"
        )
    log.warning("%s; skipped (verify=false)", sentence)
