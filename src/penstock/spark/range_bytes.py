"""The bytes of a planned range, from a file or from a broker."""

from penstock.errors import BadEntry
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder, read_fully
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader, segment_name
from penstock.spark.http_files import fetched
from penstock.spark.ranges import Range
from penstock.spark.segments import blank


def range_bytes(one: Range) -> memoryview | None:
    """The bytes of its segment, those of the range among them in their places.

    None where the segment is not there any more, or not the one that was planned with.
    """
    try:
        return _fetched(one) if one.facts.queue.url else _mapped(one)
    except FileNotFoundError:
        return None


def _mapped(one: Range) -> memoryview | None:
    files = OsFiles()
    folder = Folder(files, one.facts.queue.path).child(one.log)
    fd = files.open(folder.file(segment_name(one.header.base_seq)), "read")
    try:
        if not _is_planned(read_fully(files, fd, HEADER_BYTES, 0), one.header):
            return None
        if files.size(fd) < one.end:
            return None
        return files.map(fd, one.end, writable=False).view
    finally:
        files.close(fd)


def _is_planned(data: bytes, header: SegmentHeader) -> bool:
    try:
        return SegmentHeader.unpack(data) == header
    except BadEntry:
        return False


def _fetched(one: Range) -> memoryview:
    whole = blank(one.end)
    base, header = one.header.base_seq, one.header.pack()
    for at, data in fetched(one.facts.queue, one.log, base, header, one.start, one.end):
        whole[at : at + len(data)] = data
    return whole.toreadonly()
