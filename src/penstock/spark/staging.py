"""What a task writes: segments of its own, in a folder of the queue's `staging/`.

A folder for each attempt of a task, named by when it began, so that what failed attempts and
speculative twins leave behind can be told from what is being written.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.clock import SystemClock
from penstock.codec import ENTRY_OVERHEAD_BYTES, Draft, Packer
from penstock.codec.layout import CHECKPOINT_BYTES
from penstock.errors import TooLarge
from penstock.ledger.adoption import STAGING, Staged, staged_header
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder, write_fully
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.model import NS
from penstock.queue import QueueSettings
from penstock.spark.sink_rows import Item, RowsToMessages

ORPHANED_AFTER_S = 24 * 3600
_BATCH_BYTES = 4 << 20  # handed to the packer at once; a frame each


@dataclass(frozen=True, slots=True)
class Target:
    """The queue that is written to, as a task must know it."""

    path: str
    identity: int
    settings: QueueSettings


def stage(
    target: Target, batches: Iterable[pa.RecordBatch], timestamp_ns: int
) -> tuple[list[Staged], int]:
    """Write the rows of a task; the segments, and how many bytes they have."""
    writer = _Writer(target, timestamp_ns)
    rows = RowsToMessages(target.settings)
    try:
        for batch in batches:
            if batch.num_rows:
                writer.write(rows.items(batch, timestamp_ns))
        return writer.done()
    except BaseException:
        writer.drop()
        raise


def is_orphan(folder: str, now_ns: int) -> bool:
    """Was a folder of `staging/` begun so long ago that nobody is at it any more?"""
    began = folder.partition("-")[0]
    return began.isdigit() and now_ns - int(began) > ORPHANED_AFTER_S * NS


class _Writer:
    def __init__(self, target: Target, timestamp_ns: int) -> None:
        self._target = target
        self._timestamp_ns = timestamp_ns
        self._files = OsFiles()
        staging = Folder(self._files, target.path).child(STAGING)
        staging.make()
        name = f"{SystemClock().now_ns()}-{secrets.token_hex(8)}"
        self._name = name
        self._folder = staging.child(name)
        self._folder.make()
        self._fd = -1
        self._offset = 0
        self._next_seq = 0
        self._staged: list[Staged] = []
        self._bytes = 0
        self._max_entry_bytes = target.settings.ledger_settings().max_entry_bytes
        self._lot_bytes = min(_BATCH_BYTES, target.settings.segment_bytes - HEADER_BYTES)
        self._buffer = bytearray(self._lot_bytes * 2)

    def write(self, items: Sequence[Item]) -> None:
        """Append messages, in lots that a frame can hold, to a segment that has room."""
        lot: list[Item] = []
        size = 0
        for item in items:
            more = _size_of(item)
            if size + more > self._lot_bytes and lot:
                self._write_lot(lot, size)
                lot, size = [], 0
            size += more
            lot.append(item)
        if lot:
            self._write_lot(lot, size)

    def _write_lot(self, lot: Sequence[Item], size: int) -> None:
        needed = size + CHECKPOINT_BYTES
        if size > self._target.settings.segment_bytes * 16:
            raise TooLarge(f"a message of {size} bytes does not fit into a segment")
        if needed > len(self._buffer):
            self._buffer = bytearray(needed)
        if self._fd >= 0 and self._offset + needed > self._target.settings.segment_bytes:
            self._seal()
        if self._fd < 0:
            self._begin()
        packer = Packer(
            self._buffer,
            position=0,
            limit=len(self._buffer),
            next_seq=self._next_seq,
            max_entry_bytes=self._max_entry_bytes,
        )
        if packer.append_batch(lot, self._timestamp_ns) < 0:
            raise TooLarge("the messages do not fit where they were measured to")
        end = packer.position
        with memoryview(self._buffer) as view:
            write_fully(self._files, self._fd, view[:end], self._offset)
        packer.release()
        self._offset += end
        self._next_seq += len(lot)

    def _begin(self) -> None:
        name = f"{len(self._staged)}.log"
        self._fd = self._files.open(self._folder.file(name), "create")
        header = staged_header(self._target.identity, self._timestamp_ns)
        write_fully(self._files, self._fd, header.pack(), 0)
        self._offset, self._next_seq = HEADER_BYTES, 0

    def _seal(self) -> None:
        self._files.fdatasync(self._fd)
        self._files.close(self._fd)
        self._fd = -1
        self._staged.append(Staged(self._name, f"{len(self._staged)}.log", self._next_seq))
        self._bytes += self._offset

    def done(self) -> tuple[list[Staged], int]:
        if self._fd >= 0:
            self._seal()
        if not self._staged:
            self._files.remove_directory(self._folder.path)
        return self._staged, self._bytes

    def drop(self) -> None:
        """Leave nothing behind; what cannot be removed is swept when it is old."""
        try:
            if self._fd >= 0:
                self._files.close(self._fd)
            for name in self._files.names(self._folder.path):
                self._folder.remove(name)
            self._files.remove_directory(self._folder.path)
        except OSError:
            pass


def _size_of(item: Item) -> int:
    if isinstance(item, bytes):
        return ENTRY_OVERHEAD_BYTES + len(item)
    return ENTRY_OVERHEAD_BYTES + len(item.payload) + _options_bytes(item)


def _options_bytes(draft: Draft) -> int:
    """An upper bound for all that is not the payload."""
    size = 8 + 8 + 1 + 1 + 2 + len(draft.key or b"") + 2 + 1
    for name, value in (draft.headers or {}).items():
        size += 4 + len(name.encode()) + len(value.encode())
    return size + sum(3 + len(data) for data in (draft.attributes or {}).values())
