"""A queue's directory for a test: opened, reopened, and left as a dead process leaves it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.clock import ManualClock
from penstock.codec import Draft, Entry
from penstock.ledger import Cursor, Damage, Ledger, LedgerSettings
from penstock.ledger.files import Files
from penstock.ledger.log import Log
from penstock.ledger.segment_header import segment_name

EVENT = 16  # the first number for event types

# Small segments and steps, so that a short test rotates and grows; no timer that could fire.
SMALL = LedgerSettings(
    sync="never",
    sync_interval_s=3600,
    segment_bytes=4096,
    first_step_bytes=1024,
    largest_step_bytes=4096,
    max_entry_bytes=1 << 20,
    min_free_bytes=0,
    reserve_bytes=0,
)

# Every way in which bytes get into a file.
MODES = {
    "always": replace(SMALL, sync="always"),
    "interval, mapped": replace(SMALL, sync="interval"),
    "interval, write": replace(SMALL, sync="interval", mapped=False),
    "batch, mapped": replace(SMALL, sync="batch", sync_batch=7),
    "batch, write": replace(SMALL, sync="batch", sync_batch=7, mapped=False),
    "never, mapped": replace(SMALL, sync="never"),
    "never, write": replace(SMALL, sync="never", mapped=False),
}


class Store:
    """One directory, its settings and its clock; at most one writer at a time."""

    def __init__(
        self, path: Path, settings: LedgerSettings = SMALL, *, files: Files | None = None
    ) -> None:
        self.path = path
        self.settings = settings
        self.files = files
        self.clock = ManualClock()
        self.damage: list[Damage] = []  # what was reported, over all openings
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        """The open writer; opened when first asked for."""
        return self._ledger or self.open()

    @property
    def messages(self) -> Log:
        return self.ledger.messages

    @property
    def events(self) -> Log:
        return self.ledger.events

    def open(self, settings: LedgerSettings | None = None, **options: Any) -> Ledger:
        """Open as the writer; other settings stay for the next time."""
        self.settings = settings or self.settings
        self._ledger = Ledger.open(
            str(self.path),
            self.settings,
            files=self.files,
            clock=self.clock,
            on_damage=self.damage.append,
            **options,
        )
        return self._ledger

    def look(self) -> Ledger:
        """Open for reading, beside whoever writes."""
        return Ledger.open(
            str(self.path),
            self.settings,
            files=self.files,
            clock=self.clock,
            read_only=True,
            on_damage=self.damage.append,
        )

    def close(self) -> None:
        if self._ledger is not None:
            ledger, self._ledger = self._ledger, None
            ledger.close()

    def reopen(self, settings: LedgerSettings | None = None) -> Ledger:
        self.close()
        return self.open(settings)

    def die(self) -> None:
        """What the kernel does for a killed process: the files are closed, nothing is written."""
        ledger, self._ledger = self.ledger, None
        ledger.abandon()

    def forget(self) -> None:
        """Let the next use open the directory again: the ledger was closed by other means."""
        self._ledger = None

    def reopen_after_death(self, settings: LedgerSettings | None = None) -> Ledger:
        self.die()
        return self.open(settings)

    def file(self, name: str) -> Path:
        return self.path / name

    def segment(self, base_seq: int, *, log: str = "messages") -> Path:
        return self.path / log / segment_name(base_seq)

    def segments(self, log: str = "messages") -> list[Path]:
        return sorted((self.path / log).glob("*.log"))

    def fill(self, count: int, size: int = 100) -> list[bytes]:
        """Append messages that are like no other, and commit them."""
        payloads = [payload_of(self.messages.next_seq + n, size) for n in range(count)]
        for payload in payloads:
            self.messages.append(payload)
        self.ledger.commit()
        return payloads


def payload_of(seq: int, size: int = 100) -> bytes:
    """The payload that `fill` gives to that seq."""
    return (b"%d " % seq).ljust(size, b".")


def all_entries(log: Log, seq: int = 1, *, at_once: int = 100) -> Iterator[Entry]:
    """The entries from a seq on, in order."""
    cursor = Cursor(log, seq)
    while entries := cursor.read(at_once):
        yield from entries


def payloads(log: Log, seq: int = 1) -> list[bytes]:
    return [entry.payload for entry in all_entries(log, seq)]


def seqs(log: Log, seq: int = 1) -> list[int]:
    return [entry.seq for entry in all_entries(log, seq)]


def full_draft(payload: bytes) -> Draft:
    """A message that uses every option there is."""
    return Draft(
        payload,
        priority=9,
        expires_at_ns=1 << 61,
        deliver_at_ns=1 << 60,
        key="schlüssel".encode(),
        headers={"content-type": "text/plain", "größe": "groß"},
        attributes={1: b"once", 200: b""},
        compression=1,
    )
