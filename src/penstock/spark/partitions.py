"""What one Spark task reads: ranges of segments, as Arrow batches of the wanted columns."""

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.ledger import Damage
from penstock.ledger.json_files import MANIFEST_NAME
from penstock.spark.decoding import Irregular, Table, columns_of, decode
from penstock.spark.errors import DamagedSegment, DataLoss
from penstock.spark.event_columns import EventColumns
from penstock.spark.exact import ExactReader, exact_reader
from penstock.spark.message_columns import MessageColumns
from penstock.spark.options import ReadOptions
from penstock.spark.places import QueueAt
from penstock.spark.ranges import Range
from penstock.spark.state_columns import QueueStates, StateColumns
from penstock.spark.tables import arrow_schema_of

log = logging.getLogger("penstock.spark")


class Lot(InputPartition):
    """The work of one task."""

    def __init__(
        self,
        ranges: Sequence[Range],
        groups: Mapping[str, Mapping[int, str]] | None = None,
        states: Mapping[str, QueueStates] | None = None,
    ) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.groups = groups or {}  # names by number, of each queue, by its path
        self.states = states or {}  # of the table `state`: of each queue, by its path


def read_lot(lot: Lot, schema: StructType, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a task."""
    arrow_schema = arrow_schema_of(schema)
    for one in lot.ranges:
        table = _table(lot, one, schema.fieldNames(), options)
        for arrays, rows in _read(one, table, options):
            if rows:
                yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _table(lot: Lot, one: Range, names: Sequence[str], options: ReadOptions) -> Table:
    path, segment = one.facts.queue.path, one.header.base_seq
    match options.table:
        case "events":
            return EventColumns(one.facts, segment, names, lot.groups.get(path, {}))
        case "state":
            return StateColumns(
                one.facts, segment, names, lot.states[path], unpack=options.decompress
            )
        case "messages":
            return MessageColumns(one.facts, segment, names, unpack=options.decompress)


def _read(one: Range, table: Table, options: ReadOptions) -> Iterator[tuple[list[pa.Array], int]]:
    def on_gap(first: int, end: int) -> None:
        report_gap(one, first, end, fail=options.fail_on_data_loss)

    try:
        yield from decode(one, table, on_gap)
    except Irregular as irregular:
        with exact_reader(one.facts.queue, one.log) as reader:
            yield from _read_exactly(one, irregular.from_seq, table, options, reader)


def _read_exactly(
    one: Range, from_seq: int, table: Table, options: ReadOptions, reader: ExactReader
) -> Iterator[tuple[list[pa.Array], int]]:
    first = from_seq
    if reader.first_seq > first:
        gone = (first, min(reader.first_seq, one.wanted_to) - 1)
        report_loss(one.facts.queue.key, one.log, *gone, fail=options.fail_on_data_loss)
        first = reader.first_seq
    rows, gaps = 0, []
    expected = first
    for entries in reader.entries(first, one.wanted_to):
        rows += len(entries)
        for entry in entries:
            if entry.seq > expected:
                gaps.append((expected, entry.seq))
            expected = entry.seq + 1
    gaps.append((expected, one.wanted_to))
    lost = [damage for damage in reader.damages if _concerns(damage, one, first)]
    if lost:
        sentence = _damage_sentence(one, first, rows, lost)
        if options.verify:
            raise DamagedSegment(
                f"{sentence}. Nothing of this range was read. To read on without what is lost, "
                f"set the option verify=false; to see all damage, run: penstock verify "
                f"{one.facts.queue.path}"
            )
        log.warning("%s; reading on (verify=false)", sentence)
    for gap in gaps:
        if not any(_is_within(gap, damage) for damage in lost):
            report_gap(one, *gap, fail=options.fail_on_data_loss)
    for entries in reader.entries(first, one.wanted_to):
        found = columns_of(entries, list(table.needed), events=one.log == "events")
        arrays = table.arrays(found)
        yield arrays, len(arrays[0]) if arrays else found.rows


def _concerns(damage: Damage, one: Range, first: int) -> bool:
    """Are seqs of this range lost by it?"""
    return (
        damage.file.startswith(f"{one.log}/")
        and not damage.torn
        and damage.first_lost_seq <= damage.last_lost_seq
        and damage.last_lost_seq >= first
        and damage.first_lost_seq < one.wanted_to
    )


def _damage_sentence(one: Range, first: int, rows: int, lost: Sequence[Damage]) -> str:
    count = sum(
        min(d.last_lost_seq, one.wanted_to - 1) - max(d.first_lost_seq, first) + 1 for d in lost
    )
    return (
        f"queue {one.facts.queue.key}: of seq {first} to {one.wanted_to - 1} in {one.log}, {rows} "
        f"entries can be read and {count} are lost ({'; '.join(map(str, lost[:3]))})"
    )


def _is_within(gap: tuple[int, int], damage: Damage) -> bool:
    return damage.first_lost_seq < gap[1] and gap[0] <= damage.last_lost_seq


def report_gap(one: Range, first: int, end: int, *, fail: bool) -> None:
    """Seqs [first, end) were removed: a loss, as far as the reader claims them."""
    first = max(first, one.wanted_from, one.claimed_from)
    end = min(end, one.wanted_to)
    if first < end:
        report_loss(one.facts.queue.key, one.log, first, end - 1, fail=fail)


def report_missing(queue: QueueAt, what: str, first: int, last: int, *, verify: bool) -> None:
    """The first segments of a log are lost: an error, or a line of log if that was asked for."""
    sentence = (
        f"queue {queue.key}: seq {first} to {last} of {what} are lost: their segments are not "
        f"there, and {MANIFEST_NAME} does not say that they were removed"
    )
    if verify:
        raise DamagedSegment(
            f"{sentence}. To read on without what is lost, set the option verify=false; to see "
            f"all damage, run: penstock verify {queue.path}"
        )
    log.warning("%s; reading on (verify=false)", sentence)


def report_loss(key: str, what: str, first: int, last: int, *, fail: bool) -> None:
    """A range is not there any more: an error, or a line of log if that was asked for."""
    sentence = (
        f"queue {key}: seq {first} to {last} of {what} were asked for, and were removed by "
        f"retention or compaction"
    )
    if fail:
        raise DataLoss(
            f"{sentence}. Start later, keep more (retention_s, retention_bytes), or set "
            f"failOnDataLoss=false to go on with what is there."
        )
    log.warning("%s; going on (failOnDataLoss=false)", sentence)
