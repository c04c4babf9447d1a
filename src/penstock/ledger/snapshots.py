"""Snapshots: folds of the state, kept so that opening need not read all events.

Opaque to the ledger. Two are kept; a damaged one is passed over for the older.
"""

import struct
from collections.abc import Container
from typing import NamedTuple

from penstock.codec import crc32c
from penstock.errors import NewerVersion, TooLarge
from penstock.ledger.folder import Folder

SNAPSHOTS_KEPT = 2
MAX_SNAPSHOT_BYTES = 4 << 30
_MAGIC = b"PNSS"
_VERSION = 1
_HEAD = struct.Struct("<4sIQQ")  # magic, version, event seq, length of the blob
_CRC = struct.Struct("<I")
_SUFFIX = ".snap"


class Snapshot(NamedTuple):
    """A fold of everything up to and including an event."""

    event_seq: int
    blob: bytes


class Snapshots:
    """The snapshots directory of a ledger."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.damaged: list[tuple[str, str]] = []  # (name, reason) of those passed over

    def save(self, event_seq: int, blob: bytes) -> None:
        """Write a snapshot durably, and remove all but the newest two."""
        if len(blob) > MAX_SNAPSHOT_BYTES - _HEAD.size - _CRC.size:
            raise TooLarge(f"a snapshot of {len(blob)} bytes; the maximum is {MAX_SNAPSHOT_BYTES}")
        head = _HEAD.pack(_MAGIC, _VERSION, event_seq, len(blob))
        checksum = crc32c(blob, crc32c(head))
        self._folder.replace(snapshot_name(event_seq), head + blob + _CRC.pack(checksum))
        old = [seq for seq in self.seqs() if seq != event_seq]
        newer = [seq for seq in old if seq > event_seq]  # damaged ones, or of a lost future
        keep = sorted(set(old) - set(newer))[-(SNAPSHOTS_KEPT - 1) :]
        for seq in old:
            if seq not in keep:
                self._folder.remove(snapshot_name(seq))
        self._folder.sync()

    def newest(self, *, upto: int | None = None, trusted: Container[int] = ()) -> Snapshot | None:
        """Return the newest undamaged one that is not above `upto`, or is one of the `trusted`."""
        for seq in reversed(self.seqs()):
            if upto is not None and seq > upto and seq not in trusted:
                continue
            try:
                return self.read(seq)
            except FileNotFoundError:
                continue  # a writer beside us has newer ones by now
            except (ValueError, OSError) as error:
                self.damaged.append((snapshot_name(seq), str(error)))
        return None

    def seqs(self) -> list[int]:
        """Return the event seqs of the snapshots, rising."""
        return sorted(seq for name in self._folder.names() if (seq := _seq_of(name)) is not None)

    def read(self, event_seq: int) -> Snapshot:
        """Return one snapshot; ValueError says what is wrong with it."""
        data = self._folder.read(snapshot_name(event_seq), max_bytes=MAX_SNAPSHOT_BYTES)
        if len(data) < _HEAD.size + _CRC.size:
            raise ValueError(f"cut off: {len(data)} bytes")
        body = memoryview(data)[: -_CRC.size]
        if crc32c(body) != _CRC.unpack(data[-_CRC.size :])[0]:
            raise ValueError("the checksum does not match")
        magic, version, seq, length = _HEAD.unpack_from(data)
        if magic != _MAGIC or seq != event_seq:
            raise ValueError("not a snapshot of this event")
        if version > _VERSION:
            raise NewerVersion(0, f"snapshot {event_seq} was written by a newer version")
        if length != len(body) - _HEAD.size:
            raise ValueError("the length does not match")
        return Snapshot(seq, bytes(body[_HEAD.size :]))


def snapshot_name(event_seq: int) -> str:
    """Return the name of its file."""
    return f"{event_seq:020d}{_SUFFIX}"


def _seq_of(name: str) -> int | None:
    stem = name.removesuffix(_SUFFIX)
    if stem == name or len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)
