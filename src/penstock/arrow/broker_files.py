"""The files of a queue at a broker, as the ledger's `Files`.

Code that reads a queue in a directory reads one at a broker in the same way. The broker's listing
is the directory, and only what it lists as durable exists. A segment that was rewritten since it
was listed does not exist any more. Tasks of the sink write to the broker's staging area likewise.
"""

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn, cast

from penstock.arrow.locations import QueueLocation
from penstock.client import files as calls
from penstock.errors import InvalidInput, NoSuchSegment
from penstock.ledger.files import Files, Mapping, OpenMode, OsFiles
from penstock.ledger.json_files import MANIFEST_NAME, Manifest, Marks
from penstock.ledger.segment_header import HEADER_BYTES, index_name, segment_name
from penstock.ledger.snapshots import snapshot_name
from penstock.queue.segments import MAX_RANGE_BYTES, LogInfo, LogName, QueueSegments

_LOCAL_WRITE_BYTES = 1 << 20


def files_of(queue: QueueLocation) -> Files:
    """Return the files of a queue, for reading."""
    return cast("Files", _BrokerFiles(queue, list_files(queue))) if queue.url else OsFiles()


def staging_files(queue: QueueLocation) -> Files:
    """Return the files through which a task of the sink writes its segments."""
    return cast("Files", _Uploads(queue)) if queue.url else OsFiles()


def write_bytes(queue: QueueLocation) -> int:
    """Return how much to write at once: a request to a broker costs more than a system call."""
    return MAX_RANGE_BYTES if queue.url else _LOCAL_WRITE_BYTES


def list_files(queue: QueueLocation, *, time_ns: int | None = None) -> QueueSegments:
    """Return the broker's listing of a queue's files."""
    return queue.connection.do(calls.segments(queue.api_path, time_ns=time_ns))


def fetch(
    queue: QueueLocation, log: str, base: int, header: bytes, start: int, end: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes [start, end) of a segment in parts, each with its offset.

    Raise FileNotFoundError if the segment with that header does not exist any more.
    """
    for at in range(start, end, MAX_RANGE_BYTES):
        upto = min(at + MAX_RANGE_BYTES, end)
        try:
            found = queue.connection.do(calls.read_segment(queue.api_path, log, base, at, upto))
        except (NoSuchSegment, InvalidInput) as error:
            raise FileNotFoundError(errno.ENOENT, str(error)) from error
        if found.header != header or len(found.data) != upto - at:
            raise FileNotFoundError(errno.ENOENT, f"segment {base} of {log} was rewritten")
        yield at, found.data


def fetch_index(queue: QueueLocation, log: str, base: int) -> bytes:
    """Return the sparse index of a segment. Raise FileNotFoundError if the segment was removed."""
    try:
        return queue.connection.do(calls.read_index(queue.api_path, log, base)).data
    except NoSuchSegment as error:
        raise FileNotFoundError(errno.ENOENT, str(error)) from error


class _NotSupported:
    """Raises OSError for the methods of `Files` that make no sense at a broker."""

    keeps_order = False

    def join(self, directory: str, name: str) -> str:
        return f"{directory.rstrip('/')}/{name}"

    def file_system(self, path: str) -> str:
        return ""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("_"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> NoReturn:
            raise OSError(errno.EROFS, f"files at a broker do not support {name!r}")

        return refuse


class _File(NamedTuple):
    log: LogName
    base: int
    size: int
    header: bytes = b""
    content: bytes | None = None  # None: fetched when it is read
    is_index: bool = False


class _Bytes(NamedTuple):
    view: memoryview


class _BrokerFiles(_NotSupported):
    """Files that a broker listed, for reading."""

    def __init__(self, queue: QueueLocation, listing: QueueSegments) -> None:
        self._queue = queue
        self._files = dict(_files_in(listing))
        self._paths = sorted(self._files)
        self._open: dict[int, _File] = {}
        self._next_fd = 1

    def fdatasync(self, fd: int) -> None:
        """Do nothing: only durable bytes are listed."""

    def _relative(self, path: str) -> str:
        return path.removeprefix(self._queue.path).strip("/")

    def names(self, path: str) -> list[str]:
        folder = self._relative(path)
        inside = f"{folder}/" if folder else ""
        found = {p[len(inside) :].partition("/")[0] for p in self._files if p.startswith(inside)}
        return sorted(found)

    def exists(self, path: str) -> bool:
        wanted = self._relative(path)
        at = bisect_right(self._paths, f"{wanted}/")
        is_folder = at < len(self._paths) and self._paths[at].startswith(f"{wanted}/")
        return not wanted or wanted in self._files or is_folder

    def open(self, path: str, mode: OpenMode) -> int:
        file = self._files.get(self._relative(path))
        if mode != "read":
            raise OSError(errno.EROFS, "files at a broker are opened for reading only", path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file at the broker", path)
        if file.is_index:
            content = fetch_index(self._queue, file.log, file.base)
            file = file._replace(content=content, size=len(content))
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self._open[fd] = file
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def size(self, fd: int) -> int:
        return self._open[fd].size

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        file = self._open[fd]
        end = min(offset + length, file.size)
        if file.content is not None:
            return file.content[offset:end]
        if end <= HEADER_BYTES and file.header:
            return file.header[offset:end]  # from the listing
        parts = fetch(self._queue, file.log, file.base, file.header, offset, end)
        return b"".join(data for _, data in parts)

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        assert not writable
        return _Bytes(memoryview(self.pread(fd, size, 0)))


def _files_in(listing: QueueSegments) -> Iterator[tuple[str, _File]]:
    """Yield each file of a listing, with its path in the queue's directory."""
    manifest = Manifest(
        identity=listing.identity,
        created_at_ns=listing.created_at_ns,
        settings=dict(listing.settings),
        messages=Marks(listing.messages.low, listing.messages.next_seq),
        events=Marks(listing.events.low, listing.events.next_seq),
    ).pack()
    yield MANIFEST_NAME, _File("messages", 0, len(manifest), content=manifest)
    yield from _segments_in("messages", listing.messages)
    yield from _segments_in("events", listing.events)
    for one in listing.snapshots:
        name = f"snapshots/{snapshot_name(one.event_seq)}"
        yield name, _File("snapshots", one.event_seq, one.size_bytes)


def _segments_in(log: LogName, info: LogInfo) -> Iterator[tuple[str, _File]]:
    for one in info.segments:
        file = _File(log, one.base_seq, one.size_bytes, one.header)
        yield f"{log}/{segment_name(one.base_seq)}", file
        yield f"{log}/{index_name(one.base_seq)}", file._replace(is_index=True)


class _Uploads(_NotSupported):
    """New files in folders of a broker's staging area. Each part is durable once it is accepted."""

    def __init__(self, queue: QueueLocation) -> None:
        self._queue = queue
        self._open: dict[int, tuple[str, str]] = {}

    def make_directory(self, path: str) -> None:
        """Do nothing: the broker makes it with the first part."""

    def open(self, path: str, mode: OpenMode) -> int:
        assert mode == "create"
        folder, name = path.split("/")[-2:]
        fd = len(self._open)
        self._open[fd] = (folder, name)
        return fd

    def close(self, fd: int) -> None:
        """Do nothing: there is no open file."""

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        part = bytes(memoryview(data)[:MAX_RANGE_BYTES])
        folder, name = self._open[fd]
        self._queue.connection.do(calls.stage(self._queue.api_path, folder, name, offset, part))
        return len(part)

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        """Do nothing: accepted parts are written."""

    def fdatasync(self, fd: int) -> None:
        """Do nothing: accepted parts are durable."""

    def names(self, path: str) -> list[str]:
        return []  # `remove_directory` removes the files as well

    def remove_directory(self, path: str) -> None:
        folder = path.rstrip("/").rpartition("/")[2]
        self._queue.connection.do(calls.unstage(self._queue.api_path, folder))
