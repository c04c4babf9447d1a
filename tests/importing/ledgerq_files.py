"""Write the files of LedgerQ, byte by byte as its program does."""

import gzip
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.codec import crc32c

DAY_NS = 86_400 * 10**9


def entry(
    id: int,
    payload: bytes,
    timestamp_ns: int,
    *,
    priority: int | None = None,
    expires_ns: int | None = None,
    headers: Mapping[str, str] | None = None,
    compress: bool = False,
    kind: int = 1,
) -> bytes:
    flags, middle = 0, b""
    if priority is not None:
        flags |= 0x10
        middle += bytes([priority])
    if expires_ns is not None:
        flags |= 0x04
        middle += struct.pack("<q", expires_ns)
    if headers is not None:
        flags |= 0x08
        middle += struct.pack("<H", len(headers))
        for text in (one for pair in headers.items() for one in pair):
            middle += struct.pack("<H", len(text.encode())) + text.encode()
    if compress:
        flags |= 0x01
        middle += b"\x01"
        payload = gzip.compress(payload)
    size = 22 + len(middle) + len(payload) + 4
    head = struct.pack("<IBBQq", size, kind, flags, id, timestamp_ns) + middle + payload
    assert len(head) + 4 == size
    return head + struct.pack("<I", crc32c(head)) + bytes(4)


def write_segment(directory: Path, base: int, entries: Sequence[bytes], tail: bytes = b"") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{base:020d}.log"
    path.write_bytes(b"\x51\x51\x44\x4c" + bytes(60) + b"".join(entries) + tail)
    return path


def write_metadata(directory: Path, next_id: int, read_id: int) -> None:
    (directory / "metadata.dat").write_bytes(struct.pack("<IQQI", 1, next_id, read_id, 0))


def write_retry_state(
    directory: Path, failures: Mapping[int, tuple[int, str]], max_retries: int
) -> None:
    entries = [
        {
            "msg_id": number,
            "retry_count": count,
            "last_failure": "2026-01-02T03:04:05Z",
            "failure_reason": reason,
        }
        for number, (count, reason) in failures.items()
    ]
    state = {"version": 1, "max_retries": max_retries, "entries": entries}
    (directory / ".retry_state.json").write_text(json.dumps(state))
