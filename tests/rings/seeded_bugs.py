"""Bugs to put into a sound ledger, each a mistake that storage engines have really made.

Most sit in the files: a sync that is left out, a name that is not made durable. The others replace
one decision of the ledger. Each names the lives and policies in which it must come to light.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from penstock.ledger import compaction
from penstock.ledger.files import Files, Mapping, OpenMode
from penstock.ledger.json_files import CLOSED_NAME, Closed, Marks
from penstock.ledger.ledger import Ledger
from penstock.ledger.log import Log
from penstock.ledger.recovery import Examination
from penstock.ledger.segment_header import SegmentHeader
from penstock.ledger.tail import Tail, TailMaker
from tests.harness.faults import FaultyFiles
from tests.rings.crash_ring import Wrap


@dataclass(frozen=True, slots=True)
class SeededBug:
    lives: Sequence[tuple[str, str]]  # (policy, life)
    wrap: Wrap = lambda files: files
    patch: Callable[[pytest.MonkeyPatch], None] = lambda monkeypatch: None


# -- in the files ----------------------------------------------------------------------------------


class _Careless(FaultyFiles):
    """Files that leave out a sync."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.last_change: dict[str, str] = {}  # by directory

    def open(self, path: str, mode: OpenMode) -> int:
        fd = super().open(path, mode)
        if mode == "create":
            self._note(path, "create")
        return fd

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._note(target, "rename")

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._note(path, "unlink")

    def make_directory(self, path: str) -> None:
        super().make_directory(path)
        self._note(path, "make_directory")

    def _note(self, path: str, change: str) -> None:
        self.last_change[path.rpartition("/")[0] or "/"] = change


class _NeverSyncs(_Careless):
    suffix = ""

    def fdatasync(self, fd: int) -> None:
        if not self._path_of[fd].endswith(self.suffix):
            super().fdatasync(fd)


class _NeverSyncsSegments(_NeverSyncs):
    suffix = ".log"


class _NeverSyncsTemporaries(_NeverSyncs):
    suffix = ".tmp"


class _NeverSyncsDirectoryAfter(_Careless):
    change = ""

    def sync_directory(self, path: str) -> None:
        if self.last_change.get(path) != self.change:
            super().sync_directory(path)


class _NeverCutsSegments(_Careless):
    def truncate(self, fd: int, size: int) -> None:
        if not self._path_of[fd].endswith(".log"):
            super().truncate(fd, size)


class _NeverSyncsWhatRecoveryRead(_Careless):
    """Where the ledger maps what it writes, recovery is who opens a segment without mapping it."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._found: set[int] = set()  # handles of segments that were there before

    def open(self, path: str, mode: OpenMode) -> int:
        fd = super().open(path, mode)
        if mode == "write" and path.endswith(".log"):
            self._found.add(fd)
        return fd

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        self._found.discard(fd)
        return super().map(fd, size, writable=writable)

    def fdatasync(self, fd: int) -> None:
        if fd not in self._found:
            super().fdatasync(fd)


class _AfterCreate(_NeverSyncsDirectoryAfter):
    change = "create"


class _AfterRename(_NeverSyncsDirectoryAfter):
    change = "rename"


class _AfterMakingADirectory(_NeverSyncsDirectoryAfter):
    change = "make_directory"


# -- in the ledger ---------------------------------------------------------------------------------


def _saves_no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "save_marks", lambda self, log, marks: None)


def _forgets_the_next_seq(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next seq is neither saved with the mark, nor taken from the name of the last segment."""
    examine = Examination.__init__

    def from_entries_only(self: Examination, *arguments: Any) -> None:
        examine(self, *arguments)
        self.next_seq = 1

    monkeypatch.setattr(Examination, "__init__", from_entries_only)
    monkeypatch.setattr(compaction, "Marks", lambda **marks: Marks(low=marks["low"]))


def _answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "commit", lambda self: None)


def _shows_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "readable_next_seq", property(lambda self: self.next_seq))


def _passes_over_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is whole behind a bad entry counts, as if the bad one had been promised."""
    look_ahead = Examination.look_ahead

    def promised(self: Examination, bad: int, next_seq: int) -> tuple[int, int]:
        after, _ = look_ahead(self, bad, next_seq)
        return after, bad + 1 if after >= 0 else 0

    monkeypatch.setattr(Examination, "look_ahead", promised)
    monkeypatch.setattr(Ledger, "damage", ())


def _takes_half_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    skim = Examination.skim

    def any_entry(self: Examination, start: int, **options: Any) -> Any:
        return skim(self, start, **{**options, "whole_batches": False})

    monkeypatch.setattr(Examination, "skim", any_entry)


def _rotates_without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    is_full, sync = TailMaker.is_full, Tail.sync
    full: list[Tail] = []

    def note_full(self: TailMaker, tail: Tail, *arguments: int) -> bool:
        if is_full(self, tail, *arguments):
            full.append(tail)
            return True
        return False

    def sync_unless_full(self: Tail) -> None:
        if self not in full:
            sync(self)

    monkeypatch.setattr(TailMaker, "is_full", note_full)
    monkeypatch.setattr(Tail, "sync", sync_unless_full)


def _merges_without_saying_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewritten segment does not tell that it stands for its neighbours too."""
    pack = SegmentHeader.pack
    monkeypatch.setattr(SegmentHeader, "pack", lambda self: pack(replace(self, flags=0, end_seq=0)))


def _promises_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints speak of bytes as durable that were only written."""
    append = Log.append

    def promise_and_append(self: Log, payload: bytes) -> int:
        packer = self.fast_packer  # of a mapped tail: its position is the end of the file
        if packer.position:
            packer.promise(packer.position)
        return append(self, payload)

    monkeypatch.setattr(Log, "append", promise_and_append)


def _notes_the_end_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """closed.json names an end of the logs that is not on disk yet."""
    close = Ledger.close

    def note_and_close(self: Ledger) -> None:
        if not (self.is_closed or self.is_stopped):
            for log in (self.messages, self.events):
                log.publish_tail()
            closed = Closed(self.identity, self.messages.end, self.events.end)
            self.root.replace(CLOSED_NAME, closed.pack())
            self.root.sync()
        close(self)

    monkeypatch.setattr(Ledger, "close", note_and_close)


ALWAYS, NEVER = "always", "never"

SEEDED_BUGS: dict[str, SeededBug] = {
    "no sync before the answer": SeededBug([(ALWAYS, "single_appends")], wrap=_NeverSyncsSegments),
    "no directory sync after a segment was made": SeededBug(
        [(ALWAYS, "rotation")], wrap=_AfterCreate
    ),
    "no directory sync after a rename": SeededBug([(ALWAYS, "snapshots")], wrap=_AfterRename),
    "no directory sync after a directory was made": SeededBug(
        [(ALWAYS, "single_appends")], wrap=_AfterMakingADirectory
    ),
    "rename without sync of the temporary file": SeededBug(
        [(ALWAYS, "rewriting")], wrap=_NeverSyncsTemporaries
    ),
    "torn tail not cut before appending": SeededBug(
        [(NEVER, "equal_sizes")], wrap=_NeverCutsSegments
    ),
    "segments unlinked without a low-water mark": SeededBug(
        [(ALWAYS, "removal")], patch=_saves_no_marks
    ),
    "next seq not kept when segments are removed": SeededBug(
        [(NEVER, "removal")], patch=_forgets_the_next_seq
    ),
    "recovery trusts bytes that were never synced": SeededBug(
        [(NEVER, "single_appends")], wrap=_NeverSyncsWhatRecoveryRead
    ),
    "damage passed over in silence": SeededBug([(NEVER, "equal_sizes")], patch=_passes_over_damage),
    "answered before the record is written": SeededBug(
        [(ALWAYS, "single_appends")], patch=_answers_at_once
    ),
    "memory changed before the record is written": SeededBug(
        [(ALWAYS, "single_appends")], patch=_shows_before_it_is_written
    ),
    "half a batch taken for whole": SeededBug([(ALWAYS, "batches")], patch=_takes_half_a_batch),
    "segment sealed without sync": SeededBug([(NEVER, "rotation")], patch=_rotates_without_sync),
    "neighbours merged without saying so": SeededBug(
        [(ALWAYS, "rewriting")], patch=_merges_without_saying_so
    ),
    "more promised than was synced": SeededBug([(NEVER, "equal_sizes")], patch=_promises_too_much),
    "end noted before it is on disk": SeededBug(
        [(NEVER, "single_appends")], patch=_notes_the_end_too_early
    ),
}
