"""File systems made for a test: ext4 in a file, whose power can be cut, and small tmpfs.

Needs root. Whatever a test does, leaving the `with` unmounts; a loop device goes with its mount.
"""

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_FS_IOC_SHUTDOWN = 0x8004587D
_WITHOUT_LOG_FLUSH = 2
_DEADLINE_S = 60


class MountError(Exception):
    """This machine does not let us mount."""


def _run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    if done.returncode != 0:
        raise MountError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


class Ext4:
    """An ext4 file system in an image file, mounted on a directory."""

    def __init__(self, image: Path, directory: Path, *, size_bytes: int, journal: bool) -> None:
        self.image = image
        self.directory = directory
        directory.mkdir(exist_ok=True)
        with image.open("wb") as file:
            file.truncate(size_bytes)
        # Lazy initialisation would write in the background, at times nobody chose.
        options = "lazy_itable_init=0,lazy_journal_init=0"
        features = "has_journal" if journal else "^has_journal"
        _run("mkfs.ext4", "-q", "-F", "-O", features, "-E", options, image)
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", self.image, self.directory)
        # A write that its file has room for in part only, the loop driver takes for done. Page by
        # page there is no such part: a full disk is an error, and a sync that succeeds is true.
        device = _run("findmnt", "--noheadings", "--output", "SOURCE", self.directory)
        limit = Path("/sys/block") / Path(device.strip()).name / "queue" / "max_sectors_kb"
        limit.write_text("4")

    def unmount(self) -> None:
        _run("umount", self.directory)

    def cut_power(self) -> None:
        """From now on nothing reaches the disk, not even the journal."""
        fd = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _FS_IOC_SHUTDOWN, struct.pack("I", _WITHOUT_LOG_FLUSH))
        finally:
            os.close(fd)


@contextmanager
def ext4(root: Path, *, size_bytes: int = 96 << 20, journal: bool = True) -> Iterator[Ext4]:
    """An ext4 in a file below `root`; the test is skipped where that cannot be had.

    A journal that cannot be written makes it read-only; without one, only the data is in danger.
    """
    directory = root / "mounted"
    try:
        try:
            image = root / "image"
            file_system = Ext4(image, directory, size_bytes=size_bytes, journal=journal)
        except (MountError, FileNotFoundError) as error:
            pytest.skip(f"no ext4 in a file on this machine: {error}")
        yield file_system
    finally:
        _unmount_all(directory)


@contextmanager
def tmpfs(directory: Path, *, size_bytes: int) -> Iterator[Path]:
    """A tmpfs of that size; the test is skipped where that cannot be had."""
    directory.mkdir(exist_ok=True)
    try:
        try:
            _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", directory)
        except (MountError, FileNotFoundError) as error:
            pytest.skip(f"no tmpfs can be mounted on this machine: {error}")
        yield directory
    finally:
        _unmount_all(directory)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """The file system mounted there takes no writes."""
    _run("mount", "-o", "remount,ro", directory)
    try:
        yield
    finally:
        _run("mount", "-o", "remount,rw", directory)


def _unmount_all(directory: Path) -> None:
    """Also where it was mounted twice, or is still in use by a process that is about to end."""
    while directory.is_mount():
        try:
            _run("umount", directory)
        except MountError:
            _run("umount", "--lazy", directory)
