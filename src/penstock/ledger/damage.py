"""Damage: reports of it, and copies of the damaged bytes."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.ledger.folder import Folder

log = logging.getLogger("penstock.ledger")

QUARANTINE = "quarantine"
REMEMBERED_DAMAGES = 1000


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of bytes that differs from what was written."""

    file: str  # relative to the queue's directory
    offset: int
    length: int
    first_lost_seq: int  # the seqs that are missing because of it; first > last: none
    last_lost_seq: int
    reason: str
    torn: bool = False  # an unfinished write at the end of a log, which a crash may leave

    @property
    def lost(self) -> int:
        """The number of seqs that are missing because of it."""
        return max(self.last_lost_seq - self.first_lost_seq + 1, 0)

    def __str__(self) -> str:
        what = "unfinished write" if self.torn else "damage"
        if self.lost:
            seqs = f"seq {self.first_lost_seq} to {self.last_lost_seq} lost"
        elif self.torn:
            what, seqs = f"{what} cut off", f"next seq is {self.first_lost_seq}"
        else:
            seqs = "no seq lost"
        return (
            f"{what}: {self.file} offset {self.offset}, {self.length} bytes, {seqs}: {self.reason}"
        )


DamageListener = Callable[[Damage], None]


class DamageReporter:
    """Reports each damage once: keeps a copy of the bytes, logs it, calls the listener."""

    def __init__(self, root: Folder, listener: DamageListener | None, *, keep_bytes: bool) -> None:
        self._root = root
        self._listener = listener
        self._keep_bytes = keep_bytes
        self._seen: set[tuple[str, int, int, int]] = set()
        self.found: list[Damage] = []

    def report(self, damage: Damage, data: bytes | memoryview = b"") -> None:
        where = (damage.file, damage.offset, damage.first_lost_seq, damage.last_lost_seq)
        if where in self._seen and not damage.torn:
            return
        if len(self.found) < REMEMBERED_DAMAGES:
            self._seen.add(where)
            self.found.append(damage)
        if self._keep_bytes and not damage.torn:
            self._quarantine(damage, data)
        log.warning("damage %s", damage, extra={"damage": damage})
        if self._listener is not None:
            self._listener(damage)

    def report_missing(self, log: str, damage: Damage) -> None:
        """Report seqs that a log lacks, unless that was reported before."""
        for known in self.found:
            if (
                known.file.startswith(log)
                and known.first_lost_seq <= damage.first_lost_seq
                and known.last_lost_seq >= damage.last_lost_seq
            ):
                return
        self.report(damage)

    def set_aside(self, damage: Damage, folder: Folder, name: str) -> None:
        """Report a file that does not belong where it is, and move it to quarantine."""
        self.report(damage)
        if not self._keep_bytes:
            return
        quarantine = self._made_quarantine()
        folder.files.rename(folder.file(name), quarantine.file(_plain(damage.file)))
        quarantine.sync()
        folder.sync()

    def _made_quarantine(self) -> Folder:
        folder = self._root.child(QUARANTINE)
        if not folder.exists():
            folder.make()
            self._root.sync()
        return folder

    def _quarantine(self, damage: Damage, data: bytes | memoryview) -> None:
        if not data:
            return
        name = f"{_plain(damage.file)}-{damage.offset}.bin"
        try:
            folder = self._made_quarantine()
            if not folder.has(name):
                folder.replace(name, bytes(data))
        except OSError as error:
            # The copy is for people; the original bytes stay where they are.
            log.warning("could not keep a copy of the damaged bytes: %s", error)


def _plain(path: str) -> str:
    return path.replace("/", "-")
