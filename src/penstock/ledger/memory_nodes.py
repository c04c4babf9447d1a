"""The things a file system in memory is made of: files, directories, and whole images of them."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from penstock.ledger.files import Memory, anonymous_memory

BLOCK_BYTES = 4096
ROOT = 0

# Up to here a mapped file gets its room as a bytearray, which is quicker to make than a mapping.
_SMALL_ROOM_BYTES = 1 << 20

Backing = bytearray | Memory


class FileNode:
    """The content of one file, whatever its names are.

    Content that came from an image stays shared and immutable until it is first changed or mapped.
    A mapped file cannot move in memory, so the first mapping gives it room to grow in place.
    """

    __slots__ = ("_backing", "_blocks", "_frozen", "_room_bytes", "lock_holder", "number", "size")

    def __init__(self, number: int, content: bytes = b"") -> None:
        self.number = number
        self.size = len(content)
        self.lock_holder: int | None = None
        self._frozen: bytes | None = content
        self._backing: Backing = bytearray()
        self._room_bytes = 0  # 0: never mapped, may be moved
        self._blocks: set[int] | None = None  # None: as many as the size needs

    def content(self) -> bytes:
        if self._frozen is not None:
            return self._frozen
        return bytes(memoryview(self._backing)[: self.size])

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        source = self._backing if self._frozen is None else self._frozen
        return bytes(source[offset:end])

    def write(self, offset: int, data: bytes | memoryview) -> None:
        end = offset + len(data)
        backing = self._grown(max(end, self.size))
        self.blocks.update(blocks_between(offset, end))
        backing[offset:end] = data
        self.size = max(end, self.size)

    def resize(self, size: int) -> None:
        # No call between the changes: an interrupt finds the file resized, or as it was.
        if size < self.size:
            backing = self._grown(self.size)
            zeros = bytes(self.size - size)
            kept = len(blocks_between(0, size))
            blocks = {block for block in self.blocks if block < kept}
            backing[size : self.size] = zeros
        else:
            blocks = self.blocks  # counted before the size changes: the new part is a hole
            self._grown(size)
        self._blocks, self.size = blocks, size

    def view(self, size: int, room_bytes: int) -> memoryview:
        """Return the first bytes as shared memory, with room for the file to grow."""
        if self._room_bytes == 0:
            room_bytes = max(room_bytes, self.size)
            backing: Backing
            if room_bytes <= _SMALL_ROOM_BYTES:
                backing = bytearray(room_bytes)
            else:
                backing = anonymous_memory(room_bytes)
            backing[: self.size] = self.content()
            # No call between the changes: an interrupt finds the file mapped, or as it was.
            self._backing, self._frozen, self._room_bytes = backing, None, room_bytes
        return memoryview(self._backing)[:size]

    def is_viewed(self) -> bool:
        """Return whether a view of its memory may still be in use."""
        if self._room_bytes == 0:
            return False
        if not isinstance(self._backing, bytearray):
            return True
        try:
            self._backing.append(0)  # memory that someone looks at cannot change its length
        except BufferError:
            return True
        self._backing.pop()
        return False

    @property
    def blocks(self) -> set[int]:
        """Which blocks take space; a hole takes none."""
        if self._blocks is None:
            self._blocks = set(blocks_between(0, self.size))
        return self._blocks

    def _grown(self, size: int) -> Backing:
        if self._frozen is not None:
            self._backing, self._frozen = bytearray(self._frozen), None
        if size > len(self._backing):
            assert self._room_bytes == 0, (
                f"a mapped file of {self._room_bytes} bytes of room should grow to {size}: "
                "give MemoryFiles a larger mapped_room_bytes"
            )
            assert isinstance(self._backing, bytearray)
            self._backing.extend(bytes(size - len(self._backing)))
        return self._backing


class DirectoryNode:
    """The names in one directory."""

    __slots__ = ("entries", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[str, FileNode | DirectoryNode] = {}


Node = FileNode | DirectoryNode


@dataclass(slots=True)
class Image:
    """A whole file system as plain values: contents and directories by node number."""

    files: dict[int, bytes] = field(default_factory=dict)
    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})

    def key(self) -> Hashable:
        """Return a key that is equal for equal images."""
        directories = (
            (number, *sorted(entries.items())) for number, entries in self.directories.items()
        )
        return tuple(directories), tuple(self.files.items())

    def top(self) -> int:
        """Return the highest node number in use."""
        return max((*self.files, *self.directories))

    def tree(self) -> DirectoryNode:
        """Return new nodes for everything below the root. Contents are shared."""
        return self._directory(ROOT, {})

    def _directory(self, number: int, made: dict[int, FileNode]) -> DirectoryNode:
        node = DirectoryNode(number)
        for name, child in self.directories[number].items():
            if child in self.directories:
                node.entries[name] = self._directory(child, made)
            else:
                if child not in made:
                    made[child] = FileNode(child, self.files[child])
                node.entries[name] = made[child]
        return node


def image_of(root: DirectoryNode) -> Image:
    """Return the image of a tree: the reverse of `Image.tree`."""
    image = Image(directories={})
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        image.directories[directory.number] = {
            name: node.number for name, node in directory.entries.items()
        }
        for node in directory.entries.values():
            if isinstance(node, DirectoryNode):
                waiting.append(node)
            else:
                image.files[node.number] = node.content()
    return image


def blocks_between(start: int, end: int) -> range:
    """Return the numbers of the blocks that hold the bytes [start, end)."""
    return range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
