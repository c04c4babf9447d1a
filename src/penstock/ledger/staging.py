"""The staging area of a queue: segments that other processes write and the queue then adopts.

Each writer has a folder of its own. Its name begins with the time at which the writer started, so
that abandoned folders can be told from those in use. Staged segments are relative: the seqs of
their entries count from 0.
"""

import re
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from penstock import codec
from penstock.codec import Draft
from penstock.codec.entry import draft_of
from penstock.codec.layout import DATA
from penstock.errors import BadEntry, InvalidInput
from penstock.ledger.folder import Folder, read_fully
from penstock.ledger.segment_header import HEADER_BYTES, MESSAGES, RELATIVE, SegmentHeader
from penstock.model import NS

STAGING = "staging"
ORPHANED_AFTER_S = 24 * 3600
MAX_MAPPED = 4  # segments that are verified at the same time: their pages count as memory
_FOLDER = re.compile(r"[0-9]{1,19}-[0-9a-f]{16}", re.ASCII)
_SEGMENT = re.compile(r"[0-9]{1,9}\.log", re.ASCII)


@dataclass(frozen=True, slots=True)
class Staged:
    """A segment in a folder of `staging/`."""

    folder: str
    name: str
    entries: int


# -- names -----------------------------------------------------------------------------------------


def folder_name(now_ns: int, chance: str) -> str:
    """Return the folder name of a writer that starts now; `chance` is 16 random hex digits."""
    return f"{now_ns}-{chance}"


def check_folder_name(folder: str) -> str:
    if not _FOLDER.fullmatch(folder):
        raise InvalidInput(
            f"{folder[:100]!r} is not a folder of a staging area: <nanoseconds>-<16 hex digits>"
        )
    return folder


def check_segment_name(name: str) -> str:
    if not _SEGMENT.fullmatch(name):
        raise InvalidInput(f"{name[:100]!r} is not a staged segment: <number>.log")
    return name


def is_orphan(folder: str, now_ns: int) -> bool:
    """Return whether a folder is so old that its writer must have ended."""
    began = folder.partition("-")[0]
    return began.isdigit() and now_ns - int(began) > ORPHANED_AFTER_S * NS


# -- content ---------------------------------------------------------------------------------------


def staged_header(identity: int, created_at_ns: int) -> SegmentHeader:
    """Return the header of a segment that is not part of a log yet."""
    return SegmentHeader(MESSAGES, identity, 0, created_at_ns, RELATIVE)


def staged_bytes(staging: Folder, staged: Sequence[Staged]) -> int:
    """Return the total size. A missing segment counts 0: it was adopted, or reading it raises."""
    total = 0
    for one in staged:
        folder = staging.child(one.folder)
        if folder.has(one.name):
            fd = folder.files.open(folder.file(one.name), "read")
            try:
                total += folder.files.size(fd)
            finally:
                folder.files.close(fd)
    return total


def read_drafts(
    staging: Folder, one: Staged, *, identity: int, max_bytes: int, max_entry_bytes: int
) -> list[Draft]:
    """Return the messages of a small staged segment; InvalidInput if it is not whole."""
    folder = staging.child(one.folder)
    try:
        data = folder.read(one.name, max_bytes=max_bytes)
    except FileNotFoundError:
        raise InvalidInput(f"{folder.file(one.name)} is missing; nothing was appended") from None
    _check_header(one, data, identity)
    entries, after = codec.read_entries(
        data,
        HEADER_BYTES,
        len(data),
        max_count=one.entries + 1,
        max_entry_bytes=max_entry_bytes,
    )
    if len(entries) != one.entries or after != len(data):
        raise InvalidInput(
            f"{folder.file(one.name)} does not hold the {one.entries} entries that were written; "
            f"nothing was appended"
        )
    return [draft_of(entry) for entry in entries]


def _check_header(one: Staged, data: bytes, identity: int) -> None:
    header = SegmentHeader.unpack(data[:HEADER_BYTES])
    if header.identity != identity or not header.flags & RELATIVE:
        raise InvalidInput(f"{one.folder}/{one.name} was not staged for this queue")


class Verified(NamedTuple):
    """The facts about a staged segment that was verified."""

    end: int
    first_ns: int
    newest_ns: int
    points: bytes  # of its sparse index, with relative seqs

    def stamped(self, timestamp_ns: int) -> "Verified":
        return self._replace(first_ns=timestamp_ns, newest_ns=timestamp_ns)


def verify_staged(
    staging: Folder, staged: Sequence[Staged], *, identity: int, max_entry_bytes: int
) -> list[Verified]:
    """Verify every checksum and every seq of all segments, on all cores.

    Raise InvalidInput or BadEntry if one was not staged for this queue, or is damaged.
    """
    found: list[Verified] = []
    under_way: deque[Future[Verified]] = deque()
    with ThreadPoolExecutor() as pool:
        for one in staged:
            if len(under_way) == MAX_MAPPED:
                found.append(under_way.popleft().result())
            view = _mapped(staging, one, identity)
            under_way.append(pool.submit(_verify, one, view, max_entry_bytes))
            del view  # the thread has it: it is unmapped when the thread has read it
        return found + [one.result() for one in under_way]


def _mapped(staging: Folder, one: Staged, identity: int) -> memoryview:
    """Return all bytes of a segment that was staged for this queue, without copying them."""
    files = staging.files
    fd = files.open(staging.child(one.folder).file(one.name), "read")
    try:
        _check_header(one, read_fully(files, fd, HEADER_BYTES, 0), identity)
        return files.map(fd, files.size(fd), writable=False).view
    finally:
        files.close(fd)


def _verify(one: Staged, data: memoryview, limit: int) -> Verified:
    found = codec.skim(data, HEADER_BYTES, len(data), index_from=0, max_entry_bytes=limit)
    whole = found.problem is None and found.end == len(data)
    if not whole or (found.entries, found.next_seq) != (one.entries, one.entries):
        raise BadEntry(
            found.stop,
            f"the staged segment {one.folder}/{one.name} is not what was written "
            f"({found.problem or 'entries are missing'}); nothing was adopted",
        )
    entries, _ = codec.read_entries(
        data, HEADER_BYTES, len(data), max_count=1, max_entry_bytes=limit
    )
    if entries[0].type != DATA:
        raise BadEntry(HEADER_BYTES, "a staged segment holds messages only")
    return Verified(found.end, entries[0].timestamp_ns, found.last_timestamp_ns, found.points)


def stamps_of(found: Sequence[Verified], last_ns: int) -> tuple[list[int | None], int]:
    """Return the time that each segment must be stamped with, and the last time afterwards.

    None means that its own time is fine. Times never go back: a segment older than the one before
    it gets that one's time. A segment whose entries have different times gets its newest.
    """
    stamps: list[int | None] = []
    for one in found:
        in_order = last_ns <= one.first_ns == one.newest_ns
        last_ns = max(last_ns, one.newest_ns)
        stamps.append(None if in_order else last_ns)
    return stamps, last_ns
