"""Access to a queue's logs, in a directory or at a broker: views, times, groups, entries."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from penstock.arrow.broker_files import files_of, list_files
from penstock.arrow.locations import QueueLocation
from penstock.arrow.segments import DirectoryLogWatcher, LogView, QueueInfo, Span
from penstock.codec import Entry
from penstock.errors import BadEntry, EntryGone
from penstock.ledger import Cursor, Damage, Ledger, seq_at_time
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.reading import seq_at_time_in
from penstock.ledger.segment import Segment
from penstock.ledger.segment_header import SegmentHeader
from penstock.ledger.snapshots import Snapshots
from penstock.ledger.verify import verify_snapshots
from penstock.model import MAIN_GROUP_NAME
from penstock.queue import QueueSettings
from penstock.queue.events import MAIN_GROUP, EventType, decode
from penstock.queue.segments import LogInfo, QueueSegments
from penstock.queue.snapshot import load_state
from penstock.queue.state import QueueState

_READ_ENTRIES = 2000


class LogWatcher(Protocol):
    """Views of one log, again and again."""

    def view(self) -> LogView:
        """Return the log as it is now."""

    def closed_next(self) -> int:
        """Return the next seq of the log when the queue was last closed; 1 if unknown."""


def watcher_of(queue: QueueLocation, log: str) -> LogWatcher:
    return _BrokerLogWatcher(queue, log) if queue.url else DirectoryLogWatcher(queue, log)


class _BrokerLogWatcher:
    """Views of a log as the broker lists it: everything listed is durable."""

    def __init__(self, queue: QueueLocation, log: str) -> None:
        self._queue = queue
        self._log = log

    def view(self) -> LogView:
        listing = list_files(self._queue)
        found = _log_in(listing, self._log)
        settings = QueueSettings.of_stored(listing.settings)
        last = len(found.segments) - 1
        spans = [
            Span(SegmentHeader.unpack(one.header), one.size_bytes, one.end_seq, number == last)
            for number, one in enumerate(found.segments)
        ]
        first_seq = max(spans[0].header.base_seq, found.low) if spans else found.low
        first_seq = min(first_seq, found.next_seq)
        info = QueueInfo.of(self._queue, listing.identity, settings)
        # The broker found and reported lost entries when it opened the queue: low is first_seq.
        where = listing.archive, listing.archived_as, listing.archive_damage, listing.archived_upto
        return LogView(info, self._log, tuple(spans), first_seq, found.next_seq, first_seq, *where)

    def closed_next(self) -> int:
        """Return 1: the broker reported lost entries when it opened the queue."""
        return 1


def _log_in(listing: QueueSegments, log: str) -> LogInfo:
    return listing.messages if log == "messages" else listing.events


# -- times -----------------------------------------------------------------------------------------


class _NeedsLedger(Exception):
    """A segment is damaged: only the ledger's own reader can find the time."""


def find_time(view: LogView, timestamp_ns: int) -> int:
    """Return the first seq at or after a time, or the log's next seq if there is none."""
    queue, timestamp_ns = view.info.queue, max(timestamp_ns, 0)
    if queue.url:
        found = _log_in(list_files(queue, time_ns=timestamp_ns), view.log).seq_at_time
        assert found is not None
        return min(found, view.next_seq)
    try:
        found = seq_at_time_in(_segments(view), timestamp_ns)
    except (_NeedsLedger, BadEntry, EntryGone):
        with ledger_reader(queue, view.log) as reader:
            found = reader.seq_at_time(timestamp_ns)
    return view.next_seq if found is None else min(found, view.next_seq)


def _segments(view: LogView) -> list[Segment]:
    """Return the segments of a view. Opening the ledger would read the last one again."""
    if not all(span.intact for span in view.spans):
        raise _NeedsLedger
    return [_segment(view, span, _raise_needs_ledger) for span in view.spans]


def _segment(view: LogView, span: Span, on_hole: Callable[..., None]) -> Segment:
    return Segment(
        Folder(OsFiles(), view.info.queue.path).child(view.log),
        span.header,
        end=span.end,
        next_base_seq=partial(int, span.end_seq),
        on_hole=on_hole,
        max_entry_bytes=view.info.max_entry_bytes,
    )


def _raise_needs_ledger(*_: object) -> None:
    raise _NeedsLedger


def before_loss(view: LogView, seq: int) -> int:
    """Return the first of the lost entries right before a seq; the seq itself if there are none.

    Entries that compaction removed are not lost. A broker reports lost entries itself.
    """
    spans = [span for span in view.spans if span.header.base_seq < seq]
    if view.info.queue.url or not spans:
        return seq
    lost: list[tuple[int, int]] = []
    if spans[-1].intact:
        segment = _segment(view, spans[-1], lambda *hole: lost.append(hole[3:5]))
        try:
            if segment.offset_of(seq - 1) < 0:
                segment.check_end(seq - 1, spans[-1].end_seq)
        except EntryGone:
            return seq  # rewritten: the read finds out, and is planned again
        finally:
            segment.close()
    else:
        with ledger_reader(view.info.queue, view.log) as reader:
            for _ in reader.entries(spans[-1].header.base_seq, seq):
                pass
        own = [one for one in reader.damages if one.file.startswith(f"{view.log}/")]
        lost = [(one.first_lost_seq, one.last_lost_seq) for one in own]
    return next((first for first, last in lost if first < seq <= last + 1), seq)


# -- the ledger's own reader -----------------------------------------------------------------------


class LedgerReader:
    """A log, opened read-only as it is now. Collects the damage that it finds."""

    def __init__(self, ledger: Ledger, log: str, damages: list[Damage]) -> None:
        self._ledger = ledger
        self._log = ledger.messages if log == "messages" else ledger.events
        self.damages = damages

    def damages_beside_the_logs(self) -> list[Damage]:
        """Read all snapshots. Return the damage of files that belong to neither log."""
        verify_snapshots(self._ledger)
        return [one for one in self.damages if not one.file.startswith(("messages/", "events/"))]

    @property
    def identity(self) -> int:
        """The identity of the queue, which another queue in the same directory does not have."""
        return self._ledger.identity

    @property
    def first_seq(self) -> int:
        return self._log.first_seq

    def entries(self, first_seq: int, end_seq: int) -> Iterator[list[Entry]]:
        """Yield the existing entries with seqs [first_seq, end_seq), in order."""
        cursor = Cursor(self._log, first_seq)
        while found := cursor.read(_READ_ENTRIES):
            wanted = [entry for entry in found if first_seq <= entry.seq < end_seq]
            if wanted:
                yield wanted
            if found[-1].seq >= end_seq - 1:
                return

    def seq_at_time(self, timestamp_ns: int) -> int:
        """Return the first seq at or after a time; the next seq if there is none."""
        return seq_at_time(self._log, timestamp_ns)


@contextmanager
def ledger_reader(queue: QueueLocation, log: str) -> Iterator[LedgerReader]:
    """Open a log as its writer does: slower than the fast path, and correct for any files.

    No lock is taken and nothing is changed.
    """
    damages: list[Damage] = []
    files = files_of(queue)
    stored = Ledger.stored_queue_settings(queue.path, files=files)
    settings = QueueSettings.of_stored(stored).storage.ledger_settings()
    with Ledger.open(
        queue.path,
        # Read on after damage: the caller decides what to do about it. A reader needs neither locks
        # nor syncs, for which network file systems are refused.
        replace(settings, on_corruption="quarantine", allow_network_file_system=True),
        files=files,
        read_only=True,
        create=False,
        on_damage=damages.append,
    ) as ledger:
        yield LedgerReader(ledger, log, damages)


# -- consumer groups -------------------------------------------------------------------------------


def group_names(view: LogView) -> dict[int, str]:
    """Return the names of consumer groups by number, from a view of the event log.

    They come from the newest snapshot and the events after it. A group that was deleted before
    the snapshot has no name.
    """
    queue = view.info.queue
    names, next_event = {MAIN_GROUP: MAIN_GROUP_NAME}, view.first_seq
    folder = Folder(files_of(queue), queue.path).child("snapshots")
    snapshot = Snapshots(folder).newest(upto=view.next_seq - 1)
    if snapshot is not None:
        state = QueueState(dedup_entries=1)
        load_state(state, snapshot.blob)
        names.update({number: group.name for number, group in state.groups.items()})
        next_event = max(next_event, snapshot.event_seq + 1)
    if next_event < view.next_seq:
        with ledger_reader(queue, "events") as reader:
            for entries in reader.entries(next_event, view.next_seq):
                for entry in entries:
                    if entry.type == EventType.GROUP_CREATED:
                        event = decode(
                            entry.type, entry.payload, timestamp_ns=0, event_seq=entry.seq
                        )
                        names[event.group] = event.name
    return names


def groups_of(queue: QueueLocation) -> set[str]:
    """Return the names of a queue's consumer groups."""
    return set(group_names(watcher_of(queue, "events").view()).values())
