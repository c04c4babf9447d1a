"""The staging area of a queue, as a task sees it: a directory, or at a broker."""

from penstock.client import files as calls
from penstock.ledger.files import Files, OpenMode, OsFiles
from penstock.queue.segments import MAX_RANGE_BYTES
from penstock.spark.http_files import path_of
from penstock.spark.not_written import NotWritten, refuse
from penstock.spark.places import QueueAt, connection_to

_LOT_BYTES = 1 << 20


def lot_bytes(queue: QueueAt) -> int:
    """How much is best written at once: a request to a broker is dearer than a call."""
    return MAX_RANGE_BYTES if queue.url else _LOT_BYTES


def staging_files(queue: QueueAt) -> Files:
    """Through which a task writes its segments."""
    return _Uploads(queue) if queue.url else OsFiles()


class _Uploads(NotWritten):
    """New files in folders of a staging area: each part is durable when it was taken."""

    def __init__(self, queue: QueueAt) -> None:
        self._queue = queue
        self._connection = connection_to(queue.url, queue.api_key)
        self._open: dict[int, tuple[str, str]] = {}

    def make_directory(self, path: str) -> None:
        """The broker makes it with the first part."""

    def open(self, path: str, mode: OpenMode) -> int:
        if mode != "create":
            refuse()
        folder, name = path.split("/")[-2:]
        fd = len(self._open)
        self._open[fd] = (folder, name)
        return fd

    def close(self, fd: int) -> None:
        """Nothing is held."""

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        part = bytes(memoryview(data)[:MAX_RANGE_BYTES])
        folder, name = self._open[fd]
        self._connection.do(calls.stage(path_of(self._queue), folder, name, offset, part))
        return len(part)

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        """It is written."""

    def fdatasync(self, fd: int) -> None:
        """It is durable."""

    def names(self, path: str) -> list[str]:
        return []  # `remove_directory` takes all that is in it

    def remove_directory(self, path: str) -> None:
        folder = path.rstrip("/").rpartition("/")[2]
        self._connection.do(calls.unstage(path_of(self._queue), folder))
