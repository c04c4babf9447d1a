"""The streaming reader: exact offsets, limits per micro-batch, and a group that follows the query.

Offsets have the next seq of each queue, and its identity, which changes if the queue is deleted and
created again. The index finds a seq in the files, since compaction moves bytes. Spark compares
offsets as JSON text, so their keys are always sorted.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.arrow.history import ArchivedRange, History
from penstock.arrow.locations import QueueLocation
from penstock.arrow.logs import LogWatcher, group_names, watcher_of
from penstock.arrow.loss import DataLoss
from penstock.arrow.planning import (
    Partition,
    archived_partitions,
    check_queues_named,
    group_ranges,
    log_of,
    names_a_seq,
    plan_history,
    queues_of,
    starting_seq,
)
from penstock.arrow.ranges import IndexPoints, Range
from penstock.arrow.reading import read_partition
from penstock.arrow.segments import LogView
from penstock.arrow.selection import LATEST
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LedgerLocked, PenstockError
from penstock.model import NS
from penstock.spark.options import ReadOptions
from penstock.spark.payloads.table import read_typed
from penstock.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    refuse_limits,
)
from penstock.spark.workers import tune_worker
from penstock.spark.writers import open_for_change, wait_for_lock

log = logging.getLogger("penstock.spark")

Seqs = dict[str, int]  # by name of the queue
# Suffixes of further numbers of a queue. No name of a queue has two slashes in a row.
_IDENTITY = "//identity"
# Of a query that began at "earliest" or a time: the next seq when it began. Messages below it may
# have been removed before, which is no loss.
_BACKLOG = "//backlog"
# Only in what is reported for Spark's progress: the numbers are those of events.
EVENTS = "//events"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query, on the driver; `read` runs on the executors."""

    def __init__(
        self, schema: StructType, options: ReadOptions, *, clock: Clock | None = None
    ) -> None:
        if options.table == "state":
            raise InvalidInput(
                "the table 'state' shows one moment and cannot be streamed: stream 'events', or "
                "read 'state' as a batch"
            )
        for name, value in (
            ("endingOffsets", options.ending_offsets),
            ("endingTimestamp", options.ending_timestamp_ns),
        ):
            if value is not None:
                raise InvalidInput(f"{name} is for batch reads: a stream has no end")
        self._schema = schema
        self._options = options
        self._watchers: dict[str, LogWatcher] = {}
        self._initial: Seqs | None = None
        self._latest: Seqs | None = None  # ends of the queues, when Spark asked last
        self._target: Seqs | None = None  # of Trigger.AvailableNow
        self._clock: Clock = clock or SystemClock()
        self._last_batch_ns = self._clock.monotonic_ns()

    # -- offsets -----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts. Spark calls this twice and expects one answer."""
        if self._initial is None:
            views = self._views()
            queues = [view.info.queue for view in views.values()]
            offsets = self._options.starting_offsets
            check_queues_named(offsets, queues, "startingOffsets")
            seqs = {
                key: starting_seq(History(view, self._options), self._options, default=LATEST)
                for key, view in views.items()
            }
            backlog = {
                key: view.next_seq
                for key, view in views.items()
                if not names_a_seq(offsets, view.info.queue)
            }
            # A group begins in the live log: what is archived needs no group to be kept.
            self._create_groups(
                queues, {key: max(seq, views[key].low) for key, seq in seqs.items()}
            )
            self._initial = join_offsets(Offsets(seqs, backlog, _identities(views)))
        return dict(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {key: view.next_seq for key, view in self._views().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch; `start` itself if there is nothing to read."""
        (begin, backlog, identities), views = split_offsets(start), self._views()
        self._latest = _ends(views)
        replaced = self._check_exist(begin, identities, views)
        begin = {key: seq for key, seq in begin.items() if key not in replaced}
        backlog = {key: seq for key, seq in backlog.items() if key not in replaced}
        end = {key: view.next_seq for key, view in views.items()}
        if self._target is not None:
            end = {
                key: min(seq, self._target[key]) for key, seq in end.items() if key in self._target
            }
        for key, seq in begin.items():
            end[key] = max(end.get(key, seq), seq)
        # A queue that is new to a pattern, or was created again, is read from its beginning.
        known = {key: begin[key] if key in begin else self._low(views[key]) for key in end}
        if self._waits_for_more(known, end):
            return start
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(known, end, views)
        if end == begin:
            return start
        self._last_batch_ns = self._clock.monotonic_ns()
        return join_offsets(Offsets(end, backlog, {**identities, **_identities(views)}))

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the ends of the queues, for Spark's progress: what limits leave for later is lag.

        They are those that `latestOffset` saw. A restarted query plans its last batch without it.
        """
        if self._latest is None:
            self._latest = _ends(self._views())
        if self._options.table == "events":
            return {**self._latest, EVENTS: 1}
        return dict(self._latest)

    def newest_offsets(self) -> dict[str, Any]:
        """Return the end of what exists now, whatever was read before."""
        views = self._views()
        end = {key: view.next_seq for key, view in views.items()}
        return join_offsets(Offsets(end, {}, _identities(views)))

    def check_continues(self, start: dict[str, Any]) -> None:
        """Raise DataLoss, or log it, for a queue that was deleted or replaced since `start`."""
        seqs, _, identities = split_offsets(start)
        self._check_exist(seqs, identities, self._views())

    def _waits_for_more(self, begin: Seqs, end: Seqs) -> bool:
        """Return whether to wait for `minOffsetsPerTrigger`, at most for `maxTriggerDelay`."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        waited_ns = self._clock.monotonic_ns() - self._last_batch_ns
        if waited_ns >= self._options.max_trigger_delay_s * NS:
            return False
        return sum(seq - begin[key] for key, seq in end.items()) < least

    def _limited(self, begin: Seqs, end: Seqs, views: Mapping[str, LogView]) -> Seqs:
        options = self._options
        if options.max_bytes_per_trigger is not None:
            growing = [key for key, seq in end.items() if key in views and seq > begin[key]]
            share = max(options.max_bytes_per_trigger // max(len(growing), 1), 1)
            live = []
            for key in growing:
                history = History(views[key], options)
                if history.begins_in_archive(begin[key]):
                    end[key] = history.seq_after_bytes(begin[key], end[key], share)
                else:
                    live.append(views[key])
            end = limit_bytes(live, begin, end, share * len(live))
        if options.max_offsets_per_trigger is not None:
            end = limit_rows(begin, end, options.max_offsets_per_trigger)
        return end

    def _check_exist(
        self, begin: Seqs, identities: Seqs, views: Mapping[str, LogView]
    ) -> frozenset[str]:
        """Raise DataLoss, or log it, for a queue that was deleted or replaced.

        Return the queues that were created again.
        """
        replaced = set()
        for key, seq in begin.items():
            if key not in views:
                sentence = f"the queue {key} does not exist any more"
            elif identities.get(key, identity := views[key].info.identity) != identity:
                sentence = f"the queue {key} was deleted and created again"
                replaced.add(key)
            elif seq > views[key].next_seq:
                sentence = (
                    f"queue {key}: the query has read up to seq {seq}, but the next seq of the "
                    f"queue is {views[key].next_seq}: it was replaced or restored"
                )
            else:
                continue
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"{sentence}. Start with a new checkpoint, or set failOnDataLoss=false to "
                    f"continue."
                )
            log.warning("%s; continuing (failOnDataLoss=false)", sentence)
        return frozenset(replaced)

    # -- reading -----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        (begin, backlog, before), (until, _, identities) = split_offsets(start), split_offsets(end)
        views = self._views()
        replaced = self._check_exist(until, identities, views)
        # Queues that were created again between the two offsets are read from their beginning.
        begin = {
            key: seq for key, seq in begin.items() if before.get(key) in (None, identities.get(key))
        }
        ranges: list[Range] = []
        archived: list[ArchivedRange] = []
        groups = {}
        for key, last in until.items():
            view = views.get(key)
            if view is None or key in replaced or begin.get(key, 1) >= last:
                continue
            last = min(last, view.next_seq)
            first = begin[key] if key in begin else self._low(view)
            required = backlog.get(key, first if key in begin else last)
            history = History(view, self._options)
            found = plan_history(history, first, last, required, self._options)
            archived += found[0]
            ranges += found[1]
            if self._options.table == "events" and "group" in self._schema.fieldNames():
                groups[view.info.queue.path] = group_names(view)
        by_path = {view.info.queue.path: view for view in views.values()}
        parts = archived_partitions(archived, self._options)
        parts += [Partition(part, groups) for part in group_ranges(ranges, by_path, self._options)]
        return [InputPartition(part) for part in parts]

    def _low(self, view: LogView) -> int:
        """Return where a queue that is new to the query begins: in its archive, if it has one."""
        return History(view, self._options).low

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        tune_worker()
        if partition is not None and partition.value is not None:
            read = partial(read_partition, partition.value, selection=self._options)
            yield from read_typed(self._schema, self._options, read)

    def __getstate__(self) -> dict[str, Any]:
        """Return what executors need: no watchers."""
        return {**self.__dict__, "_watchers": {}}

    def _views(self) -> dict[str, LogView]:
        queues = queues_of(self._options)
        for queue in queues:
            if queue.key not in self._watchers:
                self._watchers[queue.key] = watcher_of(queue, log_of(self._options))
        return {queue.key: self._watchers[queue.key].view() for queue in queues}

    # -- the consumer group ------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Move the consumer group to `end`, which Spark has committed.

        Nothing is acked. A restarted query reads its last batch again; retention keeps it, because
        only messages before the group's position can be removed.
        """
        if self._options.group is None:
            return
        seqs = split_offsets(end).seqs
        for queue in queues_of(self._options):
            seq = seqs.get(queue.key)
            if seq is not None:
                self._move_group(self._options.group, queue, seq)

    def stop(self) -> None:
        self._watchers.clear()

    def _create_groups(self, queues: Sequence[QueueLocation], seqs: Seqs) -> None:
        group = self._options.group
        if group is None:
            return
        if self._options.table != "messages":
            raise InvalidInput("group is for streams of messages: a group's position is a message")

        def create(queue: QueueLocation) -> None:
            with open_for_change(queue) as it:
                it.groups.create(group, seq=seqs[queue.key])

        for queue in queues:
            wait_for_lock(partial(create, queue))

    def _move_group(self, group: str, queue: QueueLocation, seq: int) -> None:
        try:
            with open_for_change(queue) as it:
                if group in it.groups:
                    it.seek(seq=seq, group=group)
                else:
                    it.groups.create(group, seq=seq)
        except LedgerLocked as error:
            # The next commit moves it further. Until then retention keeps more than it must.
            log.warning("group %s was not moved to %d: %s", group, seq, error)


class UnlimitedStreamReader(DataSourceStreamReader):
    """The reader for PySpark before 4.2, which tells neither the start nor a limit of a batch.

    Each micro-batch ends at the end of the queues. What `latestOffset` checks is checked when the
    batch is planned.
    """

    def __init__(self, reader: StreamReader, options: ReadOptions) -> None:
        limits = {
            "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
            "maxBytesPerTrigger": options.max_bytes_per_trigger,
            "minOffsetsPerTrigger": options.min_offsets_per_trigger,
        }
        refuse_limits([name for name, value in limits.items() if value is not None])
        self._reader = reader

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        return self._reader.newest_offsets()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._reader.check_continues(start)
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()


class RefusedStream(DataSourceStreamReader):
    """Raises an error when the query starts: Spark loses what `streamReader` raises."""

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self._error

    def latestOffset(self, *_: object) -> dict[str, Any]:  # noqa: N802
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


# -- offsets ---------------------------------------------------------------------------------------


class Offsets(NamedTuple):
    """The numbers of each queue, by name."""

    seqs: Seqs  # the next seq to read
    backlog: Seqs  # end of the backlog, of queues that have one
    identities: Seqs  # missing in checkpoints of version 0.1


def _identities(views: Mapping[str, LogView]) -> Seqs:
    return {key: view.info.identity for key, view in views.items()}


def _ends(views: Mapping[str, LogView]) -> Seqs:
    seqs = {key: view.next_seq for key, view in views.items()}
    return join_offsets(Offsets(seqs, {}, _identities(views)))


def is_offsets(offsets: object) -> bool:
    """Return whether these are offsets of a penstock source: they have the queues' identities."""
    return (
        isinstance(offsets, dict)
        and any(str(name).endswith(_IDENTITY) for name in offsets)
        and all(isinstance(number, int) for number in offsets.values())
    )


def split_offsets(offsets: object) -> Offsets:
    """Return the parts of offsets. Raise InvalidInput for those of another source."""
    parts: dict[str, Seqs] = {"": {}, _BACKLOG: {}, _IDENTITY: {}}
    for name, number in offsets.items() if isinstance(offsets, dict) else [("", None)]:
        key, slashes, kind = name.partition("//")
        if slashes + kind not in parts or not isinstance(number, int):
            raise InvalidInput(
                f"the checkpoint's offsets are not those of a penstock source: {str(offsets)[:200]}"
            )
        parts[slashes + kind][key] = number
    return Offsets(parts[""], parts[_BACKLOG], parts[_IDENTITY])


def join_offsets(offsets: Offsets) -> Seqs:
    """Return sorted offsets for Spark. A backlog that was read is left out."""
    seqs, backlog, identities = offsets
    left = {f"{key}{_BACKLOG}": end for key, end in backlog.items() if seqs.get(key, end) < end}
    known = {f"{key}{_IDENTITY}": identities[key] for key in seqs if key in identities}
    return dict(sorted({**seqs, **left, **known}.items()))


def limit_rows(start: Seqs, end: Seqs, max_rows: int) -> Seqs:
    """Return an end with at most `max_rows` seqs from the start, shared in proportion."""
    waiting = {key: end[key] - start[key] for key in end}
    total = sum(waiting.values())
    if total <= max_rows:
        return end
    limited = {key: start[key] + waiting[key] * max_rows // total for key in sorted(end)}
    left = max_rows - sum(limited[key] - start[key] for key in end)
    for key in limited:  # the rest of the rounding
        more = min(left, end[key] - limited[key])
        limited[key] += more
        left -= more
    return limited


def limit_bytes(views: Sequence[LogView], start: Seqs, end: Seqs, max_bytes: int) -> Seqs:
    """Return an end about `max_bytes` from the start, at least one step of the index."""
    share = max(max_bytes // max(len(views), 1), 1)
    keys = {view.info.queue.key: view for view in views}
    return {
        key: _seq_after_bytes(keys[key], start[key], seq, share) if key in keys else seq
        for key, seq in end.items()
    }


def _seq_after_bytes(view: LogView, start: int, end: int, max_bytes: int) -> int:
    """Return the last seq of the index within `max_bytes` from the start, or the first one."""
    used, reached = 0, start
    for span in view.spans:
        if span.end_seq <= start or span.header.base_seq >= end:
            continue
        points = IndexPoints(view, span)
        at = points.before_seq(max(start, span.header.base_seq))
        origin = points.offsets[at]
        seqs = [*points.seqs[at + 1 :], span.end_seq]
        for seq, offset in zip(seqs, [*points.offsets[at + 1 :], span.end], strict=True):
            if seq <= start:
                continue
            if used + offset - origin > max_bytes:
                return min(reached if reached > start else seq, end)
            reached = seq
        used += span.end - origin
    return end
