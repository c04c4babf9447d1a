"""From options, offsets and filters to tasks: which ranges of which queues each one reads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.errors import InvalidInput
from penstock.spark.groups import group_names
from penstock.spark.options import EARLIEST, LATEST, Offsets, ReadOptions
from penstock.spark.partitions import Lot, report_loss, report_missing
from penstock.spark.places import QueueAt, queues_at
from penstock.spark.pushdown import Bounds
from penstock.spark.ranges import NOTHING_CLAIMED, Range, cut, packed
from penstock.spark.segments import LogView
from penstock.spark.state_columns import fold_states
from penstock.spark.watching import seq_at_time, watcher_of

_EARLIEST_NUMBER, _LATEST_NUMBER = -2, -1  # in JSON, as Kafka has them
_SMALLEST_RANGE_BYTES = 4096


def queues_of(options: ReadOptions) -> list[QueueAt]:
    """The queues that a read is about."""
    return queues_at(
        options.place,
        names=options.subscribe,
        pattern=options.subscribe_pattern,
        api_key=options.key,
    )


def log_of(options: ReadOptions) -> str:
    return "events" if options.table == "events" else "messages"


def plan_batch(options: ReadOptions, bounds: Bounds, columns: Sequence[str]) -> list[Lot]:
    """The tasks of a batch read."""
    ranges: list[Range] = []
    views: dict[str, LogView] = {}
    groups: dict[str, Mapping[int, str]] = {}
    queues = queues_of(options)
    check_named(options.starting_offsets, queues, "startingOffsets")
    check_named(options.ending_offsets, queues, "endingOffsets")
    queues = [queue for queue in queues if _is_wanted(queue, bounds)]
    states = {}
    for queue in queues:
        watcher = watcher_of(queue, log_of(options))
        if options.table == "state":
            # The fold lacks what was lost since the queue was closed; a read must report it.
            closed_next = watcher.closed_next()
            # Folded first: the look that follows syncs what the fold has seen.
            states[queue.path], folded_upto = fold_states(queue, options.state_group)
            known_upto = max(folded_upto, closed_next)
        view = views[queue.path] = watcher.look()
        first, end = batch_seqs(view, options)
        if options.table == "state":
            end = min(end, known_upto)
        first, end = _narrowed(view, first, end, bounds)
        claimed = first if names_a_seq(options.starting_offsets, queue) else NOTHING_CLAIMED
        ranges += claimed_ranges(view, first, end, claimed, options)
        if options.table == "events" and "group" in columns:
            groups[queue.path] = group_names(view)
    lots = []
    for part in in_lots(ranges, views, options):
        paths = {one.facts.queue.path for one in part}
        known = {}
        for path in paths & set(states):
            own = [one for one in part if one.facts.queue.path == path]
            low, high = min(r.wanted_from for r in own), max(r.wanted_to for r in own)
            known[path] = states[path].within(low, high)
        lots.append(Lot(part, {p: names for p, names in groups.items() if p in paths}, known))
    return lots


def claimed_ranges(
    view: LogView, first: int, end: int, claimed_from: int, options: ReadOptions
) -> list[Range]:
    """Cut [first, end) into ranges. From `claimed_from` on, a seq that was removed is loss."""
    cuts = cut(view, first, end, max_bytes=options.max_partition_bytes)
    ranges = [replace(one, claimed_from=claimed_from) for one in cuts]
    reached = max(first, claimed_from)
    for low, high in [*((one.wanted_from, one.wanted_to) for one in ranges), (end, end)]:
        if reached < low:  # of which not even a tombstone is left
            key, fail = view.facts.queue.key, options.fail_on_data_loss
            report_loss(key, view.log, reached, low - 1, fail=fail)
        reached = max(reached, high)
    return ranges


def in_lots(
    ranges: Sequence[Range], views: Mapping[str, LogView], options: ReadOptions
) -> list[list[Range]]:
    """Ranges put together into tasks, at least `minPartitions` of them where there is enough.

    `views` are what the ranges were cut from, by the path of the queue.
    """
    lots = packed(ranges, max_bytes=options.max_partition_bytes)
    if len(lots) >= options.min_partitions:
        return lots
    total = sum(one.size_bytes for one in ranges)
    target = max(-(-total // options.min_partitions), _SMALLEST_RANGE_BYTES)
    pieces = [piece for one in ranges for piece in _recut(one, views[one.facts.queue.path], target)]
    return packed(pieces, max_bytes=target)


def _recut(one: Range, view: LogView, max_bytes: int) -> list[Range]:
    """A range in smaller pieces."""
    if one.size_bytes <= max_bytes or not one.sound:
        return [one]
    pieces = cut(view, one.wanted_from, one.wanted_to, max_bytes=max_bytes)
    return [replace(piece, claimed_from=one.claimed_from) for piece in pieces]


def _is_wanted(queue: QueueAt, bounds: Bounds) -> bool:
    if bounds.is_empty:
        return False
    if bounds.namespaces is not None and queue.namespace not in bounds.namespaces:
        return False
    return bounds.queues is None or queue.name in bounds.queues


# -- from where to where ---------------------------------------------------------------------------


def batch_seqs(view: LogView, options: ReadOptions) -> tuple[int, int]:
    """The seqs [first, end) that a batch read of a queue is about."""
    first = starting_seq(view, options, default=EARLIEST)
    end = view.next_seq
    if options.ending_timestamp_ns is not None:
        end = min(seq_at_time(view, options.ending_timestamp_ns), end)
    elif options.ending_offsets is not None:
        end = _numbered(view, options.ending_offsets)
        if isinstance(options.ending_offsets, int):
            end = min(end, view.next_seq)
        elif end > view.next_seq:
            raise InvalidInput(
                f"endingOffsets says {end} for queue {view.facts.queue.key}, whose next seq is "
                f"{view.next_seq}: give at most that, or 'latest'"
            )
    if first > end:
        if not isinstance(options.starting_offsets, dict):
            return end, end  # a range of seqs or times that has nothing of this queue
        raise InvalidInput(
            f"queue {view.facts.queue.key}: the read would start at seq {first} and end at {end}"
        )
    return checked_start(view, first, end, options), end


def starting_seq(view: LogView, options: ReadOptions, *, default: str) -> int:
    """Where a read starts, as the options say."""
    if options.starting_timestamp_ns is not None:
        found = min(seq_at_time(view, options.starting_timestamp_ns), view.next_seq)
        # If nothing is older than that time, what is lost before it may be younger.
        return found if found > view.first_seq else view.low
    return _numbered(view, options.starting_offsets or default)


def checked_start(view: LogView, first: int, end: int, options: ReadOptions | None = None) -> int:
    """Return where a read can start: at `first`, or behind what is not there.

    Raise DataLoss for what was removed, DamagedSegment for what is lost, unless the options say to
    pass over it.
    """
    if first >= min(view.first_seq, end):
        return first
    queue = view.facts.queue
    if first < view.low:
        fail = options is None or options.fail_on_data_loss
        report_loss(queue.key, view.log, first, min(view.low, end) - 1, fail=fail)
    lost_from, lost_end = max(first, view.low), min(view.first_seq, end)
    if lost_from < lost_end:
        verify = options is None or options.verify
        report_missing(queue, view.log, lost_from, lost_end - 1, verify=verify)
    return lost_end


def _numbered(view: LogView, offsets: Offsets) -> int:
    if offsets == EARLIEST:
        return view.low
    if offsets == LATEST:
        return view.next_seq
    if isinstance(offsets, int):
        return max(offsets, 1)
    assert isinstance(offsets, dict)
    number = offsets[view.facts.queue.key]
    if number == _EARLIEST_NUMBER:
        return view.low
    return view.next_seq if number == _LATEST_NUMBER else max(number, 1)


def names_a_seq(offsets: Offsets | None, queue: QueueAt) -> bool:
    """Does the user say at which seq to start? Then every message from there on is asked for."""
    if isinstance(offsets, int):
        return True
    return isinstance(offsets, dict) and offsets[queue.key] >= 0


def check_named(offsets: Offsets | None, queues: Sequence[QueueAt], option: str) -> None:
    """JSON offsets name exactly the queues that are read: a typo must not mean "from the start"."""
    if not isinstance(offsets, dict):
        return
    keys = {queue.key for queue in queues}
    for key in offsets:
        if key not in keys:
            raise InvalidInput(f"{option} names the queue {key!r}, which is not read here")
    for key in sorted(keys):
        if key not in offsets:
            raise InvalidInput(f"{option} says nothing about the queue {key!r}")


def _narrowed(view: LogView, first: int, end: int, bounds: Bounds) -> tuple[int, int]:
    first, end = max(first, bounds.first_seq), min(end, bounds.end_seq)
    if bounds.from_ns > 0 and first < end:
        first = max(first, seq_at_time(view, bounds.from_ns))
    if bounds.to_ns < (1 << 63) - 1 and first < end:
        end = min(end, seq_at_time(view, bounds.to_ns))
    return first, max(first, end)
