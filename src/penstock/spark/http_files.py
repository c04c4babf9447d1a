"""A queue's files at a broker, as the ledger sees files: to be read, and nothing else.

What the broker lists is taken for the directory, and what it says is durable for all that is there.
So whatever reads a queue in a directory reads one at a broker by the same code. A segment that was
rewritten since it was listed is not there any more.
"""

import errno
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from penstock.client import files as calls
from penstock.errors import InvalidInput, NoSuchSegment
from penstock.ledger.files import Files, Mapping, OpenMode, OsFiles
from penstock.ledger.json_files import MANIFEST_NAME, Manifest, Marks
from penstock.ledger.segment_header import HEADER_BYTES, index_name, segment_name
from penstock.ledger.snapshots import snapshot_name
from penstock.queue.segments import MAX_RANGE_BYTES, LogInfo, LogName, QueueSegments
from penstock.spark.not_written import NotWritten, refuse
from penstock.spark.places import QueueAt, connection_to


def files_of(queue: QueueAt) -> Files:
    """Through which the files of a queue are read."""
    return BrokerFiles(queue, listed(queue)) if queue.url else OsFiles()


def listed(queue: QueueAt, *, time_ns: int | None = None) -> QueueSegments:
    """The files of a queue at a broker, now."""
    return connection_to(queue.url, queue.api_key).do(
        calls.segments(path_of(queue), time_ns=time_ns)
    )


def fetched(
    queue: QueueAt, log: str, base: int, header: bytes, start: int, end: int
) -> Iterator[tuple[int, bytes]]:
    """The bytes [start, end) of a segment, in parts with their places.

    FileNotFoundError if it is not (any more) the one with that header.
    """
    connection = connection_to(queue.url, queue.api_key)
    for at in range(start, end, MAX_RANGE_BYTES):
        upto = min(at + MAX_RANGE_BYTES, end)
        try:
            found = connection.do(calls.read_segment(path_of(queue), log, base, at, upto))
        except (NoSuchSegment, InvalidInput) as error:
            raise FileNotFoundError(errno.ENOENT, str(error)) from error
        if found.header != header or len(found.data) != upto - at:
            raise FileNotFoundError(errno.ENOENT, f"segment {base} of {log} was rewritten")
        yield at, found.data


def fetched_index(queue: QueueAt, log: str, base: int) -> bytes:
    """The sparse index of a segment; FileNotFoundError if that was removed."""
    try:
        call = calls.read_index(path_of(queue), log, base)
        return connection_to(queue.url, queue.api_key).do(call).data
    except NoSuchSegment as error:
        raise FileNotFoundError(errno.ENOENT, str(error)) from error


def path_of(queue: QueueAt) -> str:
    return queue.path.removeprefix(queue.url)


class _File(NamedTuple):
    log: LogName
    base: int
    size: int
    header: bytes = b""
    content: bytes | None = None  # None: it is fetched when it is asked for
    is_index: bool = False


class _Bytes:
    def __init__(self, view: memoryview) -> None:
        self.view = view


class BrokerFiles(NotWritten):
    """The read-only half of `Files`, over what a broker listed."""

    def __init__(self, queue: QueueAt, listing: QueueSegments) -> None:
        self._queue = queue
        self._files = dict(self._named(listing))
        self._paths = sorted(self._files)
        self._open: dict[int, _File] = {}
        self._next_fd = 1

    def _named(self, listing: QueueSegments) -> Iterator[tuple[str, _File]]:
        manifest = Manifest(
            identity=listing.identity,
            created_at_ns=listing.created_at_ns,
            settings=dict(listing.settings),
            messages=Marks(listing.messages.low, listing.messages.next_seq),
            events=Marks(listing.events.low, listing.events.next_seq),
        ).pack()
        yield MANIFEST_NAME, _File("messages", 0, len(manifest), content=manifest)
        yield from self._of_log("messages", listing.messages)
        yield from self._of_log("events", listing.events)
        for one in listing.snapshots:
            name = f"snapshots/{snapshot_name(one.event_seq)}"
            yield name, _File("snapshots", one.event_seq, one.size_bytes)

    def _of_log(self, log: LogName, info: LogInfo) -> Iterator[tuple[str, _File]]:
        for one in info.segments:
            file = _File(log, one.base_seq, one.size_bytes, one.header)
            yield f"{log}/{segment_name(one.base_seq)}", file
            yield f"{log}/{index_name(one.base_seq)}", file._replace(is_index=True)

    # -- what is there -----------------------------------------------------------------------------

    def fdatasync(self, fd: int) -> None:
        """It is: only what is durable was listed."""

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
        below = at < len(self._paths) and self._paths[at].startswith(f"{wanted}/")
        return not wanted or wanted in self._files or below

    # -- reading -----------------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode) -> int:
        file = self._files.get(self._relative(path))
        if mode != "read":
            refuse()
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file at the broker", path)
        if file.is_index:
            content = fetched_index(self._queue, file.log, file.base)
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
            return file.header[offset:end]  # as it was listed
        parts = fetched(self._queue, file.log, file.base, file.header, offset, end)
        return b"".join(data for _, data in parts)

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        if writable:
            refuse()
        return _Bytes(memoryview(self.pread(fd, size, 0)))
