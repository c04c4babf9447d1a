"""What a task writes: segments of its own, in a folder of the queue's `staging/`.

A folder for each attempt of a task, named by when it began, so that what failed attempts and
speculative twins leave behind can be told from what is being written.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.clock import SystemClock
from penstock.codec import Packer
from penstock.codec.layout import CHECKPOINT_BYTES
from penstock.errors import TooLarge
from penstock.ledger.adoption import STAGING, Staged, staged_header
from penstock.ledger.folder import Folder, write_fully
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.ledger.staging import folder_name
from penstock.queue import QueueSettings
from penstock.spark.places import QueueAt
from penstock.spark.sink_rows import Item, RowsToMessages, size_of
from penstock.spark.staging_files import staging_files

_LOT_BYTES = 16 << 20  # handed to the packer at once; a frame each


@dataclass(frozen=True, slots=True)
class Target:
    """The queue that is written to, as a task must know it."""

    queue: QueueAt  # where segments are staged
    holder: QueueAt  # where they are taken in: the same, or at the broker that has these files
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
                writer.write(*rows.items(batch, timestamp_ns))
        return writer.done()
    except BaseException:
        writer.drop()
        raise


class _Writer:
    def __init__(self, target: Target, timestamp_ns: int) -> None:
        self._target = target
        self._timestamp_ns = timestamp_ns
        self._files = staging_files(target.queue)
        staging = Folder(self._files, target.queue.path).child(STAGING)
        staging.make()
        name = folder_name(SystemClock().now_ns(), secrets.token_hex(8))
        self._name = name
        self._folder = staging.child(name)
        self._folder.make()
        self._fd = -1
        self._offset = 0
        self._next_seq = 0
        self._staged: list[Staged] = []
        self._bytes = 0
        self._max_entry_bytes = target.settings.ledger_settings().max_entry_bytes
        self._lot_bytes = min(_LOT_BYTES, target.settings.segment_bytes - HEADER_BYTES)
        self._buffer = bytearray(0)

    def write(self, items: Sequence[Item], size_bytes: int) -> None:
        """Append messages that need at most so many bytes, to a segment that has room."""
        if size_bytes > self._lot_bytes and len(items) > 1:
            half = len(items) // 2
            self.write(items[:half], _size_of(items[:half]))
            self.write(items[half:], _size_of(items[half:]))
        else:
            self._write_lot(items, size_bytes)

    def _write_lot(self, lot: Sequence[Item], size: int) -> None:
        needed = size + CHECKPOINT_BYTES
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
        # The disk begins now, so that the sync at the end has little left to wait for.
        self._files.start_writing(self._fd, self._offset, end)
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


def _size_of(items: Sequence[Item]) -> int:
    return sum(map(size_of, items))
