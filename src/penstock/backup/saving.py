"""Save a backup of a queue, or of a broker's data directory, while it is in use.

Each queue is saved at one point (see `cut`). Queues are independent of each other, so each has a
point of its own, after the backup began. Keys, webhooks, namespaces and other documents are read
before and after the queues. If they changed meanwhile, another pass is made, which copies only what
is new.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.backup.cut import Piece, cut_of
from penstock.backup.target import BackupError, BackupTarget, Manifest, SavedFile
from penstock.checking import check_local
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, NotALedger
from penstock.ledger.files import Files, OsFiles, as_ledger_error
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import MANIFEST_NAME
from penstock.ledger.queue_directory import LOCK_NAME, is_made
from penstock.names import is_name, name_of_directory

DOCUMENTS = "_broker"  # directory of the broker's own documents
NAMESPACE_FILE = "namespace.json"
_MAX_DOCUMENT_BYTES = 64 << 20
_PASSES = 3  # over a data directory whose documents change
MAX_KEPT = 10_000

OnFile = Callable[[str, int], None]  # path, and the bytes that were written


class BackupResult(NamedTuple):
    """A backup that was made."""

    name: str
    queues: int
    files: int
    size_bytes: int  # of all its files
    copied_bytes: int  # written to the target now
    removed: list[str]  # older backups
    damaged: list[str]  # with `verify`: files of older backups
    lost: list[str]  # those of `damaged` that could not be replaced: their backups are incomplete


def back_up(
    source: str,
    target: str,
    *,
    keep: int = 10,
    verify: bool = False,
    files: Files | None = None,
    target_files: Files | None = None,
    clock: Clock | None = None,
    on_file: OnFile | None = None,
) -> BackupResult:
    """Save a queue's directory or a broker's data directory. It may be in use.

    Sealed segments that the target has are not copied again. The newest `keep` backups stay. With
    `verify`, all objects in the target are read first, and damaged ones are copied again if the
    source still has them.
    """
    if not 1 <= keep <= MAX_KEPT:
        raise InvalidInput(f"keep is {keep}; it must be 1 to {MAX_KEPT}")
    check_local(source, "a backup is made of a directory")
    _refuse_nested(source, target)
    clock = clock or SystemClock()
    root = Folder(files or OsFiles(), source)
    saver = _Saver(root, BackupTarget(target, files=target_files), clock, on_file)
    return saver.run(keep=keep, verify=verify)


def _refuse_nested(source: str, target: str) -> None:
    """Raise InvalidInput if one directory is in the other.

    A broker would take backups in its data directory for a namespace, and delete them with it.
    """
    saved, backups = Path(source).resolve(), Path(target).resolve()
    if saved == backups or saved in backups.parents or backups in saved.parents:
        raise InvalidInput(
            f"{target} and {source} are in one another: keep backups in a directory of their own, "
            f"best on another disk"
        )


class _Saver:
    """One backup."""

    def __init__(
        self, root: Folder, target: BackupTarget, clock: Clock, on_file: OnFile | None
    ) -> None:
        self._root = root
        self._target = target
        self._clock = clock
        self._on_file = on_file or (lambda path, written: None)
        self._copied_bytes = 0
        self._sealed: dict[str, SavedFile] = {}  # by path and stamp

    def run(self, *, keep: int, verify: bool) -> BackupResult:
        kind = self._kind()
        began_at_ns = self._clock.now_ns()
        try:
            self._target.open(self._clock)
            damaged = self._target.drop_damaged() if verify else []
            former = self._learn_from_newest()
            queues, files = self._one_queue() if kind == "queue" else self._data_directory()
            self._refuse_other_source(former, kind, queues)
            manifest = Manifest(
                name=self._target.new_name(self._clock),
                kind=kind,
                source=self._root.path,
                began_at_ns=began_at_ns,
                ended_at_ns=self._clock.now_ns(),
                queues=queues,
                files=sorted(files),
            )
            self._target.add(manifest)
            removed = self._target.remove_old(keep)
            lost = self._target.incomplete() if damaged else []
        except OSError as error:
            raise as_ledger_error(self._target.path, "saving a backup", error) from error
        finally:
            self._target.close()
        return BackupResult(
            manifest.name,
            len(queues),
            len(manifest.files),
            manifest.size_bytes,
            self._copied_bytes,
            removed,
            damaged,
            lost,
        )

    def _kind(self) -> str:
        """Return what the source is: a queue, or a broker's data directory."""
        if not self._root.exists():
            raise NotALedger(f"{self._root.path} does not exist")
        if self._root.has(MANIFEST_NAME):
            return "queue"
        if self._root.child(DOCUMENTS).exists() or self._queue_directories():
            return "data"
        if is_made(self._root):  # its queue.json is lost
            return "queue"
        raise NotALedger(f"{self._root.path} is neither a queue nor the data directory of a broker")

    def _learn_from_newest(self) -> Manifest | None:
        """Note which sealed segments the newest backup has."""
        names = self._target.names()
        if not names:
            return None
        newest = self._target.manifest(names[-1])
        for one in newest.files:
            if one.stamp and self._target.has(one.sha256):
                self._sealed[one.path + one.stamp] = one
        return newest

    def _refuse_other_source(
        self, former: Manifest | None, kind: str, queues: dict[str, Any]
    ) -> None:
        """Refuse to mix backups of different sources: the newest would not be that of either."""
        if former is None:
            return
        before = {one["identity"] for one in former.queues.values()}
        now = {one["identity"] for one in queues.values()}
        if former.kind != kind or (before and now and not before & now):
            raise BackupError(
                f"{self._target.path} has backups of another source ({former.source}): give each "
                f"source a directory of its own"
            )

    # -- a queue -----------------------------------------------------------------------------------

    def _one_queue(self) -> tuple[dict[str, Any], list[SavedFile]]:
        files: list[SavedFile] = []
        return {"": self._save_queue(self._root, "", files)}, files

    def _save_queue(self, folder: Folder, prefix: str, files: list[SavedFile]) -> dict[str, Any]:
        """Add the files of one queue; return what the manifest says about it."""
        with cut_of(folder, _Known(self._sealed, prefix)) as cut:
            for piece in cut.pieces:
                path = prefix + piece.name
                known = self._sealed.get(path + piece.stamp) if piece.stamp else None
                if known is not None:
                    files.append(known)
                    continue
                saved, written = self._target.put(piece._replace(name=path), folder.files)
                files.append(saved)
                if saved.stamp:
                    self._sealed[path + saved.stamp] = saved
                self._copied_bytes += written
                self._on_file(path, written)
            return {"identity": cut.identity, **cut.next_seqs}

    # -- a data directory --------------------------------------------------------------------------

    def _data_directory(self) -> tuple[dict[str, Any], list[SavedFile]]:
        documents = self._documents()
        for left in reversed(range(_PASSES)):
            queues: dict[str, Any] = {}
            files: list[SavedFile] = []
            for directory, folder in self._queue_directories():
                saved: list[SavedFile] = []
                try:
                    queues[directory] = self._save_queue(folder, directory + "/", saved)
                except FileNotFoundError:
                    continue  # deleted meanwhile
                files += saved
            before, documents = documents, self._documents()
            if documents == before or not left:
                break
        for path, data in documents.items():
            one, written = self._target.put(Piece(path, len(data), data=data), self._root.files)
            files.append(one)
            self._copied_bytes += written
            self._on_file(path, written)
        return queues, files

    def _documents(self) -> dict[str, bytes]:
        """Return the documents and namespaces by path."""
        found = {}
        folders: list[tuple[str, Folder, str | None]] = [
            (DOCUMENTS, self._root.child(DOCUMENTS), None)
        ]
        folders += [(name, folder, NAMESPACE_FILE) for name, folder in self._namespaces()]
        for directory, folder, only in folders:
            for name in folder.names():
                if name == LOCK_NAME or (only is not None and name != only):
                    continue
                try:
                    found[f"{directory}/{name}"] = folder.read(name, max_bytes=_MAX_DOCUMENT_BYTES)
                except FileNotFoundError:
                    continue  # deleted meanwhile
                except IsADirectoryError:
                    continue
        return found

    def _namespaces(self) -> Iterator[tuple[str, Folder]]:
        return self._named_directories(self._root, "namespace")

    def _queue_directories(self) -> list[tuple[str, Folder]]:
        return [
            (f"{namespace}/{queue}", folder)
            for namespace, inside in self._namespaces()
            for queue, folder in self._named_directories(inside, "queue")
            if is_made(folder)
        ]

    def _named_directories(self, folder: Folder, what: str) -> Iterator[tuple[str, Folder]]:
        for directory in folder.names():
            name = name_of_directory(directory)
            if name is None or not is_name(what, name):
                continue
            child = folder.child(directory)
            try:
                child.files.names(child.path)
            except (NotADirectoryError, FileNotFoundError):
                continue
            yield directory, child


class _Known:
    """The stamps of one queue's sealed segments that the target has."""

    def __init__(self, sealed: dict[str, SavedFile], prefix: str) -> None:
        self._sealed = sealed
        self._prefix = prefix

    def __contains__(self, path_and_stamp: object) -> bool:
        return f"{self._prefix}{path_and_stamp}" in self._sealed
