"""The directory that backups are kept in.

    backup.json              says that this directory holds backups
    backups/<time>.json      one backup: its files, with their checksums
    objects/<sha256>         the content of a file, shared by all backups that have it
    LOCK                     one backup at a time

Objects are never changed. A backup exists when its manifest does, which is written last. So a crash
leaves the former backups as they were; the objects it leaves are used or removed by the next one.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

from penstock.backup.cut import Piece
from penstock.clock import Clock
from penstock.errors import BadEntry, LedgerError, NewerVersion
from penstock.ledger.files import Files, OsFiles
from penstock.ledger.folder import TEMPORARY_SUFFIX, Folder, write_fully
from penstock.ledger.json_files import pack_checked, unpack_checked
from penstock.ledger.queue_directory import DirectoryLock, make_with_parents

_MARK = "backup.json"
_BACKUPS = "backups"
_OBJECTS = "objects"
_SUFFIX = ".json"
_PIECE_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 1 << 30
_NEW_OBJECT = "new" + TEMPORARY_SUFFIX


class BackupError(LedgerError):
    """A backup is damaged, missing, or not one of this source."""


class SavedFile(NamedTuple):
    """A file of a backup."""

    path: str  # relative to the source
    size_bytes: int
    sha256: str
    stamp: str = ""  # of a sealed segment of the source


class Manifest(NamedTuple):
    """One backup."""

    name: str
    kind: str  # "queue" or "data"
    source: str
    began_at_ns: int
    ended_at_ns: int
    queues: dict[str, Any]  # by directory: identity and next seqs
    files: list[SavedFile]

    def pack(self) -> bytes:
        content = self._asdict()
        del content["name"]
        return pack_checked({"format": 1, **content, "files": [list(one) for one in self.files]})

    @classmethod
    def unpack(cls, name: str, data: bytes) -> "Manifest":
        """Raise BadEntry if the data is damaged, NewerVersion if a newer version wrote it."""
        content = unpack_checked(name, data)
        del content["format"]
        try:
            files = [SavedFile(*one) for one in content.pop("files")]
            return cls(name=name, files=files, **content)
        except (TypeError, KeyError) as error:
            raise BadEntry(0, f"{name} cannot be read: {error}") from None

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.files)


class BackupTarget:
    """The backups in a directory. `open` before adding one; reading needs no `open`."""

    def __init__(self, path: str, *, files: Files | None = None) -> None:
        self.path = path
        self.files = files or OsFiles()
        self._root = Folder(self.files, path)
        self._backups = self._root.child(_BACKUPS)
        self._objects = self._root.child(_OBJECTS)
        self._lock = DirectoryLock(self._root)

    # -- adding ------------------------------------------------------------------------------------

    def open(self, clock: Clock) -> None:
        """Create the directory if it is missing, lock it, and remove what a crash left."""
        if not self._root.exists():
            make_with_parents(self._root)
        elif not self._root.has(_MARK):
            strangers = [name for name in self._root.names() if name != "LOCK"]
            if strangers:
                raise BackupError(
                    f"{self.path} is not empty and holds no backups ({strangers[0]!r} is in it): "
                    f"name an empty directory, or a new one"
                )
        self._lock.take(clock)
        self._root.sweep()
        for folder in (self._backups, self._objects):
            folder.make()
            folder.sweep()
        if not self._root.has(_MARK):
            mark = {"format": 1, "what": "backups of Penstock"}
            self._root.replace(_MARK, (json.dumps(mark) + "\n").encode())
        self._root.sync()
        self._present = set(self._objects.names())

    def close(self) -> None:
        self._lock.release()

    def has(self, digest: str) -> bool:
        return digest in self._present

    def put(self, piece: Piece, source: Files) -> tuple[SavedFile, int]:
        """Store the content of a file. Return it, and the number of bytes written."""

        def parts() -> Iterable[bytes]:
            return _parts(source, piece.fd, piece.size_bytes) if piece.fd >= 0 else [piece.data]

        digest = sha256_of(parts(), piece.size_bytes)
        saved = SavedFile(piece.name, piece.size_bytes, digest, piece.stamp)
        if self.has(digest):
            return saved, 0
        self._write(parts())
        self._keep(digest, piece)
        return saved, piece.size_bytes

    def _write(self, parts: Iterable[bytes]) -> None:
        """Write a new object under a temporary name, durably."""
        path = self._objects.file(_NEW_OBJECT)
        if self.files.exists(path):
            self.files.unlink(path)
        fd = self.files.open(path, "create")
        try:
            offset = 0
            for part in parts:
                write_fully(self.files, fd, part, offset)
                offset += len(part)
            self.files.fdatasync(fd)
        except BaseException:
            with suppress(OSError):
                self.files.unlink(path)  # give the space back: the disk may be full
            raise
        finally:
            self.files.close(fd)

    def _keep(self, digest: str, piece: Piece) -> None:
        """Read the new object back, and give it its name."""
        path = self._objects.file(_NEW_OBJECT)
        if self._digest(path, piece.size_bytes) != digest:
            raise BackupError(
                f"{piece.name} was written to {self.path} and reads back differently: check the "
                f"disk of the target"
            )
        self.files.rename(path, self._objects.file(digest))
        self._present.add(digest)

    def add(self, manifest: Manifest) -> None:
        """Make a backup exist: all its objects become durable, then its manifest."""
        self._objects.sync()
        self._backups.replace(manifest.name + _SUFFIX, manifest.pack())

    def new_name(self, clock: Clock) -> str:
        """Return the time as a name above all others, even if the clock was set back."""
        time_us = clock.now_ns() // 1000
        newest = max(self.names(), default="")
        while (name := _name_of(time_us)) <= newest:
            time_us = _time_us(newest) + 1
        return name

    def remove_old(self, keep: int) -> list[str]:
        """Remove all but the newest backups, and objects that none refers to. Return names."""
        names = self.names()
        gone = names[:-keep]
        needed = {one.sha256 for name in names[-keep:] for one in self.manifest(name).files}
        for name in gone:
            self._backups.remove(name + _SUFFIX)
        self._backups.sync()
        for digest in sorted(self._present - needed):
            self._objects.remove(digest)
        self._objects.sync()
        self._present &= needed
        return gone

    def drop_damaged(self) -> list[str]:
        """Read every object and remove those that are damaged. Return the files they held."""
        sizes = {
            one.sha256: one.size_bytes for name in self.names() for one in self.manifest(name).files
        }
        for digest, size_bytes in sizes.items():
            if self.has(digest) and self._digest_or_none(digest, size_bytes) != digest:
                self._objects.remove(digest)
                self._present.discard(digest)
        return self.incomplete()

    def incomplete(self) -> list[str]:
        """Return the files of all backups whose objects are missing."""
        return [
            f"{one.path} (backup {name})"
            for name in self.names()
            for one in self.manifest(name).files
            if not self.has(one.sha256)
        ]

    # -- reading -----------------------------------------------------------------------------------

    def exists(self) -> bool:
        return self._root.exists()

    def names(self) -> list[str]:
        """Return the names of all backups, oldest first."""
        return sorted(
            name.removesuffix(_SUFFIX) for name in self._backups.names() if name.endswith(_SUFFIX)
        )

    def manifest(self, name: str) -> Manifest:
        """Return one backup; raise BackupError if it is missing or damaged."""
        names = self.names()
        if name not in names:
            known = ", ".join(names[-3:]) or "none"
            raise BackupError(f"{self.path} has no backup {name!r}; the newest: {known}")
        file = name + _SUFFIX
        try:
            data = self._backups.read(file, max_bytes=_MAX_MANIFEST_BYTES)
            return Manifest.unpack(name, data)
        except NewerVersion:
            raise
        except (BadEntry, ValueError, OSError) as error:
            raise BackupError(
                f"{self._backups.file(file)} is damaged ({error}): remove it, and use another "
                f"backup"
            ) from None

    def copy(self, one: SavedFile, target: Folder, name: str) -> None:
        """Write a file of a backup; raise BackupError if its checksum is not that of the backup."""
        found = sha256()
        size_bytes = 0
        try:
            source = self.files.open(self._objects.file(one.sha256), "read")
        except FileNotFoundError:
            raise self.damaged(one, "its object is missing") from None
        try:
            fd = target.files.open(target.file(name), "create")
            try:
                for part in _parts(self.files, source, one.size_bytes + 1):
                    found.update(part)
                    write_fully(target.files, fd, part, size_bytes)
                    size_bytes += len(part)
                target.files.fdatasync(fd)
            finally:
                target.files.close(fd)
        finally:
            self.files.close(source)
        if size_bytes != one.size_bytes:
            raise self.damaged(one, f"it has {size_bytes} bytes instead of {one.size_bytes}")
        if found.hexdigest() != one.sha256:
            raise self.damaged(one, "the checksum does not match")

    def damaged(self, one: SavedFile, reason: str) -> BackupError:
        return BackupError(
            f"{one.path} of the backup is damaged: {reason} "
            f"({self._objects.file(one.sha256)}). Restore an older backup (--list shows them), or "
            f"run `penstock backup --verify` while the source still has it."
        )

    def _digest_or_none(self, digest: str, size_bytes: int) -> str | None:
        try:
            return self._digest(self._objects.file(digest), size_bytes)
        except OSError:
            return None

    def _digest(self, path: str, size_bytes: int) -> str:
        fd = self.files.open(path, "read")
        try:
            return sha256_of(_parts(self.files, fd, size_bytes + 1), size_bytes)
        finally:
            self.files.close(fd)


def sha256_of(parts: Iterable[bytes], size_bytes: int) -> str:
    """Return the SHA-256 in hexadecimal digits; another text if the size is different."""
    found, size = sha256(), 0
    for part in parts:
        found.update(part)
        size += len(part)
    return found.hexdigest() if size == size_bytes else f"{size} bytes"


def _parts(files: Files, fd: int, size_bytes: int) -> Iterator[bytes]:
    """Yield the first bytes of a file, in pieces."""
    offset = 0
    while offset < size_bytes:
        part = files.pread(fd, min(_PIECE_BYTES, size_bytes - offset), offset)
        if not part:
            return
        offset += len(part)
        yield part


def _name_of(time_us: int) -> str:
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC):%Y%m%dT%H%M%S.%fZ}"


def _time_us(name: str) -> int:
    found = datetime.strptime(name, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    return round(found.timestamp() * 1e6)
