"""Restore a backup into a new directory.

Everything is written into a directory beside the target, checked there, and then moved into place
in one step. So an interrupted or failed restore leaves no target.
"""

from dataclasses import replace
from typing import NamedTuple

from penstock.backup.saving import OnFile
from penstock.backup.target import BackupError, BackupTarget, Manifest
from penstock.checking import check_local
from penstock.ledger import Damage, Ledger, verify
from penstock.ledger.files import Files, OsFiles, as_ledger_error, give_to_owner_of
from penstock.ledger.folder import Folder, remove_tree
from penstock.ledger.queue_directory import make_with_parents
from penstock.queue.fold import fold
from penstock.queue.settings import QueueSettings

_RESTORING = ".restoring"


class Restored(NamedTuple):
    """The result of a restore."""

    name: str  # of the backup
    kind: str
    queues: int
    files: int
    size_bytes: int
    entries: int  # messages and events, all read
    problems: list[tuple[str, Damage]]  # damage that the source had when it was backed up


def restore(
    backups: str,
    target: str,
    *,
    name: str | None = None,
    files: Files | None = None,
    on_file: OnFile | None = None,
) -> Restored:
    """Restore the newest backup, or the one with a name, into a new or empty directory.

    Every checksum is compared, and every queue is opened and read before it is put in place. If
    root restores into an empty directory, the files belong to the owner of that directory.
    """
    source = BackupTarget(backups)
    names = source.names()
    if not names:
        raise BackupError(f"{backups} {'has no backups' if source.exists() else 'does not exist'}")
    manifest = source.manifest(name or names[-1])
    files = files or OsFiles()
    place = Folder(files, check_local(target, "a backup is restored into a directory").rstrip("/"))
    if place.exists() and files.names(place.path):
        raise BackupError(f"{target} is not empty: restore into a new directory")
    beside = Folder(files, place.path + _RESTORING)
    try:
        if beside.exists():
            remove_tree(beside)  # an earlier restore was interrupted
        make_with_parents(beside)
        if isinstance(files, OsFiles) and place.exists():
            give_to_owner_of(place.path, beside.path)
        _write_files(source, manifest, beside, on_file or (lambda path, written: None))
        entries, problems = _read_queues(manifest, beside)
        _sync_tree(beside)
        if place.exists():
            files.remove_directory(place.path)
        files.rename(beside.path, place.path)
        place.parent().sync()
    except OSError as error:
        _give_up(beside)
        raise as_ledger_error(target, "restoring", error) from error
    except BaseException:
        _give_up(beside)
        raise
    return Restored(
        manifest.name,
        manifest.kind,
        len(manifest.queues),
        len(manifest.files),
        manifest.size_bytes,
        entries,
        problems,
    )


def _write_files(source: BackupTarget, manifest: Manifest, beside: Folder, on_file: OnFile) -> None:
    for one in manifest.files:
        *parents, name = one.path.split("/")
        folder = beside
        for parent in parents:
            folder = folder.child(parent)
            folder.make()
        source.copy(one, folder, name)
        on_file(one.path, one.size_bytes)


def _read_queues(manifest: Manifest, beside: Folder) -> tuple[int, list[tuple[str, Damage]]]:
    """Open every queue and read all its entries. Return their number, and what is damaged."""
    entries = 0
    problems = []
    for directory in manifest.queues:
        folder = beside
        for part in directory.split("/") if directory else ():
            folder = folder.child(part)
        stored = QueueSettings.of_stored(
            Ledger.stored_queue_settings(folder.path, files=folder.files)
        )
        settings = replace(
            stored.storage.ledger_settings(),
            on_corruption="quarantine",
            allow_network_file_system=True,
        )
        dedup_entries = stored.dedup_entries
        report = verify(
            folder.path,
            files=folder.files,
            settings=settings,
            fold=lambda ledger, entries=dedup_entries: fold(ledger, dedup_entries=entries),  # type: ignore[misc]
        )
        entries += report.entries
        problems += [(directory, one) for one in report.problems]
    return entries, problems


def _sync_tree(folder: Folder) -> None:
    for name in folder.files.names(folder.path):
        child = folder.child(name)
        try:
            _sync_tree(child)
        except NotADirectoryError:
            continue
    folder.sync()


def _give_up(beside: Folder) -> None:
    try:
        if beside.exists():
            remove_tree(beside)
    except OSError:
        pass  # the next restore removes it
