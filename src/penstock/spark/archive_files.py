"""The files of an archive: Parquet by queue and date, and a manifest for each queue.

    <archive>/
      namespace=shop/queue=orders/date=2026-01-31/00000000000000000001.parquet
      _manifests/shop.orders.json     archived seqs, with files and checksums
      _delta_log/                     the same files as a Delta table, if requested
      _lock                           held by a running archive job

There is no `namespace=…` for a queue directory outside a data directory. If a queue's name has
characters other than lower-case letters, digits and `._-`, its files have a digest of it in their
names. Files that no manifest names are not archived: a killed job leaves them, and the next job
writes them again under the same names.
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

from penstock.arrow.locations import QueueLocation
from penstock.checking import check_local
from penstock.errors import InvalidInput, LedgerError
from penstock.names import directory_of

MANIFESTS = "_manifests"
_LOCK = "_lock"
_PLAIN = re.compile(r"[a-z0-9._/-]*", re.ASCII)


class ArchiveError(LedgerError):
    """An archive is in use, damaged, or of another queue."""


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
    """The archived part of one queue: all messages that it had in [first_seq, next_seq)."""

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
        """Return the manifest of a queue; None if nothing of it is archived."""
        try:
            return cls.read(_manifest_path(archive, key))
        except FileNotFoundError:
            return None

    @classmethod
    def read(cls, path: Path) -> "ArchiveManifest":
        try:
            content = json.loads(path.read_bytes())
            files = [ArchivedFile(**file) for file in content.pop("files")]
            return cls(files=files, **content)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ArchiveError(
                f"{path} cannot be read ({error}): restore it from a backup, or move the archive "
                f"of this queue away and archive again"
            ) from None

    def save(self, archive: Path) -> None:
        """Replace the stored manifest. A crash leaves the old one or the new one."""
        path = _manifest_path(archive, self.queue)
        make_directory(path.parent)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(json.dumps(asdict(self), indent=1) + "\n")
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)


def local_directory(path: str) -> Path:
    """Return a directory, which need not exist. Raise InvalidInput for what cannot be one."""
    root = Path(check_local(path))
    if root.exists() and not root.is_dir():
        raise InvalidInput(f"{path} is not a directory")
    return root


def manifests(archive: Path) -> list[ArchiveManifest]:
    """Return all manifests of an archive, sorted by queue."""
    folder = archive / MANIFESTS
    if not folder.is_dir():
        raise ArchiveError(f"{archive} is not an archive: it has no {MANIFESTS}")
    return [ArchiveManifest.read(path) for path in sorted(folder.glob("*.json"))]


def _manifest_path(archive: Path, key: str) -> Path:
    # `directory_of` escapes dots, so that a/b.c and a.b/c differ.
    parts = map(directory_of, key.split("/")) if "/" in key else [key]
    return archive / MANIFESTS / f"{'.'.join(parts)}.json"


def folder_of(queue: QueueLocation, date: str) -> str:
    """Return the folder of a queue's files of one day, relative to the archive."""
    namespace = "" if queue.namespace is None else f"namespace={queue.namespace}/"
    return f"{namespace}queue={queue.name}/date={date}"


def file_name(queue: QueueLocation, first_seq: int) -> str:
    """Return the name of a file that begins with this seq.

    On file systems that ignore case, `queue=Emails` and `queue=emails` share a folder. A digest of
    a name that is not plain lower case keeps their files apart.
    """
    if _PLAIN.fullmatch(queue.key):
        return f"{first_seq:020d}.parquet"
    digest = hashlib.sha256(os.fsencode(queue.key)).hexdigest()[:16]
    return f"{first_seq:020d}-{digest}.parquet"


@contextmanager
def locked(archive: Path) -> Iterator[None]:
    """Lock the archive for one job. The lock ends with the process."""
    make_directory(archive)
    fd = os.open(archive / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(
                f"another job is archiving to {archive}: wait until it has finished"
            ) from None
        yield
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably."""
    missing = [path, *path.parents]
    for folder in reversed([folder for folder in missing if not folder.exists()]):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def checksum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
