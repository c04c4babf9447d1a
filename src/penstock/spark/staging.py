"""What a task writes: segments of its own, in a folder of the queue's `staging/`.

A folder for each attempt of a task, named by when it began, so that what failed attempts and
speculative twins leave behind can be told from what is being written.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock import codec
from penstock.clock import SystemClock
from penstock.codec import ENTRY_OVERHEAD_BYTES, Draft, Packer
from penstock.codec.layout import CHECKPOINT_BYTES
from penstock.errors import TooLarge
from penstock.ledger.folder import Folder, write_fully
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.ledger.staging import STAGING, Staged, folder_name, staged_header
from penstock.queue import QueueSettings
from penstock.spark.places import QueueAt
from penstock.spark.sink_rows import Payloads, RowsToMessages, size_of
from penstock.spark.staging_files import lot_bytes, staging_files

_START_BYTES = 8 << 20  # the disk is told to begin each time that so much was written


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
                writer.write(rows.messages(batch, timestamp_ns))
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
        self._offset = self._started = 0
        self._next_seq = 0
        self._staged: list[Staged] = []
        self._bytes = 0
        self._max_entry_bytes = target.settings.ledger_settings().max_entry_bytes
        self._segment_bytes = target.settings.segment_bytes
        # Written as soon as it is packed, while it is in the processor's cache.
        self._buffer = bytearray(min(lot_bytes(target.queue), self._segment_bytes - HEADER_BYTES))
        self._lot_bytes = len(self._buffer)

    def write(self, messages: Payloads | Sequence[Draft]) -> None:
        """Append messages, each to a segment that has room."""
        if isinstance(messages, Payloads):
            self._write_payloads(messages)
        else:
            self._write_drafts(messages)

    def _write_payloads(self, payloads: Payloads) -> None:
        row, offsets = 0, payloads.offsets.cast("i")
        while row < payloads.count:
            first_bytes = ENTRY_OVERHEAD_BYTES + offsets[row + 1] - offsets[row]
            self._make_room(first_bytes)
            room = max(first_bytes, min(self._lot_bytes, self._segment_bytes - self._offset))
            with memoryview(self._buffer) as whole, whole[:room] as view:
                after, size = codec.pack_payloads(
                    view,
                    payloads.offsets,
                    payloads.data,
                    row,
                    seq=self._next_seq,
                    timestamp_ns=self._timestamp_ns,
                    max_entry_bytes=self._max_entry_bytes,
                )
                self._put(view[:size], after - row)
            row = after

    def _write_drafts(self, drafts: Sequence[Draft]) -> None:
        lot: list[Draft] = []
        size = CHECKPOINT_BYTES
        for draft in drafts:
            more = size_of(draft)
            if lot and size + more > self._lot_bytes:
                self._write_lot(lot, size)
                lot, size = [], CHECKPOINT_BYTES
            lot.append(draft)
            size += more
        self._write_lot(lot, size)

    def _write_lot(self, lot: Sequence[Draft], size_bytes: int) -> None:
        self._make_room(size_bytes)
        packer = Packer(
            self._buffer,
            position=0,
            limit=len(self._buffer),
            next_seq=self._next_seq,
            max_entry_bytes=self._max_entry_bytes,
        )
        if packer.append_batch(lot, self._timestamp_ns) < 0:
            raise TooLarge("the messages do not fit where they were measured to")
        with memoryview(self._buffer) as whole, whole[: packer.position] as view:
            self._put(view, len(lot))
        packer.release()

    def _make_room(self, size_bytes: int) -> None:
        """In the buffer, and in the segment: a large message may have one to itself."""
        if size_bytes > len(self._buffer):
            self._buffer = bytearray(size_bytes)
        if self._fd >= 0 and self._offset + size_bytes > self._segment_bytes:
            self._seal()
        if self._fd < 0:
            self._begin()

    def _put(self, data: memoryview, entries: int) -> None:
        write_fully(self._files, self._fd, data, self._offset)
        self._offset += len(data)
        self._next_seq += entries
        if self._offset - self._started >= _START_BYTES:
            # The disk begins now, so that the sync at the end has little left to wait for.
            self._files.start_writing(self._fd, self._started, self._offset - self._started)
            self._started = self._offset

    def _begin(self) -> None:
        name = f"{len(self._staged)}.log"
        self._fd = self._files.open(self._folder.file(name), "create")
        header = staged_header(self._target.identity, self._timestamp_ns)
        write_fully(self._files, self._fd, header.pack(), 0)
        self._offset = self._started = HEADER_BYTES
        self._next_seq = 0

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
