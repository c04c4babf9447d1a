"""Read the directory of LedgerQ, a queue in Go.

Its files are little-endian. A segment (`%020d.log`) has a header of 64 bytes, then entries:

    length u32 | type u8 | flags u8 | id u64 | timestamp i64 | [priority u8] | [expires i64]
    | [headers: count u16, then (size u16, bytes) for each key and value] | [compression u8]
    | payload | CRC-32C u32 | four zero bytes

`length` counts from its own first byte through the checksum, which covers all bytes before it.
`metadata.dat` has the read position, `.retry_state.json` the failed deliveries. The dead-letter
queue is another directory of the same form, whose messages name the one that died in headers.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.codec import crc32c
from penstock.importing.record import MAX_PROBLEMS, Imported, ImportFailed, State

_MAGIC = b"\x51\x51\x44\x4c"
_HEADER_BYTES = 64
_FIXED = struct.Struct("<IBBQq")  # length, type, flags, id, timestamp
_METADATA = struct.Struct("<IQQI")  # version, next id, read id, reserved
_PADDING_BYTES = 4
_CHECKSUM_BYTES = 4
_LEAST_BYTES = _FIXED.size + _CHECKSUM_BYTES
_MOST_BYTES = 1 << 30
_DATA = 1  # the type of a message; 2 and 3 are marks
_COMPRESSED, _TTL, _HEADERS, _PRIORITY = 0x01, 0x04, 0x08, 0x10
_GZIP = 1
_MOST_PAYLOAD_BYTES = 1 << 28  # of a compressed payload
_PRIORITIES = {0: 0, 1: 5, 2: 9}
_RETRY_STATE = ".retry_state.json"
_RETRY_VERSION = 1
_KINDS = (_DATA, 2, 3)
_DEAD_HEADERS = (
    "dlq.original_msg_id",
    "dlq.retry_count",
    "dlq.failure_reason",
    "dlq.last_failure",
)


class _Entry(NamedTuple):
    id: int
    timestamp_ns: int
    priority: int
    expires_ns: int | None
    headers: dict[str, str]
    payload: bytes


class _Failure(NamedTuple):
    times: int
    reason: str


class LedgerQDirectory:
    """A directory of LedgerQ, with its dead-letter directory if it has one."""

    def __init__(self, path: str, *, dead_path: str | None = None) -> None:
        """Open both directories. Without `dead_path`, look for PATH-dlq and PATH/dlq."""
        self._root = Path(path).absolute()
        self.name = f"LedgerQ at {path}"
        self.problems: list[str] = []
        self._segments = _segments(self._root)
        if not self._segments:
            raise ImportFailed(f"{path} has no segments of LedgerQ (files like {0:020d}.log).")
        self._read_id = _read_position(self._root)
        self._failures, self.max_attempts = self._read_retry_state()
        self._dead_root = _dead_directory(self._root, dead_path)

    def messages(self) -> Iterator[Imported]:
        dead = self._read_dead()
        for entry in self._entries(self._segments):
            yield self._imported(entry, dead)
        for entry, failure in dead.values():  # their originals were removed, or are unread again
            yield _imported(entry, "dead", failure, f"dead letter {entry.id}")

    def _imported(self, entry: _Entry, dead: dict[int, tuple[_Entry, _Failure]]) -> Imported:
        failure = self._failures.get(entry.id)
        state: State = "waiting"
        if entry.id < self._read_id:  # consumed
            if entry.id in dead:
                state, failure = "dead", dead.pop(entry.id)[1]
            elif failure is None:  # else it failed, and was not acknowledged since
                state = "done"
        return _imported(entry, state, failure, f"message {entry.id}")

    # -- files -------------------------------------------------------------------------------------

    def _read_retry_state(self) -> tuple[dict[int, _Failure], int | None]:
        """Return the failures by message, and the limit of deliveries (None: there is none)."""
        path = self._root / _RETRY_STATE
        if not path.exists():
            return {}, None
        try:
            stored = json.loads(path.read_bytes())
            if stored["version"] != _RETRY_VERSION:
                raise ImportFailed(
                    f"{path} has version {stored['version']}; only version 1 can be read."
                )
            failures = {
                int(one["msg_id"]): _Failure(
                    int(one["retry_count"]), str(one.get("failure_reason", ""))
                )
                for one in stored["entries"] or ()
            }
            return failures, int(stored["max_retries"]) or None
        except (ValueError, KeyError, TypeError) as error:
            raise ImportFailed(
                f"{path} is damaged: {error!r}. Remove it to go on without."
            ) from None

    def _read_dead(self) -> dict[int, tuple[_Entry, _Failure]]:
        """Return the dead letters that were not consumed, by the id of the message that died."""
        if self._dead_root is None:
            return {}
        dead: dict[int, tuple[_Entry, _Failure]] = {}
        read_id = _read_position(self._dead_root)
        for entry in self._entries(_segments(self._dead_root)):
            if entry.id < read_id:
                continue
            count = _number(entry.headers.get("dlq.retry_count"), 1)
            failure = _Failure(max(count, 1), entry.headers.get("dlq.failure_reason", ""))
            own = {k: v for k, v in entry.headers.items() if k not in _DEAD_HEADERS}
            original = _number(entry.headers.get("dlq.original_msg_id"), -entry.id)
            dead[original] = entry._replace(headers=own), failure
        return dead

    def _entries(self, segments: list[Path]) -> Iterator[_Entry]:
        for path in segments:
            data = path.read_bytes()
            if data[: len(_MAGIC)] != _MAGIC:
                if data:
                    self._note(f"{path.name} is not a segment of LedgerQ: left out")
                continue
            yield from self._entries_of(path.name, data)

    def _entries_of(self, name: str, data: bytes) -> Iterator[_Entry]:
        at = _HEADER_BYTES
        while True:
            size = _valid_size(data, at)
            if not size:
                following = _next_valid(data, at + 1)
                if following is None:
                    break
                self._note(f"{name}: {following - at} bytes at {at} are damaged: left out")
                at = following
                continue
            try:
                entry = _decode(data[at : at + size - _CHECKSUM_BYTES])
                if entry is not None:
                    yield entry
            except (ValueError, KeyError, IndexError, struct.error, zlib.error) as error:
                self._note(f"{name}: the entry at {at} cannot be read ({error!r}): left out")
            at += size + _PADDING_BYTES
        if data[at:].strip(b"\0"):
            self._note(f"{name}: the last {len(data) - at} bytes are incomplete: left out")

    def _note(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


def _imported(entry: _Entry, state: State, failure: _Failure | None, origin: str) -> Imported:
    return Imported(
        origin=origin,
        payload=entry.payload,
        timestamp_ns=entry.timestamp_ns,
        state=state,
        priority=entry.priority,
        headers=entry.headers,
        expires_ns=entry.expires_ns,
        failures=failure.times if failure else 0,
        reason=failure.reason if failure else "",
    )


def _valid_size(data: bytes, at: int) -> int:
    """Return the size of the entry at an offset, from its length through its checksum, or 0."""
    if at + _LEAST_BYTES > len(data):
        return 0
    size, kind, _, number, _ = _FIXED.unpack_from(data, at)
    if (
        not _LEAST_BYTES <= size <= min(_MOST_BYTES, len(data) - at)
        or kind not in _KINDS
        or not number
    ):
        return 0
    end = at + size - _CHECKSUM_BYTES
    if crc32c(data[at:end]) != int.from_bytes(data[end : at + size], "little"):
        return 0
    return int(size)


def _next_valid(data: bytes, at: int) -> int | None:
    """Return the offset of the next valid entry, or None."""
    return next((i for i in range(at, len(data) - _LEAST_BYTES + 1) if _valid_size(data, i)), None)


def _decode(data: bytes) -> _Entry | None:
    """Return the entry of these bytes, without its checksum; None if it is no message."""
    _, kind, flags, number, timestamp_ns = _FIXED.unpack_from(data)
    if kind != _DATA:
        return None
    at = _FIXED.size
    priority, expires_ns, compression = 0, None, 0
    headers: dict[str, str] = {}
    if flags & _PRIORITY:
        priority, at = _PRIORITIES[data[at]], at + 1
    if flags & _TTL:
        [expires_ns] = struct.unpack_from("<q", data, at)
        at += 8
    if flags & _HEADERS:
        headers, at = _decode_headers(data, at)
    if flags & _COMPRESSED:
        compression, at = data[at], at + 1
    payload = data[at:]
    if compression == _GZIP:
        payload = _gunzip(payload)
    elif compression:
        raise ValueError(f"unknown compression {compression}")
    return _Entry(number, timestamp_ns, priority, expires_ns, headers, payload)


def _decode_headers(data: bytes, at: int) -> tuple[dict[str, str], int]:
    [count] = struct.unpack_from("<H", data, at)
    at += 2
    texts: list[str] = []
    for _ in range(2 * count):
        [size] = struct.unpack_from("<H", data, at)
        at += 2
        if at + size > len(data):
            raise ValueError("a header is longer than its entry")
        texts.append(data[at : at + size].decode("utf-8", "replace"))
        at += size
    return dict(zip(texts[::2], texts[1::2], strict=True)), at


def _gunzip(payload: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    unpacked = unpacker.decompress(payload, _MOST_PAYLOAD_BYTES)
    if not unpacker.eof:
        raise ValueError("the compressed payload is incomplete, or larger than 256 MiB")
    return unpacked


def _segments(root: Path) -> list[Path]:
    try:
        found = [one for one in root.iterdir() if one.suffix == ".log" and one.stem.isdigit()]
    except OSError as error:
        raise ImportFailed(f"{root} cannot be read: {error.strerror}.") from None
    return sorted(found, key=lambda one: int(one.stem))


def _read_position(root: Path) -> int:
    path = root / "metadata.dat"
    if not path.exists():
        return 0
    data = path.read_bytes()
    if len(data) < _METADATA.size:
        raise ImportFailed(f"{path} is damaged: it has {len(data)} bytes. Remove it to import all.")
    return int(_METADATA.unpack_from(data)[2])


def _dead_directory(root: Path, given: str | None) -> Path | None:
    if given is not None:
        if not _segments(Path(given)):
            raise ImportFailed(f"{given} has no segments of LedgerQ.")
        return Path(given)
    places = (root.with_name(f"{root.name}-dlq"), root / "dlq")
    return next((one for one in places if one.is_dir() and _segments(one)), None)


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else default
