"""Progress: how far the consumer of a leased message says it is.

It is on record as the event that extends the lease, so it survives a restart. The last one is known
as long as that lease lasts.
"""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.checking import check_number
from penstock.errors import InvalidInput
from penstock.model import NS
from penstock.queue.delivery import Lease
from penstock.queue.events import Event, as_written

MAX_NOTE_CHARS = 500  # a longer note is cut
_PPM = 1_000_000
_SPARE = 64  # entries of leases that ended, before they are removed


class Said(NamedTuple):
    """What a consumer said: a share of the work in millionths, and a note."""

    progress_ppm: int
    note: str


class Progress(NamedTuple):
    """What was said last in one lease."""

    nonce: int  # of the lease, with the number of the attempt
    attempt: int
    progress_ppm: int
    note: str
    at_ns: int

    @property
    def sentence(self) -> str:
        """Return it as words: 40% done (resizing)."""
        note = f" ({self.note})" if self.note else ""
        return f"{self.progress_ppm / 10_000:.4g}% done{note}"

    @property
    def details(self) -> dict[str, object]:
        return {
            "progress": self.progress_ppm / _PPM,
            "note": self.note,
            "progress_at": self.at_ns / NS,
        }


def check_progress(progress: float | None, note: str) -> Said | None:
    """Return what a consumer says, checked; None if it says nothing."""
    note = as_written("note", note)[:MAX_NOTE_CHARS]
    if progress is None:
        if note:
            raise InvalidInput("a note needs progress: a share of the work from 0 to 1")
        return None
    return Said(round(check_number("progress", progress, 0, 1) * _PPM), note)


class ProgressTable:
    """The progress of the leased messages of a group."""

    def __init__(self) -> None:
        self._said: dict[int, Progress] = {}

    @property
    def size(self) -> int:
        """Return the number of entries, those of ended leases included."""
        return len(self._said)

    def note(self, seq: int, event: Event, leases: Mapping[int, Lease]) -> None:
        """Remember what was said of a leased message. Forget leases that have ended, sometimes."""
        lease = leases[seq]
        self._said[seq] = Progress(
            lease.nonce, lease.attempt, event.progress_ppm, event.reason, event.timestamp_ns
        )
        if len(self._said) > 2 * len(leases) + _SPARE:
            self._said = dict(self.items(leases))

    def of(self, seq: int, lease: Lease) -> Progress | None:
        """Return what was said last in this lease."""
        said = self._said.get(seq)
        if said is None or (said.nonce, said.attempt) != (lease.nonce, lease.attempt):
            return None
        return said

    def items(self, leases: Mapping[int, Lease]) -> list[tuple[int, Progress]]:
        """Return what was said of messages that are still leased, in a fixed order."""
        return [
            (seq, said)
            for seq, said in sorted(self._said.items())
            if seq in leases and self.of(seq, leases[seq]) is not None
        ]

    def load(self, items: list[tuple[int, Progress]]) -> None:
        self._said = dict(items)
