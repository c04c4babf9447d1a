"""What must be true of a ledger after a crash, whatever the crash left.

A life marks in its journal what it tried and what it was answered. From the marks before a crash
follows what must be there, what may be there, and what must not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.codec import Draft, Entry
from penstock.ledger.damage import Damage
from penstock.ledger.ledger import Ledger
from penstock.ledger.log import Log
from penstock.ledger.reading import Cursor
from penstock.ledger.snapshots import Snapshot

LOGS = ("messages", "events")

Contents = Mapping[str, Mapping[int, Draft]]  # by log: what stands under which seq

# -- marks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attempted:
    """Entries are being appended together; the first will have this seq."""

    log: str
    first_seq: int
    drafts: tuple[Draft, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """The last attempt on a log was answered."""

    log: str
    durable: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """A reader was shown these: with a policy that waits for the disk, they must stay."""

    log: str
    seqs: tuple[int, ...]
    durable: bool


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything answered so far is on disk."""


@dataclass(frozen=True, slots=True)
class Removing:
    """Entries are being removed and may be gone: those below `low` from the first on, or `dead`."""

    log: str
    low: int = 0
    dead: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Removed:
    """Everything below `low` is gone for good."""

    log: str
    low: int


@dataclass(frozen=True, slots=True)
class SnapshotAttempted:
    event_seq: int
    blob: bytes


@dataclass(frozen=True, slots=True)
class SnapshotSaved:
    event_seq: int


@dataclass(frozen=True, slots=True)
class PowerFailed:
    """What was answered but not synced may be gone."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The ledger was opened and showed this: all of it has been seen, and is durable."""

    contents: Contents


# -- what follows from them ------------------------------------------------------------------------


@dataclass(slots=True)
class LogPromise:
    """Of one log."""

    possible: dict[int, Draft] = field(default_factory=dict)  # the last attempt under each seq
    answered: set[int] = field(default_factory=set)
    durable: set[int] = field(default_factory=set)
    together: list[range] = field(default_factory=list)  # the batches
    given_out: int = 0  # the highest seq that must not be used again
    low: int = 0  # below it entries may be gone
    low_for_good: int = 0  # below it entries must be gone
    dead: set[int] = field(default_factory=set)  # these may be gone as well
    last: range = range(0)

    def may_be_gone(self, seq: int) -> bool:
        return seq < self.low or seq in self.dead


class Promise:
    """Everything that the marks of a life promise."""

    def __init__(self, marks: Iterable[Any]) -> None:
        self.logs = {log: LogPromise() for log in LOGS}
        self.snapshots: dict[int, list[bytes]] = {}  # the saved one, or the attempted ones
        self.snapshot_saved = 0
        for mark in marks:
            self._take(mark)

    def _take(self, mark: Any) -> None:
        match mark:
            case Attempted(log, first_seq, drafts):
                self._attempted(self.logs[log], first_seq, drafts)
            case Answered(log, durable):
                promise = self.logs[log]
                promise.answered.update(promise.last)
                if durable:
                    self._durable(promise)
            case Shown(log, seqs, durable):
                promise = self.logs[log]
                promise.answered.update(seqs)
                if durable:
                    self._durable(promise)
            case Synced():
                for promise in self.logs.values():
                    self._durable(promise)
            case Removing(log, low, dead):
                self.logs[log].low = max(self.logs[log].low, low)
                self.logs[log].dead |= dead
            case Removed(log, low):
                self.logs[log].low_for_good = max(self.logs[log].low_for_good, low)
            case SnapshotAttempted(event_seq, blob):
                self.snapshots.setdefault(event_seq, []).append(blob)
            case SnapshotSaved(event_seq):
                self.snapshot_saved = event_seq
                del self.snapshots[event_seq][:-1]
            case PowerFailed():
                for promise in self.logs.values():
                    promise.answered = set(promise.durable)
            case Opened(contents):
                for log, promise in self.logs.items():
                    self._opened(promise, contents[log])

    def _attempted(self, promise: LogPromise, first_seq: int, drafts: tuple[Draft, ...]) -> None:
        for seq in promise.last:
            if seq >= first_seq:  # the attempt before was refused: nothing of it was written
                del promise.possible[seq]
        promise.together = [batch for batch in promise.together if batch[0] < first_seq]
        promise.last = range(first_seq, first_seq + len(drafts))
        promise.possible.update(zip(promise.last, drafts, strict=True))
        if len(drafts) > 1:
            promise.together.append(promise.last)

    def _durable(self, promise: LogPromise) -> None:
        promise.durable |= promise.answered
        promise.given_out = max(promise.given_out, max(promise.durable, default=0))

    def _opened(self, promise: LogPromise, contents: Mapping[int, Draft]) -> None:
        """What an opened ledger did not show is gone, and must not come back."""
        promise.possible = dict(contents)
        promise.answered = set(contents)
        promise.durable = set()
        promise.together = [batch for batch in promise.together if batch[0] in contents]
        promise.last = range(0)
        self._durable(promise)


# -- looking ---------------------------------------------------------------------------------------


def draft_of(entry: Entry) -> Draft:
    """What was given to be written, from what was read."""
    return Draft(
        payload=entry.payload,
        type=entry.type,
        priority=entry.priority,
        expires_at_ns=entry.expires_at_ns,
        deliver_at_ns=entry.deliver_at_ns,
        key=entry.key,
        headers=entry.headers,
        attributes=entry.attributes,
        compression=entry.compression,
    )


def read_log(log: Log) -> dict[int, Draft]:
    """All entries of a log by seq, read in order."""
    found: dict[int, Draft] = {}
    cursor = Cursor(log, 1)
    last_seq = last_timestamp_ns = 0
    while entries := cursor.read(100):
        for entry in entries:
            assert entry.seq > last_seq, f"seq {entry.seq} after {last_seq}"
            assert entry.timestamp_ns >= last_timestamp_ns, f"time goes back at seq {entry.seq}"
            last_seq, last_timestamp_ns = entry.seq, entry.timestamp_ns
            found[entry.seq] = draft_of(entry)
    return found


def contents_of(ledger: Ledger) -> dict[str, dict[int, Draft]]:
    return {"messages": read_log(ledger.messages), "events": read_log(ledger.events)}


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that an opened ledger shows."""

    contents: Contents
    next_seqs: Mapping[str, int]
    damage: tuple[Damage, ...]
    snapshot: Snapshot | None


def observe(ledger: Ledger) -> Observed:
    contents = contents_of(ledger)
    return Observed(
        contents,
        {"messages": ledger.messages.next_seq, "events": ledger.events.next_seq},
        tuple(each for each in ledger.damage if not each.torn),
        ledger.load_snapshot(),
    )


def check(observed: Observed, promise: Promise, *, power_failed: bool) -> None:
    """Raise AssertionError where a promise is broken."""
    assert not observed.damage, f"a crash was taken for damage: {observed.damage[0]}"
    contents, next_seqs = observed.contents, observed.next_seqs
    for log in LOGS:
        _check_log(log, contents[log], next_seqs[log], promise.logs[log], power_failed=power_failed)
    covered = _check_snapshot(observed.snapshot, promise)
    for seq in promise.logs["events"].durable:
        # An event may only be forgotten for a snapshot that knows it.
        assert seq in contents["events"] or seq <= covered, (
            f"event {seq} is gone, and the newest snapshot knows events up to {covered}"
        )


def _check_log(
    log: str,
    found: Mapping[int, Draft],
    next_seq: int,
    promise: LogPromise,
    *,
    power_failed: bool,
) -> None:
    required = promise.durable if power_failed else promise.answered
    top = max(found, default=0)
    for seq in sorted(promise.answered):
        # What is not required may only be missing from the end on.
        if (seq in required or seq < top) and not promise.may_be_gone(seq):
            assert seq in found, f"{log}: seq {seq} was answered and is lost"
    for seq, draft in found.items():
        assert seq in promise.possible, f"{log}: seq {seq} came from nowhere: {draft}"
        assert draft == promise.possible[seq], f"{log}: seq {seq} has another content"
        assert seq >= promise.low_for_good, f"{log}: seq {seq} was removed and is back"
    for batch in promise.together:
        there = [seq in found for seq in batch if not promise.may_be_gone(seq)]
        assert all(there) or not any(there), f"{log}: half a batch, seqs {batch}"
    bottom = min(found, default=next_seq)
    for seq in required:
        # Removal is from the first on: unlinks may reach the disk in any order, but must not show.
        if bottom < seq < promise.low and seq not in promise.dead:
            assert seq in found, f"{log}: seq {bottom} is there, {seq} behind it is gone"
    highest = max(top, promise.given_out, 0 if power_failed else max(required, default=0))
    assert next_seq > highest, f"{log}: next is {next_seq}, but {highest} was given out"


def _check_snapshot(snapshot: Snapshot | None, promise: Promise) -> int:
    """The event up to which the newest snapshot knows everything."""
    found = snapshot.event_seq if snapshot is not None else 0
    assert found >= promise.snapshot_saved, (
        f"the snapshot of event {promise.snapshot_saved} is lost; the newest is {found}"
    )
    if snapshot is not None:
        assert snapshot.blob in promise.snapshots[found], f"snapshot {found} has another content"
    return found
