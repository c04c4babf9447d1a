"""What the files in memory can do that real ones cannot: a disk of any size, and images."""

import errno

import pytest

from penstock.ledger.memory_files import BLOCK_BYTES, ROOT, Image, MemoryFiles
from tests.harness.interrupts import Interrupter


def test_a_full_disk_takes_what_fits_and_then_nothing() -> None:
    files = MemoryFiles()
    files.capacity_bytes = 3 * BLOCK_BYTES
    fd = files.open("/a", "create")
    assert files.pwrite(fd, b"x" * BLOCK_BYTES, 0) == BLOCK_BYTES
    assert files.free_bytes("/") == 2 * BLOCK_BYTES
    assert files.pwrite(fd, b"y" * 5 * BLOCK_BYTES, 100) == 3 * BLOCK_BYTES - 100
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSPC):
        files.pwrite(fd, b"z", 3 * BLOCK_BYTES)
    assert files.pwrite(fd, b"z", 0) == 1, "what has its block can be written over"
    assert files.free_bytes("/") == 0


def test_space_comes_back_with_truncate_and_with_the_last_handle() -> None:
    files = MemoryFiles()
    files.capacity_bytes = 4 * BLOCK_BYTES
    fd = files.open("/a", "create")
    files.pwrite(fd, bytes(4 * BLOCK_BYTES), 0)
    files.truncate(fd, BLOCK_BYTES + 1)
    assert files.free_bytes("/") == 2 * BLOCK_BYTES
    files.unlink("/a")
    assert files.free_bytes("/") == 2 * BLOCK_BYTES
    files.close(fd)
    assert files.free_bytes("/") == 4 * BLOCK_BYTES


def test_a_hole_takes_no_space() -> None:
    files = MemoryFiles()
    fd = files.open("/a", "create")
    files.truncate(fd, 10 * BLOCK_BYTES)
    assert files.allocated_bytes("/a") == 0
    files.pwrite(fd, b"x", 5 * BLOCK_BYTES)
    assert files.allocated_bytes("/a") == BLOCK_BYTES


def test_files_made_from_an_image_do_not_share_their_changes() -> None:
    files = MemoryFiles()
    files.make_directory("/d")
    fd = files.open("/d/a", "create")
    files.pwrite(fd, b"abc", 0)
    image = files.image()
    one, two = MemoryFiles(image), MemoryFiles(image)
    fd = one.open("/d/a", "write")
    one.pwrite(fd, b"X", 0)
    one.map(fd, 3, writable=True).view[2] = ord("Z")
    assert two.image() == image
    assert one.pread(fd, 3, 0) == b"XbZ"


def test_a_lock_is_free_in_files_made_from_an_image() -> None:
    files = MemoryFiles()
    assert files.lock(files.open("/LOCK", "create"))
    reborn = MemoryFiles(files.image())
    assert reborn.lock(reborn.open("/LOCK", "write"))


@pytest.mark.parametrize("size", [3, 9])
def test_an_interrupt_leaves_a_file_whole(size: int) -> None:
    """Whichever step of a mapping or a truncation it falls into."""
    counting = Interrupter(None)
    at = 0
    while at <= counting.points:
        files = MemoryFiles(Image({1: b"abcdef"}, {ROOT: {"a": 1}}), mapped_room_bytes=64)
        fd = files.open("/a", "write")

        def work(files: MemoryFiles = files, fd: int = fd) -> None:
            files.map(fd, 6, writable=True)
            files.truncate(fd, size)

        if at:
            try:
                Interrupter(at).run(work)
            except KeyboardInterrupt:
                pass
        else:
            counting.run(work)
        content = files.pread(fd, 9, 0)
        assert content in (b"abcdef", b"abcdef\0\0\0"[:size])
        assert bytes(files.map(fd, len(content), writable=True).view) == content
        files.truncate(fd, size)
        assert files.pread(fd, 9, 0) == b"abcdef\0\0\0"[:size]
        at += 1
    assert counting.points > 5
