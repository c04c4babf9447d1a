"""Archives as jobs reach them: from the driver, and from tasks.

Tasks run Python, so they write to directories and object stores by themselves. Hadoop's file
systems are in the JVM of the driver: for those, tasks hand their files to the driver.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.archive import Archive, ArchiveStore, StoredFile, archive_at
from penstock.archive.object_stores import check_installed
from penstock.archive.places import place_of
from penstock.checking import is_url
from penstock.errors import InvalidInput
from penstock.spark.hadoop_store import HadoopStore
from penstock.spark.workers import TASKS_PER_CORE


@dataclass(slots=True)
class HandedFiles:
    """A store in the memory of a task: files that the driver gave to it, or that it returns."""

    shown: str
    contents: dict[str, bytes] = field(default_factory=dict)

    @property
    def has_lock(self) -> bool:
        return False

    def check(self) -> None:
        pass

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def read(self, path: str) -> bytes:
        try:
            return self.contents[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def write(self, path: str, data: bytes) -> None:
        self.contents[path] = data

    def create(self, path: str, data: bytes) -> bool:
        return self.contents.setdefault(path, data) is data

    def delete(self, path: str) -> None:
        self.contents.pop(path, None)

    def files(self, folder: str) -> list[StoredFile]:
        return [
            StoredFile(path, len(data), 0)
            for path, data in sorted(self.contents.items())
            if path.startswith(folder)
        ]

    def remove_leftovers(self, folder: str) -> None:
        pass


def check_place(location: str, *, writes: bool = True) -> None:
    """Raise if an archive cannot be here. Hadoop's file systems are asked when Spark runs."""
    place = place_of(location)
    if place.kind == "hadoop":
        return
    if writes and place.kind != "local":
        check_installed()
    archive_at(location).store.check()


def check_outside(name: str, target: str, source: str) -> None:
    """Raise InvalidInput if the target of a job is inside the directory that the job reads."""
    place = place_of(target)
    if place.kind != "local" or is_url(source):
        return
    if Path(place.root).resolve().is_relative_to(Path(source).resolve()):
        raise InvalidInput(
            f"the {name} {target} is inside {source}, and its files would mix with the queue's: "
            f"choose a directory outside"
        )


def shown_place(location: str) -> str:
    """Return a location to be shown: without secrets."""
    return place_of(location).shown


def archive_of(spark: SparkSession, location: str) -> Archive:
    """Return the archive at a location, which need not exist."""
    place = place_of(location)
    return Archive(HadoopStore(spark, place)) if place.kind == "hadoop" else archive_at(location)


def tasks_per_core(store: ArchiveStore) -> int:
    """Return how many tasks of a wave a core gets. Handed files are in the driver's memory."""
    return 1 if isinstance(store, HadoopStore) else TASKS_PER_CORE


def task_store(store: ArchiveStore, *paths: str) -> ArchiveStore:
    """Return the store as tasks use it. `paths` are the files that the task reads."""
    if not isinstance(store, HadoopStore):
        return store
    return HandedFiles(store.shown, {path: store.read(path) for path in paths})
