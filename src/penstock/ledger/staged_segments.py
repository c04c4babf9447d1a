"""Segments that wait in `staging/`: what they look like, and whether they are whole."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from penstock import codec
from penstock.codec.layout import DATA
from penstock.errors import BadEntry, InvalidInput
from penstock.ledger.folder import Folder, read_fully
from penstock.ledger.segment_header import HEADER_BYTES, MESSAGES, RELATIVE, SegmentHeader

STAGING = "staging"


@dataclass(frozen=True, slots=True)
class Staged:
    """A segment that waits in a folder of `staging/`."""

    folder: str
    name: str
    entries: int


class Checked(NamedTuple):
    """What was found in a staged segment."""

    end: int
    first_ns: int
    newest_ns: int
    points: bytes  # of its sparse index, while it has no place

    def stamped(self, timestamp_ns: int) -> "Checked":
        return self._replace(first_ns=timestamp_ns, newest_ns=timestamp_ns)


def staged_header(identity: int, created_at_ns: int) -> SegmentHeader:
    """The header of a segment that has no place in a log yet."""
    return SegmentHeader(MESSAGES, identity, 0, created_at_ns, RELATIVE)


def check_header(one: Staged, data: bytes, identity: int) -> None:
    """InvalidInput if a staged segment was not written for the queue of that identity."""
    header = SegmentHeader.unpack(data[:HEADER_BYTES])
    if header.identity != identity or not header.flags & RELATIVE:
        raise InvalidInput(f"{one.folder}/{one.name} was not staged for this queue")


def verified(
    staging: Folder, staged: Sequence[Staged], *, identity: int, max_entry_bytes: int
) -> list[Checked]:
    """Read every checksum and every seq of all of them, on all cores.

    InvalidInput or BadEntry for one that was not staged for this queue, or is not what was written.
    """
    views = [_mapped(staging, one, identity) for one in staged]
    limits = [max_entry_bytes] * len(staged)
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_verified, staged, views, limits))


def _mapped(staging: Folder, one: Staged, identity: int) -> memoryview:
    """All of a segment that was staged for this queue, without a copy: it is only looked at."""
    files = staging.files
    fd = files.open(staging.child(one.folder).file(one.name), "read")
    try:
        check_header(one, read_fully(files, fd, HEADER_BYTES, 0), identity)
        return files.map(fd, files.size(fd), writable=False).view
    finally:
        files.close(fd)


def _verified(one: Staged, data: memoryview, limit: int) -> Checked:
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
    return Checked(found.end, entries[0].timestamp_ns, found.last_timestamp_ns, found.points)


def stamps_of(found: Sequence[Checked], last_ns: int) -> tuple[list[int | None], int]:
    """What each segment must be stamped with, None where its time will do; and the last time then.

    Times never go back: a segment that is older than what comes before it gets the time of that,
    and one whose entries are not all of one time, as tasks write them, gets its newest.
    """
    stamps: list[int | None] = []
    for one in found:
        in_order = last_ns <= one.first_ns == one.newest_ns
        last_ns = max(last_ns, one.newest_ns)
        stamps.append(None if in_order else last_ns)
    return stamps, last_ns
