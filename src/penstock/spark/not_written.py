"""Files that are elsewhere: what they have in common, and that nothing can be done to them."""

import errno
from typing import NoReturn

from penstock.ledger.files import Mapping, OpenMode


def refuse() -> NoReturn:
    raise OSError(errno.EROFS, "this cannot be done to files at a broker")


class NotWritten:
    """`Files` of which nothing is possible: those who can do something say so themselves."""

    def join(self, directory: str, name: str) -> str:
        return f"{directory.rstrip('/')}/{name}"

    def file_system(self, path: str) -> str:
        return ""

    def open(self, path: str, mode: OpenMode) -> int:
        refuse()

    def close(self, fd: int) -> None:
        refuse()

    def size(self, fd: int) -> int:
        refuse()

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        refuse()

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        refuse()

    def truncate(self, fd: int, size: int) -> None:
        refuse()

    def fdatasync(self, fd: int) -> None:
        refuse()

    def write_again(self, fd: int, offset: int) -> None:
        refuse()

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        refuse()

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        refuse()

    def make_directory(self, path: str) -> None:
        refuse()

    def names(self, path: str) -> list[str]:
        refuse()

    def exists(self, path: str) -> bool:
        refuse()

    def rename(self, source: str, target: str) -> None:
        refuse()

    def unlink(self, path: str) -> None:
        refuse()

    def remove_directory(self, path: str) -> None:
        refuse()

    def sync_directory(self, path: str) -> None:
        refuse()

    def lock(self, fd: int) -> bool:
        refuse()

    def free_bytes(self, path: str) -> int:
        refuse()

    def holder_name(self) -> tuple[int, str]:
        refuse()

    def random_identity(self) -> int:
        refuse()
