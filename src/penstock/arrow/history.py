"""The live log and the archive of a queue as one: which seqs are read from where.

The archive is read for seqs that the live log does not have, or not as a whole because compaction
took some out. From there on the live log is read: it is faster, and has the newest messages. Both
have the same rows, so a stream that reads a range again may find it in the other place.

The archive is not looked at while only the live log is needed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from penstock import codec
from penstock.archive import Archive, ArchivedFile, ArchiveError, ArchiveManifest, archive_at
from penstock.archive.parquet import read_file
from penstock.archive.stores import ArchiveStore
from penstock.arrow.locations import QueueLocation
from penstock.arrow.logs import before_loss, find_time, watcher_of
from penstock.arrow.message_columns import MICROSECOND_NS, constant
from penstock.arrow.segments import LogView, QueueInfo
from penstock.arrow.selection import AUTO, NO_ARCHIVE, Selection, Table
from penstock.arrow.tables import ALIASES, COLUMNS, TIME
from penstock.errors import InvalidInput
from penstock.ledger.segment_header import COMPACTED
from penstock.queue.attributes import DEDUP, MAX_ATTEMPTS, TENANT, unpack_dedup

_BATCH_ROWS = 16_384
_FIRST_SEQ = 1
# Columns about the position of a message in the live log: null for archived messages.
POSITIONS = ("compression", "segment", "offset", "size")


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """The messages of an archived file with seqs [wanted_from, wanted_to)."""

    info: QueueInfo
    store: ArchiveStore
    file: ArchivedFile
    wanted_from: int
    wanted_to: int

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes


class History:
    """The messages of a queue in its live log, and before that in its archive."""

    def __init__(self, view: LogView, selection: Selection) -> None:
        self.view = view
        self._selection = selection
        self._location = archive_of(view, selection)

    @property
    def has_archive(self) -> bool:
        """Whether an archive is on record, or named. It is not looked at for this."""
        return self._location is not None

    @cached_property
    def _archived(self) -> tuple[Archive, ArchiveManifest] | None:
        if self._location is None:
            return None
        if self._selection.archive == AUTO and self.live_from <= _FIRST_SEQ:
            return None  # the live log has every message that was ever published
        if not self._location:
            raise ArchiveError(
                f"queue {self.view.info.queue.key}: {self.view.archive_damage}. It says where the "
                f"archived messages are, which this read needs: run the archive job again, which "
                f"writes it, or give the location of the archive with the option 'archive', or "
                f"archive=none to read only the live log."
            )
        key = self.view.info.queue.key
        archive = archive_at(self._location, self._selection.archive_variables)
        name = key
        if self._selection.archive == AUTO and self.view.archived_as:
            name = self.view.archived_as
        manifest = archive.manifest(name)
        if manifest is None or manifest.identity != self.view.info.identity:
            raise ArchiveError(
                f"the archive {archive.shown} has nothing of queue {key}: give its location with "
                f"the option 'archive', as this machine sees it, or archive=none to read only the "
                f"live log"
            )
        upto = self.view.archived_upto
        if self._selection.archive != AUTO:
            upto = min(
                upto, self.live_from
            )  # an older copy will do while the live log has the rest
        if manifest.next_seq < upto:
            raise ArchiveError(
                f"the archive {archive.shown} has messages of queue {key} below seq "
                f"{manifest.next_seq}, and the queue was archived up to {self.view.archived_upto}: "
                f"the newest manifest is missing, or this is an old copy. Restore the files of "
                f"`_manifests` from a backup of the archive, or give archive=none to read only the "
                f"live log."
            )
        return archive, manifest

    @cached_property
    def live_from(self) -> int:
        """The seq from which on the live log has every message that was published."""
        at = self.view.next_seq
        for span in reversed(self.view.spans):
            if not span.intact or span.header.flags & COMPACTED or span.end_seq != at:
                break
            at = span.header.base_seq
        return max(at, self.view.first_seq)

    @cached_property
    def archived(self) -> tuple[int, int]:
        """The seqs [first, end) that are read from the archive; an empty range if none are."""
        if self._archived is None:
            return self.view.low, self.view.low
        manifest = self._archived[1]
        first = manifest.first_seq
        return first, max(min(manifest.next_seq, self.live_from), first)

    @property
    def low(self) -> int:
        """The lowest seq of the history; what was below it was removed."""
        first, end = self.archived
        return min(first, self.view.low) if first < end else self.view.low

    def gaps(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the seqs [first, end) that were removed before they were archived.

        Only of the part that is read from the archive, whose manifest has them on record.
        """
        if self._archived is None:
            return []
        low, high = self.archived
        return self._archived[1].gaps_between(max(first, low), min(end, high))

    def begins_in_archive(self, first: int) -> bool:
        """Return whether a read from this seq on begins in the archive."""
        if self._location is None or first >= self.live_from:
            return False
        return self.archived[0] <= first < self.archived[1]

    def first_at(self, timestamp_ns: int) -> int:
        """Return where a read from a time on begins.

        This is the first message at or after the time, or before it messages that are lost to
        damage: their times are not known, so the read must report them.
        """
        found = self.find_time(timestamp_ns)
        in_archive = self._archived is not None and found <= self.archived[1]
        return found if in_archive else before_loss(self.view, found)

    def find_time(self, timestamp_ns: int) -> int:
        """Return the first seq at or after a time, or the next seq if there is none."""
        if self._archived is not None:
            archive = self._archived[0]
            for one in self.ranges(*self.archived, since_ns=timestamp_ns):
                schema = pa.schema([("seq", pa.int64()), ("timestamp_ns", pa.int64())])
                table = read_file(archive.store, one.file, schema)
                wanted = pa.scalar(timestamp_ns, pa.int64())
                late = table.filter(pc.greater_equal(table["timestamp_ns"], wanted))
                if late.num_rows and late["seq"][0].as_py() < self.archived[1]:
                    return int(late["seq"][0].as_py())
            return max(find_time(self.view, timestamp_ns), self.archived[1])
        return find_time(self.view, timestamp_ns)

    def ranges(self, first: int, end: int, *, since_ns: int | None = None) -> list[ArchivedRange]:
        """Return the archived part of [first, end), in order."""
        if self._archived is None:
            return []
        archive, manifest = self._archived
        first, end = max(first, self.archived[0]), min(end, self.archived[1])
        files = manifest.files_between(first, end, since_ns=since_ns) if first < end else []
        return [
            ArchivedRange(self.view.info, archive.store, file, first, end)
            for file in sorted(files, key=lambda file: file.first_seq)
        ]

    def seq_after_bytes(self, first: int, end: int, max_bytes: int) -> int:
        """Return a seq about `max_bytes` after the first in the archive, at least one file on."""
        used, end = 0, min(end, self.archived[1])
        for one in self.ranges(first, end):
            if used and used + one.size_bytes > max_bytes:
                return one.file.first_seq
            used += one.size_bytes
        return end


def archive_of(view: LogView, selection: Selection) -> str | None:
    """Return the location of the archive that a read goes on into; None if there is none.

    It is empty if there is a record of it, and that cannot be read.
    """
    if view.log != "messages" or selection.table != "messages":
        return None
    if selection.archive == NO_ARCHIVE:
        return None
    if selection.archive != AUTO:
        return selection.archive
    if not selection.decompress:
        return None  # stored bytes are only in the live log
    return view.archive or ("" if view.archive_damage else None)


def check_archive_choice(archive: str, table: Table, *, decompress: bool) -> str:
    """Return the choice of an archive, checked. Raise InvalidInput."""
    if archive in (AUTO, NO_ARCHIVE):
        return archive
    if table != "messages":
        raise InvalidInput(f"an archive has messages; the table is {table!r}: leave archive out")
    if not decompress:
        raise InvalidInput("an archive has payloads as published: decompress is false")
    archive_at(archive)
    return archive


def relaxed(schema: pa.Schema, selection: Selection, queues: Sequence[QueueLocation]) -> pa.Schema:
    """Return the schema of a read: archived messages have no position in the live log."""
    if not set(POSITIONS).intersection(schema.names) or selection.table != "messages":
        return schema
    views = (watcher_of(queue, "messages").view() for queue in queues)
    if all(archive_of(view, selection) is None for view in views):
        return schema
    return pa.schema([one.with_nullable(True) if one.name in POSITIONS else one for one in schema])


# -- in a task -------------------------------------------------------------------------------------


def read_archived(one: ArchivedRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an archived range, in the columns of the table `messages`."""
    table = read_file(one.store, one.file, _stored_schema(schema.names))
    seqs = table["seq"]
    if one.file.first_seq < one.wanted_from or one.file.last_seq >= one.wanted_to:
        low, high = (pa.scalar(seq, pa.int64()) for seq in (one.wanted_from, one.wanted_to))
        table = table.filter(pc.and_(pc.greater_equal(seqs, low), pc.less(seqs, high)))
    for batch in table.combine_chunks().to_batches(_BATCH_ROWS):
        if batch.num_rows:
            arrays = [_column(batch, name, one.info) for name in schema.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


_MADE_OF = {
    "id": ("timestamp_ns",),
    "expires_at": ("expires_at_ns",),
    "deliver_at": ("deliver_at_ns",),
    "dedup": ("attributes",),
    "max_attempts": ("attributes",),
    "tenant": ("attributes",),
}
_NOT_STORED = ("namespace", "queue", *POSITIONS)


def _stored_schema(names: Sequence[str]) -> pa.Schema:
    """Return the columns of the archive that these columns are made of."""
    needed = ["seq"]
    for name in names:
        name = ALIASES.get(name, name)
        if name not in _NOT_STORED:
            needed += _MADE_OF.get(name, (name,))
    types = COLUMNS["messages"]
    return pa.schema([(name, types[name]) for name in dict.fromkeys(needed)])


def _attribute(
    batch: pa.RecordBatch, tag: int, read: Callable[[bytes], str | int], type_: pa.DataType
) -> pa.Array:
    found = [dict(pairs or ()).get(tag) for pairs in batch["attributes"].to_pylist()]
    return pa.array([None if data is None else read(data) for data in found], type_)


def _column(batch: pa.RecordBatch, name: str, info: QueueInfo) -> pa.Array:
    name = ALIASES.get(name, name)
    type_ = COLUMNS["messages"][name]
    match name:
        case "namespace":
            return constant(info.queue.namespace, type_, batch.num_rows)
        case "queue":
            return constant(info.queue.name, type_, batch.num_rows)
        case "id":
            pairs = zip(batch["timestamp_ns"].to_pylist(), batch["seq"].to_pylist(), strict=True)
            return pa.array([codec.make_id(at, info.identity, seq) for at, seq in pairs], type_)
        case "expires_at" | "deliver_at":
            return pc.divide(batch[f"{name}_ns"], MICROSECOND_NS).view(TIME)
        case "dedup":
            return _attribute(batch, DEDUP, lambda data: unpack_dedup(data)[0].hex(), type_)
        case "max_attempts":
            return _attribute(batch, MAX_ATTEMPTS, lambda d: int.from_bytes(d, "little"), type_)
        case "tenant":
            return _attribute(batch, TENANT, bytes.decode, type_)
    if name in POSITIONS:
        return pa.nulls(batch.num_rows, type_)
    return batch[name]
