"""Keep an archive in order: merge small files, remove old ones, sweep what nothing names.

A file leaves in two steps. First the manifest stops naming it, and records when. After a grace
period, in which readers that began before may still read it, a later run deletes it.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.archive.archives import Archive
from penstock.archive.faults import ArchiveError
from penstock.archive.manifests import ArchivedFile, ArchiveManifest, RemovedFile
from penstock.archive.names import file_name, folder_of_key
from penstock.archive.parquet import decode, read_checked, write_verified
from penstock.archive.stores import ArchiveStore

_STRAY_NS = 86_400 * 10**9
_SEQ_DIGITS = 20  # with which the name of a file begins


@dataclass(frozen=True, slots=True)
class Merge:
    """Files of one day that become one."""

    queue: str
    files: tuple[ArchivedFile, ...]
    path: str  # of the new file

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Excess:
    """The oldest files of a queue, which retention removes."""

    files: tuple[ArchivedFile, ...]
    first_seq: int  # of what is left


def merges_of(manifest: ArchiveManifest, file_bytes: int) -> list[Merge]:
    """Return which neighbouring files of one day to merge, so that none exceeds `file_bytes`.

    None is merged over a gap: readers know from the times of its neighbours what is lost.
    """
    merges = []
    ends = sorted(gap.end_seq for gap in manifest.gaps)
    for run in _runs(manifest.files, file_bytes, ends):
        first = run[0]
        name = file_name(manifest.queue, first.first_seq, secrets.token_hex(4))
        merges.append(Merge(manifest.queue, tuple(run), f"{first.path.rpartition('/')[0]}/{name}"))
    return merges


def _runs(
    files: Sequence[ArchivedFile], file_bytes: int, gap_ends: Sequence[int]
) -> Iterator[list[ArchivedFile]]:
    run: list[ArchivedFile] = []
    size = 0
    for file in sorted(files, key=lambda one: one.first_seq):
        follows_gap = run and any(run[-1].last_seq < end <= file.first_seq for end in gap_ends)
        is_full = size + file.size_bytes > file_bytes
        if run and (follows_gap or is_full or file.date != run[0].date):
            if len(run) > 1:
                yield run
            run, size = [], 0
        run.append(file)
        size += file.size_bytes
    if len(run) > 1:
        yield run


def merge(store: ArchiveStore, wanted: Merge, schema: pa.Schema) -> ArchivedFile:
    """Write the merged file, and compare it with the contents of the old ones."""
    parts = []
    for file in wanted.files:
        part = decode(read_checked(store, file), schema, drop=False)
        if part.num_rows != file.rows:
            raise ArchiveError(
                f"{store.shown}/{file.path} has {part.num_rows} rows, and the manifest says "
                f"{file.rows}: audit the archive"
            )
        parts.append(part)
    return write_verified(store, wanted.path, wanted.files[0].date, pa.concat_tables(parts))


def replace_merged(
    manifest: ArchiveManifest, wanted: Merge, merged: ArchivedFile, now_ns: int
) -> None:
    """Name the merged file in the manifest instead of the old ones. The caller commits it."""
    gone = {file.path for file in wanted.files}
    rows = sum(file.rows for file in wanted.files)
    if merged.rows != rows:
        raise ArchiveError(f"{merged.path} has {merged.rows} rows instead of {rows}")
    kept = [file for file in manifest.files if file.path not in gone]
    manifest.files = sorted([*kept, merged], key=lambda file: file.first_seq)
    manifest.removed += [RemovedFile(path, now_ns) for path in sorted(gone)]


def excess_of(
    manifest: ArchiveManifest, *, before_ns: int | None = None, max_bytes: int | None = None
) -> Excess:
    """Return the oldest files: all messages published before a time, or beyond a size."""
    files = sorted(manifest.files, key=lambda one: one.first_seq)
    left = sum(file.size_bytes for file in files)
    count = 0
    for file in files:
        too_old = before_ns is not None and file.last_ns < before_ns
        too_large = max_bytes is not None and left > max_bytes
        if not too_old and not too_large:
            break
        left -= file.size_bytes
        count += 1
    first = manifest.first_seq if not count else manifest.next_seq
    if count and count < len(files):
        first = files[count].first_seq
    return Excess(tuple(files[:count]), first)


def remove_excess(manifest: ArchiveManifest, excess: Excess, now_ns: int) -> None:
    """Stop naming the files in the manifest. The caller commits it."""
    gone = {file.path for file in excess.files}
    manifest.files = [file for file in manifest.files if file.path not in gone]
    manifest.removed += [RemovedFile(file.path, now_ns) for file in excess.files]
    manifest.first_seq = excess.first_seq
    manifest.gaps = [gap for gap in manifest.gaps if gap.end_seq > excess.first_seq]


def sweep(archive: Archive, manifest: ArchiveManifest, *, before_ns: int, now_ns: int) -> int:
    """Delete files that left the manifest before a time, and older ones that were never in it.

    Return how many were deleted. The latter are of killed jobs, or of jobs that lost a conflict.
    Without a lock they may be of a job that is about to name them, so they stay for a day.
    """
    strays_ns = before_ns if archive.store.has_lock else min(before_ns, now_ns - _STRAY_NS)
    due = {file.path for file in manifest.removed if file.removed_ns <= before_ns}
    waiting = {file.path for file in manifest.removed} - due
    known = {file.path for file in manifest.files} | waiting
    for file in archive.store.files(folder_of_key(manifest.queue)):
        is_stray = file.path not in known and _is_of(manifest.queue, file.path)
        if is_stray and file.modified_ns <= strays_ns:
            due.add(file.path)
    for path in sorted(due):
        archive.store.delete(path)
    if any(file.path in due for file in manifest.removed):
        manifest.removed = [file for file in manifest.removed if file.path not in due]
        archive.commit(manifest)
    return len(due)


def _is_of(queue: str, path: str) -> bool:
    """Return whether a file is of a queue: queues that differ in case may share a folder."""
    digest = file_name(queue, 0).removesuffix(".parquet")[_SEQ_DIGITS:]
    name = path.rpartition("/")[2]
    return (
        path.startswith(f"{folder_of_key(queue)}/date=")
        and name.endswith(".parquet")
        and name[:_SEQ_DIGITS].isdecimal()
        and name[_SEQ_DIGITS:].startswith(digest)
    )
