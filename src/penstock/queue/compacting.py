"""Giving disk space back, beside traffic: messages that no group needs, and old events."""

from collections.abc import Callable
from dataclasses import replace
from threading import Lock, get_ident

from penstock.errors import QueueError
from penstock.ledger import Compactor, Retention, seq_at_time
from penstock.ledger.compaction import CompactionResult
from penstock.ledger.folder import Folder
from penstock.ledger.segment_header import COMPACTED
from penstock.queue.archived import archived_upto
from penstock.queue.core import QueueCore
from penstock.queue.live import LiveView, NeededEvents

_MOST_LOOKS = 10  # of one compaction, each broken off by a seek; the next one does the rest
_NO_MORE = object()

OnProgress = Callable[[CompactionResult], None] | None


class Compacting:
    """Compactions of one queue, one after the other."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._running = Lock()
        self._thread = 0  # that runs one
        # Held by a compaction for each of its steps, and by whoever moves a group back.
        self.stepping = Lock()
        self._moves = 0

    def compact(self, on_progress: OnProgress = None, *, seals: bool) -> CompactionResult:
        """Compact now, or when the one that runs already is over.

        With `seals`, the last segment goes as well if nothing of it is needed.
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
        """A group is made to need messages that it was done with: a compaction that runs beside it
        looks again at what may go. Hold the core's lock and `stepping`, until it is done."""
        self._moves += 1

    def _compact(self, on_progress: OnProgress, seals: bool) -> CompactionResult:
        core, result = self._core, CompactionResult()
        core.ledger.seal_old_segments()  # what is sealed can go
        if seals:
            self._seal_what_is_done()
        for _ in range(_MOST_LOOKS):
            if self._remove_what_is_done(result, on_progress):
                break
        self._remove_old_events(result)
        with core.lock, core.change:
            core.reader.forget()
            core.messages.forget()
            core.arrived()  # some may wait for bytes
        return result

    def _seal_what_is_done(self) -> None:
        """Seal the last segments if no message of them is needed, and no retention keeps them.

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
        """Compact the message log; False: a group was moved meanwhile, so look again."""
        core = self._core
        with core.lock, core.change:
            core.tick()
            frozen = core.freeze()
            live, moves = LiveView(core.state), self._moves
        core.saver.save(*frozen)  # before anything goes; without the lock, as it may be large
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
        core = self._core
        retention = core.settings.retention()
        if not core.settings.archive_required:
            return retention
        root = Folder(core.ledger.messages.folder.files, core.ledger.path)
        return replace(retention, upto_seq=archived_upto(root, core.identity))

    def _remove_old_events(self, result: CompactionResult) -> None:
        """Events below the older snapshot are only history; they go with their messages."""
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
