"""The ways in which a power cut can choose among the changes that were not yet on the disk.

Real caches write back whole pages in any order, and a page may be torn at a sector. So each block
of a file can be of another age than its neighbour, the size of another age than the blocks, and a
name can be there without its content, or the content without its name.
"""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from tests.harness.disk import ContentChange, History, NameChange, Truncate, Write, apply_content

SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Whole:
    """All pending names or none of them, all pending content or none of it."""

    names: bool
    content_too: bool

    def keeps_name(self, change: NameChange) -> bool:
        return self.names

    def content(self, history: History) -> bytes:
        if self.content_too:
            return history.now()
        return _with(history, ())


@dataclass(frozen=True, slots=True)
class Only:
    """Exactly the changes of these steps of the journal."""

    steps: Collection[int]

    def keeps_name(self, change: NameChange) -> bool:
        return change.step in self.steps

    def content(self, history: History) -> bytes:
        return _with(history, self.steps)


@dataclass(frozen=True, slots=True)
class UpTo:
    """Everything in journal order up to a step, of which only a first part is there."""

    step: int
    part: float

    def keeps_name(self, change: NameChange) -> bool:
        return change.step <= self.step

    def content(self, history: History) -> bytes:
        content = bytearray(history.base)
        for change in history.changes:
            if change.certain or change.step < self.step:
                apply_content(content, change.operation)
            elif change.step == self.step and isinstance(change.operation, Write):
                length = round(len(change.operation.data) * self.part)
                if length:
                    apply_content(content, _first_bytes(change.operation, length))
        return bytes(content)


@dataclass(frozen=True, slots=True)
class Aged:
    """Each block is of an age of its own; so is the size."""

    random: Random
    block_bytes: int

    def keeps_name(self, change: NameChange) -> bool:
        return self.random.random() < 0.5

    def content(self, history: History) -> bytes:
        changes = history.changes
        ages: dict[int, int] = {}  # by block: how many of the changes it has seen
        size_age = self._age(len(changes))
        size = len(history.base)
        content = bytearray(history.base)
        for number, change in enumerate(changes):
            operation = change.operation
            if change.certain or number < size_age:
                size = _size_after(size, change)
            if isinstance(operation, Truncate):
                first, end = operation.size, len(content)
            else:
                first, end = operation.offset, operation.offset + len(operation.data)
            if end > len(content):
                content.extend(bytes(end - len(content)))
            for start in range(first - first % self.block_bytes, end, self.block_bytes):
                block = start // self.block_bytes
                if block not in ages:
                    ages[block] = self._age(len(changes))
                if not change.certain and number >= ages[block]:
                    continue
                left, right = max(start, first), min(start + self.block_bytes, end)
                if isinstance(operation, Truncate):
                    content[left:right] = bytes(right - left)
                else:
                    content[left:right] = operation.data[left - first : right - first]
        if size <= len(content):
            return bytes(content[:size])
        return bytes(content).ljust(size, b"\0")

    def _age(self, changes: int) -> int:
        # All and nothing are the likely ones: a block is mostly written back once, or not yet.
        chance = self.random.random()
        if chance < 0.35:
            return 0
        if chance < 0.7:
            return changes
        return self.random.randint(0, changes)


@dataclass(frozen=True, slots=True)
class Shredded:
    """Each change is there, or not, or a part of it: more than most disks would dare."""

    random: Random

    def keeps_name(self, change: NameChange) -> bool:
        return self.random.random() < 0.5

    def content(self, history: History) -> bytes:
        content = bytearray(history.base)
        for change in history.changes:
            if change.certain or isinstance(change.operation, Truncate):
                if change.certain or self.random.random() < 0.5:
                    apply_content(content, change.operation)
            else:
                self._shred(content, change.operation)
        return bytes(content)

    def _shred(self, content: bytearray, write: Write) -> None:
        fate = self.random.choice(("whole", "lost", "first bytes", "sectors", "zeros"))
        if fate == "whole":
            apply_content(content, write)
        elif fate == "first bytes":
            length = self.random.randint(0, len(write.data))
            if length:
                apply_content(content, _first_bytes(write, length))
        elif fate == "sectors":
            end = write.offset + len(write.data)
            start = write.offset
            while start < end:
                stop = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
                if self.random.random() < 0.5:
                    data = write.data[start - write.offset : stop - write.offset]
                    apply_content(content, Write(write.number, start, data))
                start = stop
        elif fate == "zeros":
            # The new size is there, the content is not.
            end = write.offset + len(write.data)
            if end > len(content):
                content.extend(bytes(end - len(content)))


def _with(history: History, steps: Collection[int]) -> bytes:
    content = bytearray(history.base)
    for change in history.changes:
        if change.certain or change.step in steps:
            apply_content(content, change.operation)
    return bytes(content)


def _first_bytes(write: Write, length: int) -> Write:
    return Write(write.number, write.offset, write.data[:length])


def _size_after(size: int, change: ContentChange) -> int:
    operation = change.operation
    if isinstance(operation, Truncate):
        return operation.size
    return max(size, operation.offset + len(operation.data))
