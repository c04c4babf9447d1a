"""What a disk holds for certain, and what only the system's cache holds, at one moment.

A file's content is certain up to its last fdatasync, a directory's names up to the last sync of
that directory. All later changes are pending: a power cut may keep any of them. A Disk is moved
forward by operations; `copy` is cheap because histories are never changed in place.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from penstock.ledger.memory_files import Image

# -- what can be done to a disk --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    number: int  # of the file's node
    offset: int
    data: bytes
    mapped: bool = False  # a store into mapped memory: no system call, and no order between pages


@dataclass(frozen=True, slots=True)
class Truncate:
    number: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    number: int


@dataclass(frozen=True, slots=True)
class SyncFailed:
    number: int


@dataclass(frozen=True, slots=True)
class Link:
    directory: int
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    directory: int
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Unlink:
    directory: int
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Rename:
    source_directory: int
    source_name: str
    directory: int
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    directory: int


ContentOperation = Write | Truncate
NameOperation = Link | MakeDirectory | Unlink | Rename
Operation = ContentOperation | NameOperation | Sync | SyncFailed | SyncDirectory

# -- what has become of it -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContentChange:
    """A change of a file that need not be on the disk yet."""

    step: int  # its place in the journal
    operation: ContentOperation
    certain: bool = False  # synced, but kept apart because something before it is in doubt
    doubtful: bool = False  # its sync failed: no later sync of the file makes it certain


class History:
    """One file: its certain content, and the changes since."""

    __slots__ = ("_now", "base", "changes")

    def __init__(self, base: bytes = b"", changes: tuple[ContentChange, ...] = ()) -> None:
        self.base = base
        self.changes = changes
        self._now: bytes | None = None if changes else base

    def now(self) -> bytes:
        """The content as every process sees it."""
        if self._now is None:
            content = bytearray(self.base)
            for change in self.changes:
                apply_content(content, change.operation)
            self._now = bytes(content)
        return self._now

    def changed(self, step: int, operation: ContentOperation) -> "History":
        return History(self.base, (*self.changes, ContentChange(step, operation)))

    def synced(self) -> "History":
        if any(change.doubtful for change in self.changes):
            return History(
                self.base,
                tuple(replace(each, certain=not each.doubtful) for each in self.changes),
            )
        return History(self.now())

    def sync_failed(self) -> "History":
        return History(
            self.base,
            tuple(replace(each, doubtful=not each.certain) for each in self.changes),
        )


@dataclass(frozen=True, slots=True)
class NameChange:
    """A change of names that need not be on the disk yet."""

    step: int
    operation: NameOperation
    unsynced: frozenset[int]  # the directories that must be synced before it is certain

    @property
    def certain(self) -> bool:
        return not self.unsynced


class PowerCut(Protocol):
    """Decides what of the pending changes a power cut leaves on the disk."""

    def keeps_name(self, change: NameChange) -> bool: ...

    def content(self, history: History) -> bytes:
        """What the file holds afterwards; only asked where changes are pending."""


Directories = dict[int, dict[str, int]]


class Disk:
    """All histories together."""

    def __init__(self, image: Image | None = None) -> None:
        """A disk on which all of the image is certain."""
        image = Image() if image is None else image
        self.step = 0  # how many steps of the journal it has seen
        self.histories = {number: History(content) for number, content in image.files.items()}
        self.directories: Directories = image.directories
        self.name_changes: tuple[NameChange, ...] = ()
        self._top = image.top()

    def copy(self) -> "Disk":
        other = Disk.__new__(Disk)
        other.step = self.step
        other.histories = dict(self.histories)
        other.directories = self.directories
        other.name_changes = self.name_changes
        other._top = self._top
        return other

    def top(self) -> int:
        """The highest node number ever used on it."""
        return self._top

    def apply(self, operation: Operation) -> None:
        """Move forward by one operation."""
        match operation:
            case Write(number) | Truncate(number):
                history = self.histories.get(number) or History()
                self.histories[number] = history.changed(self.step, operation)
            case Sync(number):
                self.histories[number] = (self.histories.get(number) or History()).synced()
            case SyncFailed(number):
                self.histories[number] = (self.histories.get(number) or History()).sync_failed()
            case SyncDirectory(directory):
                self._sync_directory(directory)
            case Link() | Unlink() | Rename() | MakeDirectory():
                self._change_names(operation)
        self.step += 1

    def pending_steps(self) -> list[int]:
        """The places in the journal of all changes that a power cut could take."""
        steps = [change.step for change in self.name_changes if not change.certain]
        for history in self.histories.values():
            steps += [change.step for change in history.changes if not change.certain]
        return sorted(steps)

    def cached(self) -> Image:
        """What every process sees, and still sees after the death of one of them."""
        directories = self._names_after(list(self.name_changes))
        return Image(
            {number: self.histories[number].now() for number in self._files_in(directories)},
            directories,
        )

    def after(self, cut: PowerCut) -> "Disk":
        """The disk as the machine finds it when the power is back."""
        directories = self._names_after(
            [change for change in self.name_changes if change.certain or cut.keeps_name(change)]
        )
        contents = {}
        for number in self._files_in(directories):
            history = self.histories[number]
            contents[number] = cut.content(history) if history.changes else history.base
        return Disk(Image(contents, directories))

    def _files_in(self, directories: Directories) -> list[int]:
        numbers = {number for entries in directories.values() for number in entries.values()}
        return sorted(numbers.difference(directories))

    def _names_after(self, changes: list[NameChange]) -> Directories:
        directories = {number: dict(entries) for number, entries in self.directories.items()}
        for change in changes:
            apply_names(directories, change.operation)
        return directories

    def _change_names(self, operation: NameOperation) -> None:
        if isinstance(operation, MakeDirectory):
            self.directories = {**self.directories, operation.number: {}}
        elif isinstance(operation, Link):
            self.histories[operation.number] = History()
        self._top = max(self._top, operation.number)
        change = NameChange(self.step, operation, _touched(operation))
        self.name_changes = (*self.name_changes, change)

    def _sync_directory(self, directory: int) -> None:
        """Fold what has become certain; a rename out of another directory may have to wait."""
        now_certain = []
        waiting: list[NameChange] = []
        waited_for: set[int] = set()
        for change in self.name_changes:
            change = replace(change, unsynced=change.unsynced - {directory})
            touched = _touched(change.operation)
            if change.certain and waited_for.isdisjoint(touched):
                now_certain.append(change)
            else:
                waiting.append(change)
                waited_for |= touched
        self.directories = self._names_after(now_certain)
        self.name_changes = tuple(waiting)


def apply_content(content: bytearray, operation: ContentOperation) -> None:
    """Do to a content what the operation did."""
    if isinstance(operation, Truncate):
        if operation.size < len(content):
            del content[operation.size :]
        else:
            content.extend(bytes(operation.size - len(content)))
        return
    end = operation.offset + len(operation.data)
    if operation.offset > len(content):
        content.extend(bytes(operation.offset - len(content)))
    content[operation.offset : end] = operation.data


def apply_names(directories: Directories, operation: NameOperation) -> None:
    """Do to the names what the operation did, as far as it finds what it was done to."""
    if isinstance(operation, Rename):
        source = directories[operation.source_directory]
        if source.get(operation.source_name) == operation.number:
            del source[operation.source_name]
    entries = directories[operation.directory]
    if not isinstance(operation, Unlink):
        entries[operation.name] = operation.number
    elif entries.get(operation.name) == operation.number:
        del entries[operation.name]


def _touched(operation: NameOperation) -> frozenset[int]:
    if isinstance(operation, Rename):
        return frozenset((operation.source_directory, operation.directory))
    return frozenset((operation.directory,))
