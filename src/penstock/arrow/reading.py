"""Read queues as Arrow record batches.

A range is decoded on the fast path. If its segment was removed or rewritten since the read was
planned, the range is planned again. Where it is not as planned for another reason, the ledger's
reader is used, which reports damage and loss.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from os import PathLike

import pyarrow as pa

from penstock.arrow.decoding import (
    FastPathFailed,
    SegmentChanged,
    TableColumns,
    columns_of,
    decode,
)
from penstock.arrow.event_columns import EventColumns
from penstock.arrow.history import (
    POSITIONS,
    ArchivedRange,
    History,
    check_archive_choice,
    read_archived,
    relaxed,
)
from penstock.arrow.holding import HeldRanges
from penstock.arrow.locations import check_reachable
from penstock.arrow.logs import LedgerReader, ledger_reader, watcher_of
from penstock.arrow.loss import DataLoss, report_damage, report_gap, report_loss
from penstock.arrow.message_columns import MessageColumns, StateColumns
from penstock.arrow.planning import Partition, plan_batch, plan_history, queues_of
from penstock.arrow.ranges import Range, range_bytes
from penstock.arrow.selection import (
    AUTO,
    DEFAULT_PARTITION_BYTES,
    NO_ARCHIVE,
    TABLES,
    Bounds,
    Selection,
    Table,
    check_ranges,
    location_in,
    moment_in,
    names_in,
    seq_in,
)
from penstock.arrow.tables import schema_of
from penstock.checking import is_url
from penstock.errors import EntryGone, InvalidInput
from penstock.ledger import Damage

_FETCHED_BYTES = 16 << 20  # what is held of a broker's segment at a time
_FIRST_PLAN, _MAX_PLANS = 1, 10  # of one range, beside a writer that compacts again and again


def read(
    location: str | PathLike[str],
    *,
    queue: str | Sequence[str] | None = None,
    table: Table = "messages",
    columns: str | Sequence[str] | None = None,
    first_seq: int | None = None,
    end_seq: int | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    group: str | None = None,
    key: str | None = None,
    fail_on_data_loss: bool = True,
    verify: bool = True,
    archive: str | PathLike[str] = AUTO,
) -> pa.RecordBatchReader:
    """Return a range of a queue, or all of it, as a stream of Arrow record batches.

    What is durable at the time of the call is read; a writer is not disturbed. Only the segments of
    the range are opened, and only the parts that the index names. Ends are exclusive. No message is
    read before the first batch is asked for, and one batch is held at a time. The files of a
    directory are held open, so compaction does not take away what is not read yet.

    Args:
        location: Directory of a queue, data directory of a broker, or URL of a broker or a queue.
        queue: One queue of the location, or several.
        table: `messages`, `events` or `state`.
        columns: Names of columns, or `*`. Fewer columns are faster.
        first_seq: Start at this seq in each queue. A message from here on that was removed is data
            loss. For the table `events` this is the number of the event.
        end_seq: Stop before this seq, or at the end of the queue.
        since: Start at the first message of this time or later: a datetime with a time zone, or
            text in ISO 8601 (UTC by default).
        until: Stop before the first message of this time or later.
        group: Consumer group of the table `state`. The default is the main group.
        key: API key for a broker. The default is PENSTOCK_KEY of the environment.
        fail_on_data_loss: False to skip what was removed.
        verify: False to skip what is damaged.
        archive: Messages that the live log does not have any more are read from the archive that
            the archive job noted ("auto"), from the archive at this location, or not ("none").

    >>> from penstock.arrow import read
    >>> frame = read("./orders", since="2026-01-31").read_pandas()  # doctest: +SKIP
    """
    if table not in TABLES:
        raise InvalidInput(f"table is {table!r}; it must be one of {', '.join(TABLES)}")
    check_ranges(table, first_seq=first_seq, end_seq=end_seq, since=since, until=until, group=group)
    selection = Selection(
        location=location_in("location", location),
        key=key,
        subscribe=names_in("queue", queue) or (),
        table=table,
        columns=names_in("columns", columns),
        starting_offsets=seq_in("first_seq", first_seq),
        ending_offsets=seq_in("end_seq", end_seq),
        starting_timestamp_ns=moment_in("since", since),
        ending_timestamp_ns=moment_in("until", until),
        fail_on_data_loss=fail_on_data_loss,
        verify=verify,
        group=group,
        archive=check_archive_choice(location_in("archive", archive), table, decompress=True),
        max_partition_bytes=_FETCHED_BYTES if is_url(str(location)) else DEFAULT_PARTITION_BYTES,
    )
    check_reachable(selection.location)
    queues = queues_of(selection)
    schema = schema_of(
        table, selection.columns, several_queues=len(queues) > 1, include_headers=False
    )
    schema = relaxed(schema, selection, queues)
    partitions, held = _plan_and_hold(selection, schema)
    batches = _batches(partitions, schema, selection, held)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _plan_and_hold(selection: Selection, schema: pa.Schema) -> tuple[list[Partition], HeldRanges]:
    """Plan a read, and hold its segments, so that compaction cannot overtake it."""
    for _ in range(_MAX_PLANS):
        partitions = plan_batch(selection, Bounds(), schema.names)
        held = HeldRanges.hold(one for part in partitions for one in part.ranges)
        if held is not None:
            return partitions, held
    return partitions, HeldRanges({})


def _batches(
    partitions: Sequence[Partition], schema: pa.Schema, selection: Selection, held: HeldRanges
) -> Iterator[pa.RecordBatch]:
    is_empty = True
    for one in partitions:
        for batch in _PartitionReader(one, schema, selection, held.take).batches():
            is_empty = False
            yield batch
    if is_empty:  # polars takes the schema from the first batch
        yield pa.RecordBatch.from_pylist([], schema=schema)


# -- one partition ---------------------------------------------------------------------------------


def read_partition(
    partition: Partition, schema: pa.Schema, selection: Selection
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task as Arrow batches."""
    return _PartitionReader(partition, schema, selection, range_bytes).batches()


@dataclass(frozen=True, slots=True)
class _PartitionReader:
    partition: Partition
    schema: pa.Schema
    selection: Selection
    bytes_of: Callable[[Range], memoryview | None]

    def batches(self) -> Iterator[pa.RecordBatch]:
        for archived in self.partition.archived:
            yield from read_archived(archived, self.schema)
        for one in self.partition.ranges:
            yield from self._live(one, _FIRST_PLAN)

    def _live(self, one: Range, plans: int) -> Iterator[pa.RecordBatch]:
        table = _columns(self.partition, one, self.schema.names, self.selection)
        try:
            for arrays, rows in _read_range(one, table, self.selection, self.bytes_of):
                if rows:
                    yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        except SegmentChanged as changed:
            if plans == _MAX_PLANS:
                raise DataLoss(
                    f"queue {one.info.queue.key}: {one.file} is rewritten again and again while "
                    f"seq {changed.from_seq} to {one.wanted_to - 1} are read."
                ) from None
            yield from self._for_another_plan()._again(one, changed.from_seq, plans + 1)

    def _for_another_plan(self) -> "_PartitionReader":
        """Return a reader that does not use the archive if the schema requires positions."""
        names = (name for name in self.schema.names if name in POSITIONS)
        if all(self.schema.field(name).nullable for name in names):
            return self
        return replace(self, selection=replace(self.selection, archive=NO_ARCHIVE))

    def _again(self, one: Range, first: int, plans: int) -> Iterator[pa.RecordBatch]:
        """Plan the rest of a range again, whose segment was removed or rewritten, and read it.

        The read is of the moment at which it was planned, so every message of the range is
        required: it is in the segments that the queue has now, or in the archive, or it is
        reported as loss.
        """
        try:
            view = watcher_of(one.info.queue, one.log).view()
            if view.info.identity != one.info.identity:  # the queue was deleted and created again
                key, fail = one.info.queue.key, self.selection.fail_on_data_loss
                report_loss(key, one.log, first, one.wanted_to - 1, fail=fail)
                return
            history = History(view, self.selection)
            archived, live = plan_history(history, first, one.wanted_to, first, self.selection)
            parts: list[Range | ArchivedRange] = [*archived, *live]
            for part in sorted(parts, key=_first_seq):
                if isinstance(part, ArchivedRange):
                    yield from read_archived(part, self.schema)
                else:
                    yield from self._live(part, plans)
        except DataLoss as error:
            if plans > _FIRST_PLAN + 1:
                raise  # the caller adds the sentence
            raise DataLoss(
                f"{error} They were there when this read was planned; a new read returns what the "
                f"queue has now."
            ) from None


def _first_seq(part: Range | ArchivedRange) -> int:
    return part.file.first_seq if isinstance(part, ArchivedRange) else part.wanted_from


def _columns(
    partition: Partition, one: Range, names: Sequence[str], selection: Selection
) -> TableColumns:
    path, segment, unpack = one.info.queue.path, one.header.base_seq, selection.decompress
    match selection.table:
        case "events":
            return EventColumns(one.info, segment, names, partition.groups.get(path, {}))
        case "state":
            return StateColumns(one.info, segment, names, partition.states[path], unpack=unpack)
        case "messages":
            return MessageColumns(one.info, segment, names, unpack=unpack)


def _read_range(
    one: Range,
    table: TableColumns,
    selection: Selection,
    bytes_of: Callable[[Range], memoryview | None],
) -> Iterator[tuple[list[pa.Array], int]]:
    def on_gap(first: int, end: int) -> None:
        report_gap(one, first, end, fail=selection.fail_on_data_loss)

    try:
        yield from decode(one, table, on_gap, bytes_of)
    except SegmentChanged:
        raise
    except FastPathFailed as failed:
        unread = failed.from_seq
        try:
            with ledger_reader(one.info.queue, one.log) as reader:
                for arrays, rows, end in _read_with_ledger(one, unread, table, selection, reader):
                    yield arrays, rows
                    unread = end
        except EntryGone:  # compaction removed it while it was read
            raise SegmentChanged(unread) from None


def _read_with_ledger(
    one: Range, first: int, table: TableColumns, selection: Selection, reader: LedgerReader
) -> Iterator[tuple[list[pa.Array], int, int]]:
    """Yield columns, row counts, and the seq behind the entries that are being yielded."""
    if reader.identity != one.info.identity:  # the queue was deleted and created again
        last, fail = one.wanted_to - 1, selection.fail_on_data_loss
        report_loss(one.info.queue.key, one.log, first, last, fail=fail)
        return
    if reader.first_seq > first:
        last = min(reader.first_seq, one.wanted_to) - 1
        report_loss(one.info.queue.key, one.log, first, last, fail=selection.fail_on_data_loss)
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
        report_damage(sentence, one.info.queue, verify=selection.verify)
    for low, high in gaps:
        if not any(d.first_lost_seq < high and low <= d.last_lost_seq for d in lost):
            report_gap(one, low, high, fail=selection.fail_on_data_loss)
    for entries in reader.entries(first, one.wanted_to):
        found = columns_of(entries, list(table.needed), events=one.log == "events")
        for arrays in table.batches(found):
            yield arrays, len(arrays[0]) if arrays else found.rows, entries[-1].seq + 1


def _concerns(damage: Damage, one: Range, first: int) -> bool:
    """Return whether seqs of this range are lost by the damage."""
    return (
        damage.file.startswith(f"{one.log}/")
        and not damage.torn
        and damage.first_lost_seq <= damage.last_lost_seq
        and damage.last_lost_seq >= first
        and damage.first_lost_seq < one.wanted_to
    )
