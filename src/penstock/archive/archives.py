"""An archive: opened by its location, it lists what it has, and commits what jobs add."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from penstock.archive.faults import ArchiveConflict, ArchiveError
from penstock.archive.manifests import (
    MANIFESTS,
    ArchiveManifest,
    manifest_name,
    parse_version_path,
    version_path,
)
from penstock.archive.object_stores import ObjectStore
from penstock.archive.places import Place, place_to_read
from penstock.archive.stores import ArchiveStore, LocalStore
from penstock.errors import InvalidInput

_KEPT_VERSIONS = 10  # of each manifest, for readers that listed them a moment ago
_READ_ATTEMPTS = 5


class Archive:
    """The manifests of an archive, and the store of its files."""

    def __init__(self, store: ArchiveStore) -> None:
        self.store = store

    @property
    def shown(self) -> str:
        """The location, for messages: without secrets."""
        return self.store.shown

    def exists(self) -> bool:
        """Return whether anything is archived here."""
        return bool(self._versions())

    def manifests(self) -> list[ArchiveManifest]:
        """Return the manifests of all archived queues, by queue. Raise if this is no archive."""
        found = self._versions()
        if not found:
            raise ArchiveError(f"{self.shown} is not an archive: it has no {MANIFESTS}")
        loaded = (self._newest(name, found[name]) for name in sorted(found))
        return sorted((one for one in loaded if one is not None), key=lambda one: one.queue)

    def queues(self) -> list[str]:
        """Return the names of all archived queues."""
        return [manifest.queue for manifest in self.manifests()]

    def manifest(self, queue: str) -> ArchiveManifest | None:
        """Return the manifest of a queue; None if nothing of it is archived."""
        name = manifest_name(queue)
        found = self._newest(name, self._versions(name).get(name, []))
        if found is not None and found.queue != queue:
            # On a file system that ignores case.
            raise ArchiveError(
                f"{self.shown} has an archive of another queue with the name {found.queue!r}: "
                f"archive {queue!r} elsewhere"
            )
        return found

    def one_manifest(self, queue: str | None) -> ArchiveManifest:
        """Return the manifest of a queue; without a name, of the only one."""
        found = every = self.manifests()
        if queue is not None:
            found = [manifest for manifest in every if manifest.queue == queue]
        if len(found) != 1:
            keys = ", ".join(manifest.queue for manifest in every)
            raise InvalidInput(f"name one queue of the archive: it has {keys or 'none'}")
        return found[0]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other jobs out where the store can; elsewhere `commit` recognises them."""
        with self.store.locked():
            yield

    def commit(self, manifest: ArchiveManifest) -> None:
        """Store the next version of a manifest. Raise ArchiveConflict if another job was first.

        A crash leaves the version before, or this one.
        """
        name = manifest_name(manifest.queue)
        version = manifest.version + 1
        made = replace(manifest, version=version, writer=secrets.token_hex(8))
        path, data = version_path(name, version), made.encoded()
        if not self.store.create(path, data) and self._read(path) != data:
            # Not a retry of the same request, of which the first answer was lost.
            raise self._conflict(manifest.queue)
        versions = self._versions(name).get(name, [])
        if max(versions, default=version) != version:
            # Old versions are removed, so their names can be created again. No job reads them.
            self.store.delete(path)
            raise self._conflict(manifest.queue)
        manifest.version, manifest.writer = version, made.writer
        for old in versions:
            if old <= version - _KEPT_VERSIONS:
                self.store.delete(version_path(name, old))

    def _conflict(self, queue: str) -> ArchiveConflict:
        return ArchiveConflict(
            f"another job changed the archive of {queue!r} in {self.shown} at the same time: what "
            f"it archived is kept; run this job again"
        )

    def _versions(self, name: str = "") -> dict[str, list[int]]:
        """Return the stored versions of each manifest, or of one."""
        folder = f"{MANIFESTS}/{name}".rstrip("/")
        files = self.store.files(folder)
        if name and not files and self._read(version_path(name, 0)) is not None:
            return {name: [0]}
        found: dict[str, list[int]] = {}
        for file in files:
            parsed = parse_version_path(file.path)
            if parsed is not None:
                found.setdefault(parsed[0], []).append(parsed[1])
        return found

    def _newest(self, name: str, versions: list[int]) -> ArchiveManifest | None:
        for _ in range(_READ_ATTEMPTS):
            if not versions:
                return None
            path = version_path(name, max(versions))
            data = self._read(path)
            if data is not None:
                return ArchiveManifest.parse(data, f"{self.shown}/{path}")
            # Later jobs stored enough versions that this one was removed.
            versions = self._versions(name).get(name, [])
        raise ArchiveError(f"the manifest of {name} in {self.shown} changes too fast to be read")

    def _read(self, path: str) -> bytes | None:
        try:
            return self.store.read(path)
        except FileNotFoundError:
            return None


def archive_at(location: str, variables: Mapping[str, str] | None = None) -> Archive:
    """Return the archive at a location, which need not exist.

    `variables` replace those of the environment, which may have credentials. Raise InvalidInput for
    a location that only Hadoop's file systems know: those are read by jobs on Spark.
    """
    return archive_of_place(place_to_read(location, variables))


def archive_of_place(place: Place) -> Archive:
    """Return the archive in a directory or an object store, which need not exist."""
    return Archive(LocalStore(place.root) if place.kind == "local" else ObjectStore(place))


def open_archive(location: str) -> Archive:
    """Return the archive at a location. Raise ArchiveError if there is none."""
    archive = archive_at(location)
    if not archive.exists():
        archive.store.check()
        raise ArchiveError(f"{archive.shown} is not an archive: it has no {MANIFESTS}")
    return archive
