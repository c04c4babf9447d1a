"""Plan a read: turn a selection and bounds into partitions, which are ranges of segments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.arrow.history import ArchivedRange, History
from penstock.arrow.locations import QueueLocation, queues_at
from penstock.arrow.logs import group_names, watcher_of
from penstock.arrow.loss import report_damage, report_loss
from penstock.arrow.message_columns import QueueStates, fold_states
from penstock.arrow.ranges import NOTHING_REQUIRED, Range, pack, split
from penstock.arrow.segments import LogView
from penstock.arrow.selection import EARLIEST, LATEST, Bounds, Offsets, Selection
from penstock.errors import InvalidInput
from penstock.ledger.json_files import MANIFEST_NAME

_EARLIEST_NUMBER, _LATEST_NUMBER = -2, -1  # in JSON, as in Kafka's source
_MIN_RANGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Partition:
    """The work of one task."""

    ranges: Sequence[Range]
    # By path of the queue: names of groups by number, and for the table `state` the states.
    groups: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    states: Mapping[str, QueueStates] = field(default_factory=dict)
    archived: Sequence[ArchivedRange] = ()


# -- planning a batch ------------------------------------------------------------------------------


def queues_of(selection: Selection) -> list[QueueLocation]:
    """Return the queues that a read names."""
    return queues_at(
        selection.location,
        names=selection.subscribe,
        pattern=selection.subscribe_pattern,
        api_key=selection.key,
    )


def log_of(selection: Selection) -> str:
    return "events" if selection.table == "events" else "messages"


def plan_batch(selection: Selection, bounds: Bounds, columns: Sequence[str]) -> list[Partition]:
    """Return the partitions of a batch read."""
    ranges: list[Range] = []
    archived: list[ArchivedRange] = []
    views: dict[str, LogView] = {}
    groups: dict[str, Mapping[int, str]] = {}
    states: dict[str, QueueStates] = {}
    queues = queues_of(selection)
    check_queues_named(selection.starting_offsets, queues, "startingOffsets")
    check_queues_named(selection.ending_offsets, queues, "endingOffsets")
    for queue in queues:
        if not _is_within(queue, bounds):
            continue
        watcher = watcher_of(queue, log_of(selection))
        if selection.table == "state":
            # The fold lacks what was lost since the queue was closed; the read must report it.
            closed_next = watcher.closed_next()
            # Fold first: the view that follows syncs what the fold has read.
            states[queue.path], folded_upto = fold_states(queue, selection.state_group)
            known_upto = max(folded_upto, closed_next)
        view = views[queue.path] = watcher.view()
        history = History(view, selection)
        first, end = _batch_seqs(history, selection)
        if not _reaches_archive(history, first, end):
            first = check_start(view, first, end, selection)
        if selection.table == "state":
            end = min(end, known_upto)
        first, end = _narrowed(history, first, end, bounds)
        required = first if names_a_seq(selection.starting_offsets, queue) else NOTHING_REQUIRED
        from_archive, from_log = plan_history(history, first, end, required, selection)
        archived += from_archive
        ranges += from_log
        if selection.table == "events" and "group" in columns:
            groups[queue.path] = group_names(view)
    return [
        *archived_partitions(archived, selection),
        *_live_partitions(ranges, views, groups, states, selection),
    ]


def _live_partitions(
    ranges: Sequence[Range],
    views: Mapping[str, LogView],
    groups: Mapping[str, Mapping[int, str]],
    states: Mapping[str, QueueStates],
    selection: Selection,
) -> list[Partition]:
    return [
        Partition(
            part,
            {path: names for path, names in groups.items() if path in _paths(part)},
            {path: _states_within(states[path], part, path) for path in _paths(part) & {*states}},
        )
        for part in group_ranges(ranges, views, selection)
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


def plan_history(
    history: History, first: int, end: int, required_from: int, selection: Selection
) -> tuple[list[ArchivedRange], list[Range]]:
    """Split [first, end) into archived ranges and ranges of the live log.

    Behind the archive every message is required: a gap between the two is loss.
    """
    view = history.view
    if not _reaches_archive(history, first, end):
        first = check_start(view, first, end, selection)
        return [], plan_ranges(view, first, end, required_from, selection)
    low, high = history.archived
    ranges: list[Range] = []
    if first < min(low, end):
        before = check_start(view, first, min(low, end), selection)
        ranges += plan_ranges(view, before, min(low, end), required_from, selection)
    archived = history.ranges(first, end)
    for lost_from, lost_end in history.gaps(first, end):
        fail = selection.fail_on_data_loss
        report_loss(view.info.queue.key, view.log, lost_from, lost_end - 1, fail=fail)
    if max(first, high) < end:
        after = check_start(view, max(first, high), end, selection)
        ranges += plan_ranges(view, after, end, max(first, high), selection)
    return archived, ranges


def _reaches_archive(history: History, first: int, end: int) -> bool:
    """Return whether the live log lacks a part of [first, end) that the archive has."""
    if not history.has_archive or first >= history.live_from:
        return False
    low, high = history.archived
    return max(first, low) < min(end, high)


def archived_partitions(archived: Sequence[ArchivedRange], selection: Selection) -> list[Partition]:
    """Return one task for neighbouring files, up to `maxPartitionBytes`."""
    parts: list[list[ArchivedRange]] = []
    size = 0
    for one in archived:
        if not parts or size + one.size_bytes > selection.max_partition_bytes:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += one.size_bytes
    return [Partition((), archived=part) for part in parts]


def plan_ranges(
    view: LogView, first: int, end: int, required_from: int, selection: Selection
) -> list[Range]:
    """Split [first, end) into ranges. A seq from `required_from` on that was removed is loss."""
    pieces = split(view, first, end, max_bytes=selection.max_partition_bytes)
    ranges = [replace(one, required_from=required_from) for one in pieces]
    reached = max(first, required_from)
    for low, high in [*((one.wanted_from, one.wanted_to) for one in ranges), (end, end)]:
        if reached < low:  # removed without a tombstone
            key, fail = view.info.queue.key, selection.fail_on_data_loss
            report_loss(key, view.log, reached, low - 1, fail=fail)
        reached = max(reached, high)
    return ranges


def group_ranges(
    ranges: Sequence[Range], views: Mapping[str, LogView], selection: Selection
) -> list[list[Range]]:
    """Group ranges into tasks, at least `minPartitions` of them if there is enough to read.

    `views` are the views that the ranges come from, by path of the queue.
    """
    groups = pack(ranges, max_bytes=selection.max_partition_bytes)
    if len(groups) >= selection.min_partitions:
        return groups
    total = sum(one.size_bytes for one in ranges)
    target = max(-(-total // selection.min_partitions), _MIN_RANGE_BYTES)
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


def _batch_seqs(history: History, selection: Selection) -> tuple[int, int]:
    """Return the seqs [first, end) of a batch read of one queue."""
    view = history.view
    first = starting_seq(history, selection, default=EARLIEST)
    end = view.next_seq
    if selection.ending_timestamp_ns is not None:
        end = min(history.find_time(selection.ending_timestamp_ns), end)
    elif selection.ending_offsets is not None:
        end = _seq_of(history, selection.ending_offsets)
        if isinstance(selection.ending_offsets, int):
            end = min(end, view.next_seq)
        elif end > view.next_seq:
            raise InvalidInput(
                f"endingOffsets is {end} for queue {view.info.queue.key}, whose next seq is "
                f"{view.next_seq}: give at most that, or 'latest'"
            )
    if first > end:
        if not isinstance(selection.starting_offsets, dict):
            return end, end  # this queue has nothing in the range of seqs or times
        raise InvalidInput(
            f"queue {view.info.queue.key}: the read would start at seq {first} and end at {end}"
        )
    return first, end


def starting_seq(history: History, selection: Selection, *, default: str) -> int:
    """Return the seq at which the selection starts a read."""
    if selection.starting_timestamp_ns is not None:
        view = history.view
        found = min(history.first_at(selection.starting_timestamp_ns), view.next_seq)
        if history.low < view.low:
            return found  # in the archive, or after it
        # If no existing message is older than that time, a lost message may be younger.
        return found if found > view.first_seq else view.low
    return _seq_of(history, selection.starting_offsets or default)


def check_start(view: LogView, first: int, end: int, selection: Selection | None = None) -> int:
    """Return `first`, or the first seq after it that exists.

    Raise DataLoss for what was removed and DamagedSegment for what is lost, unless the selection
    says to skip it.
    """
    if first >= min(view.first_seq, end):
        return first
    queue = view.info.queue
    if first < view.low:
        fail = selection is None or selection.fail_on_data_loss
        report_loss(queue.key, view.log, first, min(view.low, end) - 1, fail=fail)
    lost_from, lost_end = max(first, view.low), min(view.first_seq, end)
    if lost_from < lost_end:
        sentence = (
            f"queue {queue.key}: seq {lost_from} to {lost_end - 1} of {view.log} are lost: their "
            f"segments are missing, and {MANIFEST_NAME} does not say that they were removed"
        )
        report_damage(sentence, queue, verify=selection is None or selection.verify)
    return lost_end


def _seq_of(history: History, offsets: Offsets) -> int:
    if isinstance(offsets, dict):
        offsets = offsets[history.view.info.queue.key]
    if offsets in (EARLIEST, _EARLIEST_NUMBER):
        return history.low
    if offsets in (LATEST, _LATEST_NUMBER):
        return history.view.next_seq
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


def _narrowed(history: History, first: int, end: int, bounds: Bounds) -> tuple[int, int]:
    unbounded = Bounds()
    first, end = max(first, bounds.first_seq), min(end, bounds.end_seq)
    if bounds.from_ns > unbounded.from_ns and first < end:
        first = max(first, history.first_at(bounds.from_ns))
    if bounds.to_ns < unbounded.to_ns and first < end:
        end = min(end, history.find_time(bounds.to_ns))
    return first, max(first, end)
