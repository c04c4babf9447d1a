"""The ways in which a file can be damaged."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from penstock.torture.damage_store import Truth

Kind = Literal["flip", "cut", "zero", "overwrite", "insert a copy", "copy over"]
KINDS: tuple[Kind, ...] = ("flip", "cut", "zero", "overwrite", "insert a copy", "copy over")


@dataclass(frozen=True, slots=True)
class Stroke:
    """One damage to one file: bytes from `start` to `end` are no longer what they were."""

    file: str
    kind: Kind
    start: int
    end: int  # equal to `start` where bytes were only put in between, and nothing minds
    content: bytes  # of the whole file, afterwards
    source: str = ""  # of a copy

    def __str__(self) -> str:
        return f"{self.kind} {self.source} {self.file} {self.start}..{self.end}"

    def spares(self, start: int, end: int) -> bool:
        """Whether the bytes of that range still stand there side by side."""
        return end <= self.start or start >= self.end


def flip(truth: Truth, file: str, bit: int) -> Stroke:
    content = bytearray(truth.files[file])
    content[bit // 8] ^= 1 << bit % 8
    return Stroke(file, "flip", bit // 8, bit // 8 + 1, bytes(content))


def every_bit(truth: Truth, file: str) -> Iterator[Stroke]:
    for bit in range(8 * len(truth.files[file])):
        yield flip(truth, file, bit)


def stroke(truth: Truth, random: Random) -> Stroke:
    """Any damage to any file; the larger files are hit more often."""
    file = random.choices(list(truth.files), [len(each) for each in truth.files.values()])[0]
    content = truth.files[file]
    kind = random.choice(KINDS)
    if kind == "flip":
        return flip(truth, file, random.randrange(8 * len(content)))
    start, end = _range(truth, file, random)
    if kind == "cut":
        return Stroke(file, kind, start, len(content), content[:start])
    if kind == "zero":
        return Stroke(file, kind, start, end, _over(content, start, bytes(end - start)))
    if kind == "overwrite":
        data = random.randbytes(end - start)
        return Stroke(file, kind, start, end, _over(content, start, data))
    copy = content[start:end]
    at = _range(truth, file, random)[0]
    if kind == "insert a copy":
        data = content[:at] + copy + content[at:]
        moved = len(content) if file in truth.last_segments.values() else at
        return Stroke(file, kind, at, moved, data, source=f"of {start}..{end}")
    copy = copy[: len(content) - at]
    data = _over(content, at, copy)
    return Stroke(file, kind, at, at + len(copy), data, source=f"of {start}..{end}")


def _over(content: bytes, start: int, data: bytes) -> bytes:
    return content[:start] + data + content[start + len(data) :]


def _range(truth: Truth, file: str, random: Random) -> tuple[int, int]:
    """Some bytes of a file: any, a sector, or whole entries."""
    size = len(truth.files[file])
    match random.randrange(4):
        case 0:
            start = random.randrange(size)
            return start, min(size, start + random.choice((1, 2, 8, 30, 200)))
        case 1:
            start = random.randrange(0, size, 512)
            return start, min(size, start + 512)
        case 2:
            first, second = random.randrange(size), random.randrange(size)
            return min(first, second), max(first, second) + 1
        case _:
            bounds = sorted({0, size, *_entry_bounds(truth, file)})
            first = random.randrange(len(bounds) - 1)
            return bounds[first], bounds[min(first + random.randint(1, 4), len(bounds) - 1)]


def _entry_bounds(truth: Truth, file: str) -> Iterator[int]:
    for places in truth.places.values():
        for place in places.values():
            if place.file == file:
                yield place.start
                yield place.end
