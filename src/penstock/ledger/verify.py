"""Verify a queue: read everything and report damage. Change nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.clock import Clock
from penstock.codec.layout import TOMBSTONE
from penstock.errors import EntryGone, PenstockError
from penstock.ledger.damage import Damage
from penstock.ledger.files import Files
from penstock.ledger.ledger import Ledger
from penstock.ledger.log import Log
from penstock.ledger.reading import next_seq_after
from penstock.ledger.segment import Segment
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.snapshots import snapshot_name

_CHUNK_ENTRIES = 2000
_LOOKS = 10  # at a directory that a writer changes

Progress = Callable[[int, int], None]  # bytes read so far, bytes in all


@dataclass(slots=True)
class VerifyReport:
    """The result of a verification."""

    entries: int = 0
    bytes_read: int = 0
    segments: int = 0
    snapshots: int = 0
    problems: list[Damage] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify(
    path: str,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    settings: LedgerSettings | None = None,
    on_progress: Progress | None = None,
    fold: Callable[[Ledger], object] | None = None,
) -> VerifyReport:
    """Read every entry of a queue's directory again; a writer may be at work in it.

    `fold` lets the layer above read it too, and report what only it can know to be missing.
    """
    for _ in range(_LOOKS):
        try:
            return _verify(path, files, clock, settings, on_progress, fold)
        except EntryGone:
            pass  # a writer beside us removed what `fold` needs
    return _verify(path, files, clock, settings, on_progress, fold)


def _verify(
    path: str,
    files: Files | None,
    clock: Clock | None,
    settings: LedgerSettings | None,
    on_progress: Progress | None,
    fold: Callable[[Ledger], object] | None,
) -> VerifyReport:
    report = VerifyReport()
    ledger = Ledger.open(
        path,
        settings,
        files=files,
        clock=clock,
        read_only=True,
        on_damage=report.problems.append,
    )
    with ledger:
        if fold is not None:
            fold(ledger)
        logs = [("messages", ledger.messages), ("events", ledger.events)]
        total = sum(segment.end for _, log in logs for segment in log.segments.all)
        for label, log in logs:
            _verify_log(log, label, report, lambda done: _tell(on_progress, done, total))
        report.snapshots = verify_snapshots(ledger)
    return report


def verify_snapshots(ledger: Ledger) -> int:
    """Read every snapshot, and report those that are damaged. Return how many there are."""
    seqs = ledger.snapshot_seqs()
    for seq in seqs:
        try:
            ledger.read_snapshot(seq)
        except FileNotFoundError:
            continue  # a writer has replaced it by a newer one
        except (ValueError, OSError) as error:
            ledger.report(Damage(f"snapshots/{snapshot_name(seq)}", 0, 0, 1, 0, str(error)))
    return len(seqs)


def _tell(on_progress: Progress | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(done, total)


def _verify_log(
    log: Log, label: str, report: VerifyReport, on_bytes: Callable[[int], None]
) -> None:
    expected_seq = log.first_seq
    for segment in log.segments.all:
        expected_seq = _verify_segment(log, label, segment, expected_seq, report, on_bytes)
        report.segments += 1


def _verify_segment(
    log: Log,
    label: str,
    segment: Segment,
    expected_seq: int,
    report: VerifyReport,
    on_bytes: Callable[[int], None],
) -> int:
    """Read one segment; return the seq that must come next."""
    file = f"{label}/{segment.name}"
    if segment.base_seq > expected_seq:
        reason = "a gap: the segment before does not reach to this one"
        report.problems.append(Damage(file, 0, 0, expected_seq, segment.base_seq - 1, reason))
    expected_seq = segment.base_seq
    offset = HEADER_BYTES
    log.segments.used(segment)
    while True:
        try:
            entries, after = segment.read(offset, _CHUNK_ENTRIES)
        except PenstockError as error:
            report.problems.append(
                Damage(file, offset, 0, expected_seq, expected_seq - 1, str(error))
            )
            return expected_seq
        if not entries:
            return max(expected_seq, _end_seq_behind_damage(report, file, expected_seq))
        for entry in entries:
            if entry.seq > expected_seq:
                go_on = segment.skip_gap(entry.offset, expected_seq)  # reports it, if it is news
                if go_on != entry.offset:
                    after = go_on
                    break
            if entry.seq < expected_seq:
                reason = "an entry that was there already"
                report.problems.append(
                    Damage(file, entry.offset, entry.size, entry.seq, entry.seq - 1, reason)
                )
                continue
            expected_seq = next_seq_after(entry)
            report.entries += entry.type != TOMBSTONE
        report.bytes_read += max(after - offset, 0)
        offset = after
        on_bytes(report.bytes_read)


def _end_seq_behind_damage(report: VerifyReport, file: str, expected_seq: int) -> int:
    """Damage at the end of a segment already accounts for the seqs up to the next one."""
    return max(
        (p.last_lost_seq + 1 for p in report.problems if p.file == file), default=expected_seq
    )
