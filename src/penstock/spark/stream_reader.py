"""The streaming side of the source: exact offsets, limits, and a group that follows the query."""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LedgerLocked, PenstockError
from penstock.model import NS
from penstock.spark.errors import DataLoss
from penstock.spark.groups import group_names
from penstock.spark.offsets import (
    OffsetDict,
    checked,
    in_order,
    joined,
    split,
    within_bytes,
    within_rows,
)
from penstock.spark.options import LATEST, ReadOptions
from penstock.spark.partitions import Lot, read_lot
from penstock.spark.patience import wait_for_lock
from penstock.spark.places import QueueAt
from penstock.spark.planning import (
    check_named,
    checked_start,
    claimed_ranges,
    in_lots,
    log_of,
    names_a_seq,
    queues_of,
    starting_seq,
)
from penstock.spark.ranges import Range
from penstock.spark.segments import LogView
from penstock.spark.watching import Watcher, watcher_of
from penstock.spark.workers import settle_worker
from penstock.spark.writers import open_to_change

log = logging.getLogger("penstock.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query, on the driver; `read` runs on the executors."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        if options.table == "state":
            raise InvalidInput(
                "the table 'state' is of one moment and cannot be streamed: stream 'events', or "
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
        self._watchers: dict[str, Watcher] = {}
        self._initial: OffsetDict | None = None
        self._target: OffsetDict | None = None  # of Trigger.AvailableNow
        self._clock: Clock = SystemClock()
        self._last_batch_ns = self._clock.monotonic_ns()  # when something was read last

    # -- offsets -----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query starts. Spark asks twice: "latest" must not move between."""
        if self._initial is None:
            views = self._look()
            queues = [view.facts.queue for view in views.values()]
            check_named(self._options.starting_offsets, queues, "startingOffsets")
            seqs = {
                key: starting_seq(view, self._options, default=LATEST)
                for key, view in views.items()
            }
            backlog = {
                key: view.next_seq
                for key, view in views.items()
                if not names_a_seq(self._options.starting_offsets, view.facts.queue)
            }
            self._make_group(queues, seqs)
            self._initial = joined(seqs, backlog)
        return dict(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = in_order({key: view.next_seq for key, view in self._look().items()})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next micro-batch goes; `start` itself where there is nothing new."""
        begin, backlog = split(checked(start))
        views = self._look()
        self._check_all_there(begin, views)
        end = {key: view.next_seq for key, view in views.items()}
        if self._target is not None:
            end = {
                key: min(seq, self._target[key]) for key, seq in end.items() if key in self._target
            }
        for key, seq in begin.items():
            end[key] = max(end.get(key, seq), seq)
        known = {key: begin.get(key, views[key].low) for key in end if key in views}
        known |= {key: seq for key, seq in begin.items() if key not in known}
        if self._is_too_little(known, end):
            return start
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(known, end, views)
        if end == begin:
            return start
        self._last_batch_ns = self._clock.monotonic_ns()
        return joined(end, backlog)

    def _is_too_little(self, begin: OffsetDict, end: dict[str, int]) -> bool:
        """Should a micro-batch wait for more? Not for ever, and not one that must end now."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        waited_ns = self._clock.monotonic_ns() - self._last_batch_ns
        if waited_ns >= self._options.max_trigger_delay_s * NS:
            return False
        return sum(seq - begin.get(key, seq) for key, seq in end.items()) < least

    def _limited(
        self, begin: OffsetDict, end: dict[str, int], views: dict[str, LogView]
    ) -> OffsetDict:
        options = self._options
        if options.max_bytes_per_trigger is not None:
            # `end` leaves out queues that are newer than the target of Trigger.AvailableNow.
            growing = [
                views[key] for key, seq in end.items() if key in views and seq > begin.get(key, seq)
            ]
            end = within_bytes(growing, begin, end, options.max_bytes_per_trigger)
        if options.max_offsets_per_trigger is not None:
            end = within_rows(begin, end, options.max_offsets_per_trigger)
        return in_order(end)

    def _check_all_there(self, begin: OffsetDict, views: dict[str, LogView]) -> None:
        for key, seq in begin.items():
            if key not in views:
                self._lost(f"the queue {key} is not there any more")
            elif seq > views[key].next_seq:
                self._lost(
                    f"queue {key}: the query has read up to seq {seq}, but the next one to be "
                    f"written is {views[key].next_seq}: it was replaced or restored"
                )

    def _lost(self, sentence: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{sentence}. Start with a new checkpoint, or set failOnDataLoss=false to go on."
            )
        log.warning("%s; going on (failOnDataLoss=false)", sentence)

    # -- reading -----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        (begin, backlog), (until, _) = split(checked(start)), split(checked(end))
        views = self._look()
        ranges: list[Range] = []
        groups = {}
        for key, last in until.items():
            view = views.get(key)
            if view is None or begin.get(key, 1) >= last:
                continue
            if last > view.next_seq:
                self._check_all_there({key: last}, views)
                last = view.next_seq
            first = begin.get(key, view.low)
            first = checked_start(view, first, last, self._options)
            claimed = backlog.get(key, first if key in begin else last)
            ranges += claimed_ranges(view, first, last, claimed, self._options)
            if self._options.table == "events" and "group" in self._schema.fieldNames():
                groups[view.facts.queue.path] = group_names(view)
        by_path = {view.facts.queue.path: view for view in views.values()}
        return [Lot(part, groups) for part in in_lots(ranges, by_path, self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        settle_worker()
        if isinstance(partition, Lot):
            yield from read_lot(partition, self._schema, self._options)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to the executors: not what is known of the files here."""
        return {**self.__dict__, "_watchers": {}}

    # -- after a micro-batch -----------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything before `end`: the consumer group may move there.

        It moves, it never acks: a query that is restarted reads its last batch again, and finds it
        there, because what lies before the group's position is all that may be removed.
        """
        if self._options.group is None:
            return
        seqs, _ = split(checked(end))
        for queue in queues_of(self._options):
            seq = seqs.get(queue.key)
            if seq is not None:
                self._move_group(queue, seq)

    def stop(self) -> None:
        self._watchers.clear()

    def _make_group(self, queues: Sequence[QueueAt], seqs: OffsetDict) -> None:
        if self._options.group is None:
            return
        if self._options.table != "messages":
            raise InvalidInput("group is for streams of messages: a group's position is a message")
        for queue in queues:
            wait_for_lock(partial(self._create_group, queue, seqs[queue.key]))

    def _create_group(self, queue: QueueAt, seq: int) -> None:
        assert self._options.group is not None
        with open_to_change(queue) as it:
            it.groups.create(self._options.group, seq=seq)

    def _move_group(self, queue: QueueAt, seq: int) -> None:
        assert self._options.group is not None
        try:
            with open_to_change(queue) as it:
                if self._options.group in it.groups:
                    it.seek(seq=seq, group=self._options.group)
                else:
                    it.groups.create(self._options.group, seq=seq)
        except LedgerLocked as error:
            # The next commit brings it further; until then retention keeps more than it must.
            log.warning("group %s was not moved to %d: %s", self._options.group, seq, error)

    def _look(self) -> dict[str, LogView]:
        queues = queues_of(self._options)
        for queue in queues:
            if queue.key not in self._watchers:
                self._watchers[queue.key] = watcher_of(queue, log_of(self._options))
        return {queue.key: self._watchers[queue.key].look() for queue in queues}


class RefusedStream(DataSourceStreamReader):
    """A stream that cannot be. Spark loses what is raised while the reader is made, so it is said
    when the query starts.
    """

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
