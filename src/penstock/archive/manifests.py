"""The manifest of an archived queue: which seqs are archived, in which files.

Each change of a manifest is a new file, `_manifests/shop.orders/<version>.json`, which is created
only if no other job has created it. Readers take the newest. Up to 0.2 a manifest was one file,
`_manifests/shop.orders.json`, which is read as version 0.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.archive.faults import ArchiveError
from penstock.names import directory_of

MANIFESTS = "_manifests"
MAX_FILES = 100_000  # in one manifest


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


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that the manifest no longer names. It is deleted later: it may still be read."""

    path: str
    removed_ns: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Seqs [first_seq, end_seq) that were removed from the queue before they were archived."""

    first_seq: int
    end_seq: int
    noted_ns: int


@dataclass(slots=True)
class ArchiveManifest:
    """The archived part of one queue: all messages that it had in [first_seq, next_seq).

    Except for gaps, which a job was asked to accept.
    """

    queue: str
    identity: int
    first_seq: int = 0
    next_seq: int = 0
    files: list[ArchivedFile] = field(default_factory=list)
    removed: list[RemovedFile] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    version: int = 0  # 0: not stored yet, or by version 0.2
    writer: str = ""  # random: tells a retried write of the same job from another job's

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def files_between(
        self,
        first_seq: int,
        end_seq: int,
        *,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> list[ArchivedFile]:
        """Return the files with seqs in [first_seq, end_seq) and times in [since_ns, until_ns)."""
        return [
            file
            for file in self.files
            if file.first_seq < end_seq
            and file.last_seq >= first_seq
            and (since_ns is None or file.last_ns >= since_ns)
            and (until_ns is None or file.first_ns < until_ns)
        ]

    def gaps_between(self, first_seq: int, end_seq: int) -> list[tuple[int, int]]:
        """Return the seqs [first, end) of gaps, as far as they are in [first_seq, end_seq)."""
        found = [(max(gap.first_seq, first_seq), min(gap.end_seq, end_seq)) for gap in self.gaps]
        return [(first, end) for first, end in found if first < end]

    def encoded(self) -> bytes:
        if len(self.files) > MAX_FILES:
            raise ArchiveError(
                f"the archive of {self.queue!r} would have {len(self.files):,} files, and "
                f"{MAX_FILES:,} is the limit: run `penstock spark compact` on it"
            )
        content = asdict(self)
        if not self.gaps:
            del content["gaps"]  # which version 0.2 does not know
        return (json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes, shown: str) -> "ArchiveManifest":
        try:
            content = json.loads(data)
            checksum = content.pop("checksum", None)
            if checksum is None and content.get("version"):  # those of 0.2 have neither
                raise ValueError("its checksum is missing")
            if checksum is not None and checksum != _checksum(content):
                raise ValueError("its checksum is wrong")
            files = [ArchivedFile(**file) for file in content.pop("files")]
            removed = [RemovedFile(**file) for file in content.pop("removed", ())]
            gaps = [Gap(**gap) for gap in content.pop("gaps", ())]
            return cls(files=files, removed=removed, gaps=gaps, **content)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ArchiveError(
                f"{shown} cannot be read ({error}): restore it from a backup, or move the archive "
                f"of this queue away and archive again"
            ) from None


def _checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest's content, however it is laid out."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def manifest_name(queue: str) -> str:
    """Return the name of a queue's manifests, below `_manifests`."""
    # `directory_of` escapes dots, so that a/b.c and a.b/c differ.
    parts = map(directory_of, queue.split("/")) if "/" in queue else [queue]
    return ".".join(parts)


def version_path(name: str, version: int) -> str:
    """Return the path of one version of a manifest."""
    if version == 0:
        return f"{MANIFESTS}/{name}.json"
    return f"{MANIFESTS}/{name}/{version:020d}.json"


def parse_version_path(path: str) -> tuple[str, int] | None:
    """Return the name and version of a manifest's file; None if it is another file.

    >>> parse_version_path("_manifests/shop.orders/00000000000000000007.json")
    ('shop.orders', 7)
    """
    parts = path.split("/")
    if not path.endswith(".json") or parts[0] != MANIFESTS:
        return None
    if len(parts) == 2:
        return parts[1].removesuffix(".json"), 0
    number = parts[2].removesuffix(".json")
    if len(parts) == 3 and len(number) == 20 and number.isdecimal():
        return parts[1], int(number)
    return None
