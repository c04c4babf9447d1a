"""The files of an archive: plain Parquet by queue and date, and a manifest that says what is there.

    <archive>/
      namespace=shop/queue=orders/date=2026-01-31/00000000000000000001.parquet
      _manifests/shop.orders.json     which seqs are archived, in which files, with what checksums
      _delta_log/                     names the same files as a Delta table, where asked for
      _lock                           held by the job that is archiving

(without `namespace=…` for a queue directory that was named by itself; a queue whose name has other
characters than small letters, digits and `._-` has a digest of it in its files' names). What is not
in a manifest is not archived: a job that was killed leaves files which the next one writes again,
under the same names.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock.checking import check_local
from penstock.errors import InvalidInput, LedgerError
from penstock.names import directory_of
from penstock.spark.places import QueueAt

MANIFESTS = "_manifests"
_LOCK = "_lock"
_CHUNK = 1 << 20
_PLAIN = re.compile(r"[a-z0-9._/-]*", re.ASCII)


class ArchiveError(LedgerError):
    """Something about an archive: in use, damaged, or not what it says."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file of an archive."""

    path: str  # relative to the archive
    date: str
    rows: int
    first_seq: int
    last_seq: int
    first_ns: int
    last_ns: int
    size_bytes: int
    sha256: str


@dataclass(slots=True)
class ArchiveManifest:
    """What of one queue is archived: all that there was of [first_seq, next_seq)."""

    queue: str
    identity: int
    first_seq: int = 0
    next_seq: int = 0
    files: list[ArchivedFile] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @classmethod
    def load(cls, archive: Path, key: str) -> "ArchiveManifest | None":
        """The manifest of a queue; None if nothing of it was archived."""
        try:
            return cls.read(_place(archive, key))
        except FileNotFoundError:
            return None

    @classmethod
    def read(cls, place: Path) -> "ArchiveManifest":
        """The manifest in a file."""
        try:
            content = json.loads(place.read_bytes())
            files = [ArchivedFile(**file) for file in content.pop("files")]
            return cls(files=files, **content)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ArchiveError(
                f"{place} cannot be read ({error}): restore it from a backup, or move the archive "
                f"of this queue away and archive again"
            ) from None

    def save(self, archive: Path) -> None:
        """In place of the old one, durably."""
        place = _place(archive, self.queue)
        make_directory(place.parent)
        content = {**asdict(self), "files": [asdict(file) for file in self.files]}
        write_durably(place, (json.dumps(content, indent=1) + "\n").encode())


def local_directory(place: str) -> Path:
    """Return a directory, which need not exist. InvalidInput for what cannot be one."""
    root = Path(check_local(place))
    if root.exists() and not root.is_dir():
        raise InvalidInput(f"{place} is not a directory")
    return root


def manifests(archive: Path) -> list[ArchiveManifest]:
    """All manifests of an archive, by queue."""
    folder = archive / MANIFESTS
    if not folder.is_dir():
        raise ArchiveError(f"{archive} is not an archive: there is no {MANIFESTS} in it")
    return [ArchiveManifest.read(place) for place in sorted(folder.glob("*.json"))]


def _place(archive: Path, key: str) -> Path:
    # Directories of names have no bare dot: a/b.c and a.b/c are told apart.
    parts = map(directory_of, key.split("/")) if "/" in key else [key]
    return archive / MANIFESTS / f"{'.'.join(parts)}.json"


def folder_of(queue: QueueAt, date: str) -> str:
    """Where files of a queue and a day lie, relative to the archive."""
    namespace = "" if queue.namespace is None else f"namespace={queue.namespace}/"
    return f"{namespace}queue={queue.name}/date={date}"


def file_name(queue: QueueAt, first_seq: int) -> str:
    """Return the name of a file of a queue, in its folder of a day.

    Some file systems do not tell `queue=Emails` from `queue=emails`, so that both have one folder.
    A name that is not all in plain lower case is told apart by its digest.
    """
    if _PLAIN.fullmatch(queue.key):
        return f"{first_seq:020d}.parquet"
    digest = hashlib.sha256(os.fsencode(queue.key)).hexdigest()[:16]
    return f"{first_seq:020d}-{digest}.parquet"


@contextmanager
def locked(archive: Path) -> Iterator[None]:
    """Be the one job that changes the archive; the lock goes when its holder does."""
    make_directory(archive)
    fd = os.open(archive / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(
                f"another job is archiving to {archive}: wait until it is done"
            ) from None
        yield
    finally:
        os.close(fd)


# -- small things ----------------------------------------------------------------------------------


def make_directory(path: Path) -> None:
    """Make it and what is missing above it, durably."""
    missing = [path, *path.parents]
    for folder in reversed([folder for folder in missing if not folder.exists()]):
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """A crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    sync_file(temporary)
    temporary.replace(path)
    sync_directory(path.parent)


def checksum_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
