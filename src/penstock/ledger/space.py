"""Disk space: refuse messages early, and keep room for what must still be written.

Below the floor new messages are refused, while events such as acks are still written. If the disk
is full anyway, a ballast file is deleted to make room for them.
"""

from collections.abc import Callable
from typing import TypeVar

from penstock.errors import DiskFull
from penstock.ledger.files import FULL_ERRORS
from penstock.ledger.folder import Folder, write_fully
from penstock.ledger.settings import MIB, LedgerSettings

BALLAST_NAME = "ballast"
_BALLAST_FROM_BYTES = 64 * 1024  # a queue that never grew beyond this pays for no ballast

T = TypeVar("T")


class Space:
    """The free space of a ledger's file system, asked for before a file grows."""

    def __init__(self, root: Folder, settings: LedgerSettings) -> None:
        self._root = root
        self._floor = settings.min_free_bytes
        self._reserve = settings.reserve_bytes

    def claim(self, size: int, *, essential: bool, log_bytes: int) -> None:
        """Check that a file may grow by `size`; raise DiskFull if messages must wait."""
        if essential:
            return
        free = self._root.files.free_bytes(self._root.path)
        if free - size < self._floor:
            raise DiskFull(
                f"{self._root.path}: {free / MIB:.1f} MB are free and {self._floor / MIB:.1f} MB "
                f"are kept free (min_free_bytes), so new messages are refused; acks still work. "
                f"Free some space: publishing resumes by itself."
            )
        if log_bytes >= _BALLAST_FROM_BYTES and free - size - self._reserve >= self._floor:
            self._fill_ballast()

    def essential(self, do: Callable[[], T], with_less: Callable[[], T]) -> T:
        """Call `do`; if the disk is full, remove the ballast file and call `with_less`."""
        try:
            return do()
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            self.give_ballast()
        return with_less()

    def give_ballast(self) -> bool:
        """Remove the ballast file; return False if there is none."""
        try:
            self._root.remove(BALLAST_NAME)
        except OSError:
            return False
        return True

    def _fill_ballast(self) -> None:
        if not self._reserve or self._ballast_bytes() == self._reserve:
            return
        files = self._root.files
        self.give_ballast()  # one that a crash left half made, or of another size
        try:
            fd = files.open(self._root.file(BALLAST_NAME), "create")
            try:
                write_fully(files, fd, bytes(self._reserve), 0)
            finally:
                files.close(fd)
        except OSError:
            self.give_ballast()

    def _ballast_bytes(self) -> int:
        files = self._root.files
        try:
            fd = files.open(self._root.file(BALLAST_NAME), "read")
        except OSError:
            return 0
        try:
            return files.size(fd)
        except OSError:
            return 0
        finally:
            files.close(fd)
