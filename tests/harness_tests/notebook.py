"""A tiny store with known bugs, for the harness to find.

It keeps values in order in one file, which can be rewritten; `bugs` names what it does wrong.
"""

import zlib
from collections.abc import Callable

from penstock.ledger.files import Files

DIRECTORY = "/notebook"
FILE = "/notebook/notes"
TEMPORARY = "/notebook/notes.tmp"
RECORD_BYTES = 9

BUGS = (
    "answers before the sync",
    "never syncs the directory after making the file",
    "never syncs the directory after the rename",
    "never syncs the temporary file",
    "never cuts the torn tail",
    "trusts what it read without syncing it",
    "tries a failed sync again",
)


def _record(value: int) -> bytes:
    data = value.to_bytes(4, "little")
    return b"N" + data + zlib.crc32(data).to_bytes(4, "little")


def _values(content: bytes) -> list[int]:
    values = []
    for start in range(0, len(content) - RECORD_BYTES + 1, RECORD_BYTES):
        value = int.from_bytes(content[start + 1 : start + 5], "little")
        if content[start : start + RECORD_BYTES] != _record(value):
            break
        values.append(value)
    return values


class Notebook:
    def __init__(self, files: Files, bug: str = "") -> None:
        self._files = files
        self._bug = bug
        files.make_directory(DIRECTORY)
        files.sync_directory("/")
        if files.exists(TEMPORARY):
            files.unlink(TEMPORARY)
        if files.exists(FILE):
            self._fd = files.open(FILE, "write")
        else:
            self._fd = files.open(FILE, "create")
        if bug != "never syncs the directory after making the file":
            files.sync_directory(DIRECTORY)
        size = files.size(self._fd)
        self.values = _values(files.pread(self._fd, size, 0))
        self._end = len(self.values) * RECORD_BYTES
        if bug == "never cuts the torn tail":
            self._end = size
        elif size > self._end:
            files.truncate(self._fd, self._end)
        if bug != "trusts what it read without syncing it":
            files.fdatasync(self._fd)

    def add(self, value: int, answer: Callable[[int], None]) -> None:
        self._files.pwrite(self._fd, _record(value), self._end)
        self._end += RECORD_BYTES
        if self._bug == "answers before the sync":
            answer(value)
        try:
            self._files.fdatasync(self._fd)
        except OSError:
            if self._bug != "tries a failed sync again":
                raise
            self._files.fdatasync(self._fd)
        self.values.append(value)
        if self._bug != "answers before the sync":
            answer(value)

    def rewrite(self) -> None:
        """The same values in a new file."""
        self._files.close(self._fd)
        self._fd = self._files.open(TEMPORARY, "create")
        self._files.pwrite(self._fd, b"".join(map(_record, self.values)), 0)
        self._end = len(self.values) * RECORD_BYTES
        if self._bug != "never syncs the temporary file":
            self._files.fdatasync(self._fd)
        self._files.rename(TEMPORARY, FILE)
        if self._bug != "never syncs the directory after the rename":
            self._files.sync_directory(DIRECTORY)
