"""Looking at a log, wherever it is."""

from functools import partial
from typing import Protocol

from penstock.errors import BadEntry, EntryGone
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.reading import seq_at_time_in
from penstock.ledger.segment import Segment
from penstock.ledger.segment_header import SegmentHeader
from penstock.queue import QueueSettings
from penstock.queue.segments import LogInfo, QueueSegments
from penstock.spark.exact import exact_reader
from penstock.spark.http_files import listed
from penstock.spark.places import QueueAt
from penstock.spark.segments import LogView, LogWatcher, QueueFacts, Span


class Watcher(Protocol):
    """Looks at one log again and again."""

    def look(self) -> LogView:
        """The log as it is now: everything in it is durable."""

    def closed_next(self) -> int:
        """Return the next seq of the log when the queue was last closed; 1 if that is not known."""


def watcher_of(queue: QueueAt, log: str) -> Watcher:
    """Of a queue in a directory, or at a broker."""
    return _BrokerWatcher(queue, log) if queue.url else LogWatcher(queue, log)


def seq_at_time(view: LogView, timestamp_ns: int) -> int:
    """The first seq at or after a time; the next one to be written if there is none."""
    queue = view.facts.queue
    if queue.url:
        listing = listed(queue, time_ns=max(timestamp_ns, 0))
        found = _log_of(listing, view.log).seq_at_time
        assert found is not None
        return min(found, view.next_seq)
    try:
        found = seq_at_time_in(_segments(view), max(timestamp_ns, 0))
    except (_Irregular, BadEntry, EntryGone):
        with exact_reader(queue, view.log) as reader:
            found = reader.seq_at_time(timestamp_ns)
    return view.next_seq if found is None else min(found, view.next_seq)


class _Irregular(Exception):
    """A segment is damaged: only the ledger's own reader can say what is there."""


def _segments(view: LogView) -> list[Segment]:
    """The segments that were looked at. Opening the ledger would read its last segment again."""
    if not all(span.sound for span in view.spans):
        raise _Irregular
    folder = Folder(OsFiles(), view.facts.queue.path).child(view.log)
    return [
        Segment(
            folder,
            span.header,
            end=span.end,
            next_base_seq=partial(int, span.end_seq),
            on_hole=_refuse,
            max_entry_bytes=view.facts.max_entry_bytes,
        )
        for span in view.spans
    ]


def _refuse(*_: object) -> None:
    raise _Irregular


class _BrokerWatcher:
    """What the broker lists is what a look finds: there is nothing left to read or sync."""

    def __init__(self, queue: QueueAt, log: str) -> None:
        self._queue = queue
        self._log = log

    def look(self) -> LogView:
        listing = listed(self._queue)
        info = _log_of(listing, self._log)
        settings = QueueSettings.of_stored(listing.settings)
        facts = QueueFacts(
            self._queue,
            listing.identity,
            settings.ledger_settings().max_entry_bytes,
            settings.max_unpacked_bytes,
        )
        last = len(info.segments) - 1
        spans = [
            Span(SegmentHeader.unpack(one.header), one.size_bytes, one.end_seq, number == last)
            for number, one in enumerate(info.segments)
        ]
        first_seq = max(spans[0].header.base_seq, info.low) if spans else info.low
        first_seq = min(first_seq, info.next_seq)
        # What is lost, the broker found when it opened the queue; its marks are past that.
        return LogView(facts, self._log, tuple(spans), first_seq, info.next_seq, first_seq)

    def closed_next(self) -> int:
        """Return 1: the broker reported what was lost when it opened the queue."""
        return 1


def _log_of(listing: QueueSegments, log: str) -> LogInfo:
    return listing.messages if log == "messages" else listing.events
