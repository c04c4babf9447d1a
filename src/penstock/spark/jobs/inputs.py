"""What each job was given, checked without Spark: a command looks before it starts a JVM."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import codec
from penstock.checking import check_choice
from penstock.errors import InvalidInput
from penstock.spark.archive_files import ArchiveManifest, local_directory, manifests
from penstock.spark.groups import group_names
from penstock.spark.places import QueueAt, check_reachable, queues_at
from penstock.spark.targets import check_target
from penstock.spark.watching import watcher_of

__all__ = [
    "ArchivedRange",
    "check_archive",
    "check_audit",
    "check_redrive",
    "check_report",
    "check_restore",
    "check_stream",
    "check_target",
]

STREAM_TARGETS = ("parquet", "console", "queue")


def queues_named(path: str, queue: str | None) -> list[QueueAt]:
    """Return the queues of a place, or the one that was named."""
    check_reachable(path)
    return queues_at(path, names=[] if queue is None else [queue])


def check_archive(path: str, target: str, queue: str | None) -> tuple[list[QueueAt], Path]:
    """Return the queues to archive, and the archive's directory."""
    return queues_named(path, queue), local_directory(target)


def check_audit(
    path: str, queue: str | None, archive: str | None
) -> tuple[list[QueueAt], Path | None]:
    """Return the queues to audit, and the archive's directory if there is one to audit."""
    queues = queues_named(path, queue)
    if archive is None:
        return queues, None
    root = local_directory(archive)
    manifests(root)
    return queues, root.absolute()


def check_report(
    path: str, target: str, queue: str | None, group: str
) -> tuple[list[QueueAt], Path]:
    """Return the queues to report on, and the report's directory."""
    queues, root = queues_named(path, queue), local_directory(target)
    known = {name for one in queues for name in _groups(one)}
    if group not in known:
        raise InvalidInput(f"there is no group {group!r}; there are {', '.join(sorted(known))}")
    return queues, root


def _groups(queue: QueueAt) -> list[str]:
    return list(group_names(watcher_of(queue, "events").look()).values())


def check_redrive(path: str, queue: str | None, group: str) -> QueueAt:
    """Return the queue whose dead letters are meant."""
    found = queues_named(path, queue)
    if len(found) != 1:
        raise InvalidInput(f"name one queue: there are {', '.join(each.key for each in found)}")
    known = _groups(found[0])
    if group not in known:
        raise InvalidInput(f"there is no group {group!r}; there are {', '.join(sorted(known))}")
    return found[0]


def check_stream(
    source: str | None, target: str, to: str, queue: str | None, target_queue: str | None
) -> None:
    """Raise for a source or a target that no stream can have. Spark's own targets are Spark's."""
    check_choice("to", to, STREAM_TARGETS)
    if source is not None:
        queues_named(source, queue)
    if to == "queue":
        check_target(target, target_queue)


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """A range of an archived queue: seqs [first_seq, end_seq), and times [since, until)."""

    root: Path
    manifest: ArchiveManifest
    first_seq: int
    end_seq: int
    since: datetime | None
    until: datetime | None


def check_restore(
    archive: str,
    *,
    queue: str | None = None,
    first_seq: int | None = None,
    end_seq: int | None = None,
    first_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> ArchivedRange:
    """Return the range that is meant. Its ends are cut to what the archive has."""
    root = local_directory(archive)
    manifest = _manifest(root, queue)
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            raise InvalidInput(f"{name} is {moment}, which says no time zone: give it one")
    if since is not None and until is not None and since > until:
        raise InvalidInput(f"since is {since}, which is after until, {until}")
    if first_id is not None:
        if first_seq is not None:
            raise InvalidInput("give first_seq or first_id, not both")
        _, identity, first_seq = codec.parse_id(first_id)
        if identity != manifest.identity:
            raise InvalidInput(f"{first_id} is the id of a message of another queue")
    if first_seq is not None and end_seq is not None and first_seq > end_seq:
        raise InvalidInput(f"first_seq is {first_seq}, which is behind end_seq, {end_seq}")
    low = max(manifest.first_seq, first_seq or 0)
    high = manifest.next_seq if end_seq is None else min(end_seq, manifest.next_seq)
    return ArchivedRange(root.absolute(), manifest, low, max(low, high), since, until)


def _manifest(root: Path, queue: str | None) -> ArchiveManifest:
    found = every = manifests(root)
    if queue is not None:
        found = [manifest for manifest in every if manifest.queue == queue]
    if len(found) != 1:
        keys = ", ".join(manifest.queue for manifest in every)
        raise InvalidInput(f"name one queue of the archive: it has {keys or 'none'}")
    return found[0]
