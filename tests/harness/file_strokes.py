"""The ways in which a whole file of a queue can be damaged."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.harness.file_lives import Contents

FLIP_STEP = 61  # every bit of a segment is flipped in tests.rings.test_damage
_HEADER_BYTES = 64


@dataclass(frozen=True, slots=True)
class FileStroke:
    """One damage, and the queue's directory after it."""

    kind: str
    file: str
    contents: Contents
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.file} {self.where}"


def strokes(contents: Contents, older: list[Contents]) -> Iterator[FileStroke]:
    """Every damage to every file."""
    for file, data in contents.items():
        yield FileStroke("delete", file, {k: v for k, v in contents.items() if k != file})
        for at in _cuts(file, data):
            kind = "cut" if at else "empty"
            yield FileStroke(kind, file, {**contents, file: data[:at]}, f"at {at}")
        for bit in range(0, 8 * len(data), FLIP_STEP):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            yield FileStroke("flip", file, {**contents, file: bytes(flipped)}, f"bit {bit}")
        yield from _swaps(contents, file)
        yield from _duplicates(contents, file)
    for number, old in enumerate(older):
        for file, data in old.items():
            if contents.get(file) != data:
                yield FileStroke(
                    "older copy of", file, {**contents, file: data}, f"moment {number}"
                )


def _swaps(contents: Contents, file: str) -> Iterator[FileStroke]:
    for other in contents:
        if other > file and _ending(other) == _ending(file):
            swapped = {**contents, file: contents[other], other: contents[file]}
            if swapped != contents:
                yield FileStroke("swap", file, swapped, f"with {other}")


def _duplicates(contents: Contents, file: str) -> Iterator[FileStroke]:
    """A copy under the number of another file, and under numbers that no file has."""
    folder, _, name = file.rpartition("/")
    stem, dot, ending = name.rpartition(".")
    if not stem.isdigit():
        return
    siblings = [k for k in contents if k.startswith(f"{folder}/") and k.endswith(ending)]
    numbers = {int(k.rpartition("/")[2].partition(".")[0]) for k in siblings}
    last = max(numbers)
    for number in {*numbers, *(n + 1 for n in numbers), last + 2, last + 9, last + 1000}:
        target = f"{folder}/{number:020d}{dot}{ending}"
        if contents.get(target) != contents[file]:
            yield FileStroke("copy", file, {**contents, target: contents[file]}, f"to {target}")


def entry_bounds(data: bytes) -> list[int]:
    """Where the entries of a segment begin and end."""
    bounds, at = [], _HEADER_BYTES
    while at + 4 <= len(data) and (length := int.from_bytes(data[at : at + 4], "little")):
        bounds.append(at)
        at += 4 + length
    return [*bounds, at]


def _cuts(file: str, data: bytes) -> list[int]:
    cuts = {0, 1, len(data) // 2, len(data) - 1}
    if file.endswith(".log"):
        for bound in entry_bounds(data):
            cuts |= {bound - 1, bound, bound + 1, bound + 13}
    return sorted(at for at in cuts if 0 <= at < len(data))


def _ending(path: str) -> str:
    return path.rpartition(".")[2]
