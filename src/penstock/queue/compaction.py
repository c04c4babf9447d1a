"""Compaction: give disk space back, beside traffic.

Messages that no group needs are removed, and old events with them. It runs when it is asked for,
after a snapshot, and at an interval. With the setting `archive_required`, only messages that the
archive job noted in `archived.json` are removed.
"""

import json
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Condition, get_ident
from typing import TYPE_CHECKING, NamedTuple

from penstock.background_thread import BackgroundThread
from penstock.clock import Clock
from penstock.codec import crc32c
from penstock.errors import InvalidInput, PenstockError, QueueError
from penstock.ledger import Compactor, Ledger, Retention, seq_at_time
from penstock.ledger.compaction import CompactionResult
from penstock.ledger.folder import Folder
from penstock.ledger.segment_header import COMPACTED
from penstock.locks import Lock
from penstock.model import NS
from penstock.queue.events import Event, EventType
from penstock.queue.history import all_events
from penstock.queue.runs import Runs
from penstock.queue.schedule_table import SCHEDULE_EVENTS
from penstock.queue.state import QueueState

if TYPE_CHECKING:
    from penstock.queue.core import QueueCore

log = logging.getLogger("penstock.queue")

LONGEST_WAIT_S = 86400.0 * 365  # the longest wait of a thread
ARCHIVED_NAME = "archived.json"
_ARCHIVED_FORMAT = 1
_ARCHIVED_MAX_BYTES = 8192
MAX_ARCHIVE_BYTES = 2048  # of its location
_MAX_KEY_BYTES = 256
_MOST_LOOKS = 10  # per compaction, each ended early by a seek; the next one does the rest
_NO_MORE = object()
# Events that the snapshot includes, and that say nothing about messages which are kept.
_IN_SNAPSHOTS = frozenset([EventType.DEDUPLICATED, *SCHEDULE_EVENTS])

OnProgress = Callable[[CompactionResult], None] | None


class Compacting:
    """Run compactions of one queue, one at a time."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core
        self._running = Lock()
        self._thread = 0  # that runs a compaction
        # Held for each step of a compaction, and while a group is moved back.
        self.stepping = Lock()
        self._moves = 0

    def compact(self, on_progress: OnProgress = None, *, seals: bool = False) -> CompactionResult:
        """Compact now, or when the running compaction is over.

        With `seals`, the last segment is removed as well if no message of it is needed.
        """
        if self._thread == get_ident():
            raise QueueError("a compaction is running already, and this call comes from within it")
        with self._running:
            self._thread = get_ident()
            try:
                return self._compact(on_progress, seals)
            finally:
                self._thread = 0

    def look_again(self) -> None:
        """Make a running compaction look again: a group moves back and needs old messages.

        Caller holds the core's lock and `stepping` until the group is moved.
        """
        self._moves += 1

    def _compact(self, on_progress: OnProgress, seals: bool) -> CompactionResult:
        core, result = self._core, CompactionResult()
        core.ledger.seal_old_segments()  # sealed segments can be removed
        if seals:
            self._seal_what_is_done()
        for _ in range(_MOST_LOOKS):
            if self._remove_what_is_done(result, on_progress):
                break
        self._remove_old_events(result)
        with core.lock, core.change:
            core.forget_read_ahead()
            core.arrived()  # publishers may wait for bytes
        return result

    def _seal_what_is_done(self) -> None:
        """Seal the last segments if no message of them is needed and no retention keeps them.

        Otherwise a queue smaller than `segment_bytes` would never give back its space.
        """
        core, retention = self._core, self._retention()
        messages = core.ledger.messages
        with core.lock, core.change:
            core.tick()
            last, next_seq = messages.segments.last, messages.next_seq
            if last is None or LiveView(core.state).count(last.base_seq, next_seq):
                return
        if retention.removes_all_below(next_seq):
            messages.seal()
            core.ledger.events.seal()

    def _remove_what_is_done(self, result: CompactionResult, on_progress: OnProgress) -> bool:
        """Compact the message log. Return False if a group was moved meanwhile."""
        core = self._core
        with core.lock, core.change:
            core.tick()
            frozen = core.freeze()
            live, moves = LiveView(core.state), self._moves
        core.saver.save(*frozen)  # before anything is removed; without the lock, as it may be large
        compactor = Compactor(
            core.ledger, core.ledger.messages, live, self._retention(), core.clock
        )
        compactor.result = result
        steps = compactor.steps()
        while True:
            with self.stepping:
                if self._moves != moves:
                    return False
                if next(steps, _NO_MORE) is _NO_MORE:
                    return True
            if on_progress is not None:
                on_progress(result)

    def _retention(self) -> Retention:
        core, settings, upto_seq = self._core, self._core.settings, None
        if settings.storage.archive_required:
            root = Folder(core.ledger.messages.folder.files, core.ledger.path)
            upto_seq = archived_upto(root, core.identity)
        return Retention(
            max_age_s=settings.retention_s or None,
            max_bytes=settings.retention_bytes or None,
            max_segments=settings.storage.retention_segments or None,
            min_segments=settings.storage.retention_min_segments,
            upto_seq=upto_seq,
        )

    def _remove_old_events(self, result: CompactionResult) -> None:
        """Remove the events of removed messages, as far as the older snapshot includes them."""
        core = self._core
        ledger, snapshots = core.ledger, core.ledger.snapshot_seqs()
        if len(snapshots) < 2:
            return
        whole = [s for s in ledger.messages.segments.all if not s.header.flags & COMPACTED]
        with core.lock, core.change:
            first_whole = whole[0].base_seq if whole else ledger.messages.next_seq
            since_ns = whole[0].header.created_at_ns if whole else core.clock.now_ns()
            upto = min(snapshots[0], seq_at_time(ledger.events, since_ns))
            needed = NeededEvents(ledger, LiveView(core.state), first_whole, upto)
        events = Compactor(ledger, ledger.events, needed, Retention(), core.clock).run()
        result.bytes_freed += events.bytes_freed
        result.segments_removed += events.segments_removed
        result.segments_rewritten += events.segments_rewritten


class LiveView:
    """The messages that some group needed when the view was made.

    All messages that are published later count as needed: their segment may be sealed before the
    compaction reaches it.
    """

    def __init__(self, state: QueueState) -> None:
        self._known_upto = state.ingested_upto
        self._runs: list[Runs] = []
        others: set[int] = set()
        for group in state.groups.values():
            self._runs.append(Runs(sorted(group.waiting.fresh_pairs())))
            others.update(group.waiting.delays)
            others.update(group.leases)
            others.update(group.deliveries)
        self._others = sorted(others)

    def count(self, first_seq: int, end_seq: int) -> int:
        """Return an upper bound: a message that two groups need counts twice."""
        others = bisect_left(self._others, end_seq) - bisect_left(self._others, first_seq)
        later = max(end_seq - max(first_seq, self._known_upto), 0)
        return later + others + sum(runs.count(first_seq, end_seq) for runs in self._runs)

    def seqs(self, first_seq: int, end_seq: int) -> Iterable[int]:
        low, high = bisect_left(self._others, first_seq), bisect_left(self._others, end_seq)
        found = set(self._others[low:high])
        for runs in self._runs:
            found.update(runs.within(first_seq, end_seq))
        found.update(range(max(first_seq, self._known_upto), end_seq))
        return sorted(found)


class NeededEvents:
    """All events from `first_event`, and earlier ones about messages that are kept."""

    def __init__(self, ledger: Ledger, live: LiveView, first_kept: int, first_event: int) -> None:
        self._ledger = ledger
        self._live = live
        self._first_kept = first_kept  # all messages from here on are kept
        self._first_event = first_event
        self._found: tuple[int, int, list[int]] = (0, 0, [])  # the newest answer

    def count(self, first_seq: int, end_seq: int) -> int:
        if first_seq >= self._first_event:
            return end_seq - first_seq
        return len(self.seqs(first_seq, end_seq))

    def seqs(self, first_seq: int, end_seq: int) -> list[int]:
        if self._found[:2] != (first_seq, end_seq):
            found = [seq for seq in self._before(first_seq, end_seq) if seq < end_seq]
            found += range(max(first_seq, self._first_event), end_seq)
            self._found = (first_seq, end_seq, found)
        return self._found[2]

    def _before(self, first_seq: int, end_seq: int) -> Iterator[int]:
        end_seq = min(end_seq, self._first_event)
        for event in all_events(self._ledger, first_seq):
            if event.event_seq >= end_seq:
                return
            if self._is_needed(event):
                yield event.event_seq

    def _is_needed(self, event: Event) -> bool:
        if not event.runs:  # it names a position, or is about a group or the queue
            return event.type not in _IN_SNAPSHOTS
        return any(
            first + count > self._first_kept or self._live.count(first, first + count)
            for first, count in event.runs
        )


class BackgroundCompaction:
    """Run `compact` in a thread: when asked to, and every `interval_s` (0: no interval)."""

    def __init__(
        self, compact: Callable[[], object], name: str, *, clock: Clock, interval_s: float = 0.0
    ) -> None:
        self.compact = compact
        self._name = name
        self._clock = clock
        self._interval_ns = round(interval_s * NS)
        self._due_ns = clock.monotonic_ns() + self._interval_ns
        # Written in C: an interrupt cannot leave it taken, unlike the lock of a condition.
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._asked = False
        self._ended = False
        self._thread = BackgroundThread(self._run)
        if interval_s:
            self._thread.start()

    def ask(self) -> None:
        """Compact soon. Do not wait."""
        self._thread.start()
        with self._lock:
            self._asked = True
            self._changed.notify_all()

    def end(self) -> None:
        """Finish the running compaction, and stop."""
        with self._lock:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while self._wait():
            try:
                self.compact()
            except PenstockError as error:
                log.warning("compaction of %s in the background failed: %s", self._name, error)
            except Exception:  # a bug; the next compaction may succeed
                log.exception("compaction of %s in the background failed", self._name)

    def _wait(self) -> bool:
        """Return True when it is time to compact, False when it is time to stop."""
        with self._lock:
            while not self._ended and not self._asked:
                if not self._interval_ns:
                    self._clock.wait(self._changed, None)
                    continue
                left_ns = self._due_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    break
                self._clock.wait(self._changed, min(left_ns / NS, LONGEST_WAIT_S))
            self._asked = False
            self._due_ns = self._clock.monotonic_ns() + self._interval_ns
            return not self._ended


# -- the note of the archive job -------------------------------------------------------------------


class ArchivedNote(NamedTuple):
    """How far a queue is archived, and where."""

    upto: int = 1  # all messages below this seq are archived
    archive: str = ""  # location of the archive that was written last; empty: not known
    archived_as: str = ""  # name of the queue in that archive
    damage: str = ""  # why the note cannot be read; readers must not take that for "not archived"


def archived_upto(root: Folder, identity: int) -> int:
    """Return the seq below which all messages are archived; 1 if the note cannot be read."""
    return archived_note(root, identity).upto


def archived_note(root: Folder, identity: int) -> ArchivedNote:
    """Return what the archive job noted. If that cannot be read, nothing may be removed."""
    try:
        content = json.loads(root.read(ARCHIVED_NAME, max_bytes=_ARCHIVED_MAX_BYTES))
        checksum = content.pop("crc")
        if checksum != crc32c(_canonical(content)) or content["format"] > _ARCHIVED_FORMAT:
            raise ValueError("the checksum does not match, or a newer version wrote it")
        if content["identity"] != identity:
            raise ValueError("it is of another queue")
        where = str(content.get("archive", "")), str(content.get("archived_as", ""))
        return ArchivedNote(int(content["upto"]), *where)
    except FileNotFoundError:
        return ArchivedNote()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        damage = f"{root.file(ARCHIVED_NAME)} cannot be read ({error})"
        log.warning("%s: nothing is taken for archived until the archive job has run", damage)
        return ArchivedNote(damage=damage)


def note_archived(
    root: Folder,
    identity: int,
    upto: int,
    *,
    next_seq: int,
    archive: str = "",
    archived_as: str = "",
) -> None:
    """Note durably that all messages below a seq are archived, and where. The seq never decreases.

    Without a location, the noted one stays.
    """
    if not 1 <= upto <= next_seq:
        raise InvalidInput(
            f"cannot note seqs below {upto} as archived: the next seq to be written is {next_seq}"
        )
    if len(archive.encode()) > MAX_ARCHIVE_BYTES or len(archived_as.encode()) > _MAX_KEY_BYTES:
        raise InvalidInput(
            f"the location of the archive has {len(archive.encode())} bytes, and the maximum is "
            f"{MAX_ARCHIVE_BYTES}"
        )
    before = archived_note(root, identity)
    where = (archive, archived_as) if archive else before[1:3]
    made = ArchivedNote(max(upto, before.upto), *where)
    if made == before:
        return
    content: dict[str, int | str] = {"format": _ARCHIVED_FORMAT, "identity": identity}
    content["upto"] = made.upto
    if made.archive:
        content |= {"archive": made.archive, "archived_as": made.archived_as}
    root.replace(
        ARCHIVED_NAME, json.dumps({**content, "crc": crc32c(_canonical(content))}).encode() + b"\n"
    )


def _canonical(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
