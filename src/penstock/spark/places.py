"""Where the queues are: a queue's own directory, or a broker's data directory with many of them.

`Where` is the seam: source, sink and jobs ask it for queues, and whoever holds the files answers.
Here they lie in a directory that driver and executors both see.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import InvalidInput, NotALedger
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.manifest import MANIFEST_NAME

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class QueueAt:
    """One queue, and where its directory is."""

    namespace: str | None  # None: a queue directory that was named by itself
    name: str
    path: str

    @property
    def key(self) -> str:
        """How offsets and options call it."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"


class Where(Protocol):
    """A place that has queues."""

    def queues(self) -> Sequence[QueueAt]:
        """All of them, by key."""


class Directory:
    """Queues in a directory that this process can see."""

    def __init__(self, path: str) -> None:
        self._root = Folder(OsFiles(), path)

    @property
    def is_queue(self) -> bool:
        """Is it the directory of one queue?"""
        return self._root.has(MANIFEST_NAME)

    def queues(self) -> list[QueueAt]:
        path = self._root.path
        if not self._root.exists():
            raise NotALedger(f"{path} does not exist (on this machine)")
        if self.is_queue:
            name = path.rstrip("/").rpartition("/")[2] or path
            return [QueueAt(None, name, path)]
        found = [
            QueueAt(namespace, name, folder.child(name).path)
            for namespace in self._names(self._root)
            for folder in [self._root.child(namespace)]
            for name in self._names(folder)
            if folder.child(name).has(MANIFEST_NAME)
        ]
        if not found:
            raise NotALedger(
                f"{path} is neither a queue (it has no {MANIFEST_NAME}) nor a broker's data "
                f"directory (it has no <namespace>/<queue>/{MANIFEST_NAME})"
            )
        return found

    def _names(self, folder: Folder) -> list[str]:
        try:
            return [name for name in folder.names() if NAME.fullmatch(name)]
        except NotADirectoryError:
            return []


def chosen(where: Where, names: Sequence[str], pattern: str | None) -> list[QueueAt]:
    """The queues that were asked for: by name, by pattern, or all."""
    found = {queue.key: queue for queue in where.queues()}
    if pattern is not None:
        matching = [queue for key, queue in found.items() if re.fullmatch(pattern, key)]
        if not matching:
            raise InvalidInput(
                f"no queue matches subscribePattern {pattern!r}; there are {_listed(found)}"
            )
        return matching
    if not names:
        return list(found.values())
    return [_named(found, name) for name in dict.fromkeys(names)]


def _named(found: dict[str, QueueAt], name: str) -> QueueAt:
    if name in found:
        return found[name]
    alone = next(iter(found.values())) if len(found) == 1 else None
    if alone is not None and alone.namespace is None and name.rpartition("/")[2] == alone.name:
        return alone
    raise InvalidInput(f"there is no queue {name!r}; there are {_listed(found)}")


def _listed(found: dict[str, QueueAt]) -> str:
    keys = sorted(found)
    shown = ", ".join(keys[:10])
    return shown if len(keys) <= 10 else f"{shown} and {len(keys) - 10} more"
