"""A file system in memory behind the Files seam: for queues that need not survive the process.

It behaves as the operating system does, error numbers included; the tests of `Files` run on both.
"""

import errno
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from random import Random, SystemRandom

from penstock.ledger.files import (
    Mapping,
    Memory,
    OpenMode,
    anonymous_memory,
    holder_name,
    os_error,
)

BLOCK_BYTES = 4096
ROOT = 0
UNLIMITED_BYTES = 1 << 40
# Up to here a mapped file gets its room as a bytearray, which is quicker to make than a mapping.
_SMALL_ROOM_BYTES = 1 << 20

Backing = bytearray | Memory


# -- files and directories -------------------------------------------------------------------------


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


# -- the file system -------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


@dataclass(slots=True)
class _Handle:
    node: FileNode
    writable: bool


@dataclass(frozen=True, slots=True)
class MemoryMapping:
    """A window on a file's own memory."""

    view: memoryview


class MemoryFiles:
    """Files whose disk is this object.

    `capacity_bytes` can be set at any time; writes that need new blocks beyond it meet ENOSPC. With
    a `seed`, random identities are the same in every run, so that a state can be made again.
    """

    keeps_order = False

    def __init__(
        self,
        image: Image | None = None,
        *,
        mapped_room_bytes: int = 1 << 30,
        seed: str | None = None,
    ) -> None:
        image = Image() if image is None else image
        self.capacity_bytes: int | None = None
        self._seed = seed
        self._mapped_room_bytes = mapped_room_bytes
        self._root = image.tree()
        self._top_number = image.top()
        self._directories: dict[str, DirectoryNode] = {}  # by path, as they were looked for
        self._handles: dict[int, _Handle] = {}
        self._fds = count(3)  # none is used twice, so that a use after close is always seen

    # -- open files --------------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode) -> int:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if mode == "create":
            if node is not None:
                raise os_error(errno.EEXIST, path)
            node = FileNode(self._new_number())
            directory.entries[name] = node
        elif node is None:
            raise os_error(errno.ENOENT, path)
        elif isinstance(node, DirectoryNode):
            raise os_error(errno.EISDIR, path)
        fd = next(self._fds)
        self._handles[fd] = _Handle(node, mode != "read")
        return fd

    def close(self, fd: int) -> None:
        node = self._handle(fd).node
        del self._handles[fd]
        if node.lock_holder == fd:
            node.lock_holder = None

    def size(self, fd: int) -> int:
        return self._handle(fd).node.size

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        handle = self._handle(fd)
        if length < 0 or offset < 0:
            raise os_error(errno.EINVAL)
        return handle.node.read(offset, length)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        node = self._writable(fd, errno.EBADF)
        if offset < 0:
            raise os_error(errno.EINVAL)
        data = data[: self._allowed(node, offset, len(data))]
        if data:
            node.write(offset, data)
        return len(data)

    def truncate(self, fd: int, size: int) -> None:
        node = self._writable(fd, errno.EINVAL)
        if size < 0:
            raise os_error(errno.EINVAL)
        node.resize(size)

    def fdatasync(self, fd: int) -> None:
        self._handle(fd)

    def write_again(self, fd: int, offset: int) -> None:
        self._handle(fd)

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        self._handle(fd)

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        handle = self._handle(fd)
        if writable and not handle.writable:
            raise os_error(errno.EACCES)
        if not 0 < size <= handle.node.size:
            raise ValueError("mmap length is greater than file size")
        view = handle.node.view(size, self._mapped_room_bytes)
        return MemoryMapping(view if writable else view.toreadonly())

    def lock(self, fd: int) -> bool:
        node = self._handle(fd).node
        if node.lock_holder is None:
            node.lock_holder = fd
        return node.lock_holder == fd

    # -- names -------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if isinstance(node, FileNode):
            raise os_error(errno.EEXIST, path)
        if node is None:
            directory.entries[name] = DirectoryNode(self._new_number())

    def names(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def exists(self, path: str) -> bool:
        try:
            directory, name = self._parent(path)
        except OSError:
            return False
        return not name or name in directory.entries

    def rename(self, source: str, target: str) -> None:
        source_directory, source_name = self._parent(source)
        target_directory, target_name = self._parent(target)
        node = source_directory.entries.get(source_name)
        replaced = target_directory.entries.get(target_name)
        if node is None:
            raise os_error(errno.ENOENT, source)
        if replaced is node:
            return
        if isinstance(node, DirectoryNode) and isinstance(replaced, FileNode):
            raise os_error(errno.ENOTDIR, target)
        if isinstance(node, FileNode) and isinstance(replaced, DirectoryNode):
            raise os_error(errno.EISDIR, target)
        if isinstance(replaced, DirectoryNode) and replaced.entries:
            raise os_error(errno.ENOTEMPTY, target)
        del source_directory.entries[source_name]
        target_directory.entries[target_name] = node
        if isinstance(node, DirectoryNode):
            self._directories.clear()

    def unlink(self, path: str) -> None:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if isinstance(node, DirectoryNode):
            raise os_error(errno.EISDIR, path)
        del directory.entries[name]

    def remove_directory(self, path: str) -> None:
        if self._directory(path).entries:
            raise os_error(errno.ENOTEMPTY, path)
        directory, name = self._parent(path)
        del directory.entries[name]
        self._directories.clear()

    def sync_directory(self, path: str) -> None:
        self._directory(path)

    def join(self, directory: str, name: str) -> str:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is not a plain file name")
        return f"{directory.rstrip('/')}/{name}"

    # -- the file system ---------------------------------------------------------------------------

    def free_bytes(self, path: str) -> int:
        self._find(path)
        return self._free_blocks() * BLOCK_BYTES

    def file_system(self, path: str) -> str:
        return "memory"

    def holder_name(self) -> tuple[int, str]:
        return holder_name()

    def random_identity(self) -> int:
        if self._seed is None:
            return SystemRandom().getrandbits(32)
        return Random(f"{self._seed} {self._top_number}").getrandbits(32)

    def image(self) -> Image:
        """Return everything that the file system holds now, as values."""
        return image_of(self._root)

    def allocated_bytes(self, path: str) -> int:
        """Return how much of a file has disk space; a store into a mapped hole may find none."""
        node = self._find(path)
        assert isinstance(node, FileNode)
        return len(node.blocks) * BLOCK_BYTES

    # -- inside ------------------------------------------------------------------------------------

    def _handle(self, fd: int) -> _Handle:
        try:
            return self._handles[fd]
        except KeyError:
            raise os_error(errno.EBADF) from None

    def _writable(self, fd: int, otherwise: int) -> FileNode:
        handle = self._handle(fd)
        if not handle.writable:
            raise os_error(otherwise)
        return handle.node

    def _find(self, path: str) -> Node:
        node: Node = self._root
        for part in _parts(path):
            if isinstance(node, FileNode):
                raise os_error(errno.ENOTDIR, path)
            try:
                node = node.entries[part]
            except KeyError:
                raise os_error(errno.ENOENT, path) from None
        return node

    def _directory(self, path: str) -> DirectoryNode:
        known = self._directories.get(path)
        if known is not None:
            return known
        node = self._find(path)
        if isinstance(node, FileNode):
            raise os_error(errno.ENOTDIR, path)
        self._directories[path] = node
        return node

    def _parent(self, path: str) -> tuple[DirectoryNode, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self._directory(parent), name

    def _new_number(self) -> int:
        self._top_number += 1
        return self._top_number

    def _allowed(self, node: FileNode, offset: int, length: int) -> int:
        """Return how many of the bytes there is room for; raise ENOSPC if for none."""
        if self.capacity_bytes is None or length == 0:
            return length
        free = self._free_blocks()
        for block in blocks_between(offset, offset + length):
            if block in node.blocks:
                continue
            if free == 0:
                allowed = block * BLOCK_BYTES - offset
                if allowed <= 0:
                    raise os_error(errno.ENOSPC)
                return allowed
            free -= 1
        return length

    def _free_blocks(self) -> int:
        if self.capacity_bytes is None:
            return UNLIMITED_BYTES // BLOCK_BYTES
        nodes = {handle.node for handle in self._handles.values()}
        waiting = [self._root]
        while waiting:
            for node in waiting.pop().entries.values():
                if isinstance(node, DirectoryNode):
                    waiting.append(node)
                else:
                    nodes.add(node)
        used = sum(len(node.blocks) for node in nodes)
        return max(0, self.capacity_bytes // BLOCK_BYTES - used)
