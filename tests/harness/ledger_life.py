"""A ledger that lives over recorded files and marks in their journal what it was answered."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from penstock.clock import ManualClock
from penstock.codec import Draft
from penstock.errors import PenstockError
from penstock.ledger.compaction import Compactor, Retention
from penstock.ledger.files import Files
from penstock.ledger.ledger import Ledger
from penstock.ledger.reading import Cursor
from penstock.ledger.settings import LedgerSettings, SyncPolicy
from penstock.torture.damage_store import Live
from tests.harness.journal import RecordedFiles
from tests.harness.ledger_oracle import (
    Answered,
    Attempted,
    Opened,
    Removed,
    Removing,
    Shown,
    SnapshotAttempted,
    SnapshotSaved,
    Synced,
    contents_of,
)

PATH = "/queue"
EVENT = 16  # the first number for event types

# Small segments and small steps: many rotations in a short life, and files that are quick to copy.
SMALL = LedgerSettings(
    sync="always",
    segment_bytes=640,
    first_step_bytes=256,
    largest_step_bytes=512,
    max_entry_bytes=4096,
    min_free_bytes=0,
    reserve_bytes=0,
)


def small(sync: SyncPolicy, *, mapped: bool = True) -> LedgerSettings:
    return replace(SMALL, sync=sync, mapped=mapped)


def open_ledger(
    files: Files, settings: LedgerSettings = SMALL, clock: ManualClock | None = None
) -> Ledger:
    """Open the ledger of a crash test: no threads, and a clock that stands still."""
    return Ledger.open(
        PATH, settings, files=files, clock=clock or ManualClock(), on_dirty=lambda: None
    )


class LedgerLife:
    """What a life does, each step marked before and after.

    `files` is what the ledger uses; it may be wrapped around the recorded ones.
    """

    def __init__(
        self,
        recorded: RecordedFiles,
        settings: LedgerSettings,
        *,
        seed: str,
        files: Files | None = None,
        opened: bool = True,
    ) -> None:
        self.recorded = recorded
        self.settings = settings
        self.random = Random(seed)
        self.clock = ManualClock()
        self._files = files or recorded
        self._number = 0
        self.ledger: Ledger
        self.is_open = False
        if opened:
            self.open()

    def open(self) -> None:
        self.ledger = open_ledger(self._files, self.settings, self.clock)
        try:
            contents = contents_of(self.ledger)
        except PenstockError:
            self.ledger.close()
            raise
        self.is_open = True
        self.recorded.mark(Opened(contents))

    def close(self) -> None:
        self.is_open = False
        self.ledger.close()
        self.recorded.mark(Synced())

    def give_up(self) -> None:
        """Close a ledger that has stopped, and can promise nothing more."""
        self.is_open = False
        self.ledger.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    # -- writing -------------------------------------------------------------------------------

    def publish(self, *drafts: Draft) -> None:
        self._append("messages", drafts or (self.draft(),))

    def publish_batch(self, count: int) -> None:
        self._append("messages", tuple(self.draft() for _ in range(count)))

    def note(self, count: int = 1) -> None:
        """Append events."""
        self._append("events", tuple(Draft(self.payload(), type=EVENT) for _ in range(count)))

    def draft(self, size: int | None = None) -> Draft:
        """A message that is like no other; some of them with options."""
        payload = self.payload(size)
        if self.random.random() < 0.6:
            return Draft(payload)
        return Draft(
            payload,
            priority=self.random.randint(0, 9),
            key=self.random.choice((None, b"key")),
            headers=self.random.choice((None, {"name": "value"})),
            deliver_at_ns=self.random.choice((0, 1 << 60)),
            attributes=self.random.choice((None, {1: b"once"})),
        )

    def payload(self, size: int | None = None) -> bytes:
        self._number += 1
        if size is None:
            size = self.random.choice((0, 1, 20, 20, 60, 150))
        return b"%04d" % self._number + b"." * size

    def _append(self, name: str, drafts: tuple[Draft, ...]) -> None:
        self.clock.advance(self.random.choice((0, 0.5)))
        log = self.ledger.messages if name == "messages" else self.ledger.events
        first_seq = log.next_seq
        self.recorded.mark(Attempted(name, first_seq, drafts))
        if len(drafts) > 1:
            seq = log.append_batch(drafts)
        elif drafts[0] == Draft(drafts[0].payload):
            seq = log.append(drafts[0].payload)
        else:
            seq = log.append_draft(drafts[0])
        assert seq == first_seq
        durable = self.settings.sync == "always"
        if self.random.random() < 0.3:
            shown = tuple(entry.seq for entry in Cursor(log, first_seq).read(len(drafts)))
            self.recorded.mark(Shown(name, shown, durable))
        self.ledger.commit()
        self.recorded.mark(Answered(name, durable))

    # -- all the rest --------------------------------------------------------------------------

    def sync(self) -> None:
        self.ledger.sync()
        self.recorded.mark(Synced())

    def rest(self) -> None:
        self.ledger.rest()
        self.recorded.mark(Synced())

    def snapshot(self) -> None:
        """A snapshot of all events so far, after which they are needed no more."""
        event_seq = self.ledger.events.next_seq - 1
        blob = self.payload(300)
        self.recorded.mark(SnapshotAttempted(event_seq, blob))
        self.ledger.save_snapshot(event_seq, blob)
        self.recorded.mark(SnapshotSaved(event_seq))

    def compact(self, name: str, *, keep: Callable[[int], bool], rewrite_below: float) -> None:
        """Let compaction remove what `keep` does not want."""
        log = self.ledger.messages if name == "messages" else self.ledger.events
        seqs = range(log.first_seq, log.next_seq)
        kept = frozenset(seq for seq in seqs if keep(seq))
        if rewrite_below:
            self.recorded.mark(Removing(name, dead=frozenset(seqs) - kept))
        else:
            self.recorded.mark(Removing(name, low=min(kept, default=log.next_seq)))
        retention = Retention(rewrite_below=rewrite_below)
        result = Compactor(self.ledger, log, Live(kept), retention, self.clock).run()
        self.recorded.mark(Removed(name, result.removed_below_seq))

    def forget_events(self) -> None:
        """Remove the event segments that lie wholly below the newest snapshot."""
        snapshot = self.ledger.load_snapshot()
        upto = snapshot.event_seq if snapshot else 0
        self.compact("events", keep=lambda seq: seq > upto, rewrite_below=0)
