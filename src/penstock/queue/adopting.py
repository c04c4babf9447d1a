"""Adopt segments that other processes staged for a queue: check them, move them, feed the state.

Every publisher may stage segments, so each is checked like published messages: messages only,
within the limits of the queue, and without attributes that only the queue itself may set.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise

from penstock import codec
from penstock.codec import Columns
from penstock.codec.layout import MAX_PRIORITY
from penstock.errors import BadEntry, InvalidInput, PayloadTooLarge, TooLarge
from penstock.ledger.adoption import Adopted, adopt_or_append, adopted_before
from penstock.ledger.folder import Folder, read_fully
from penstock.ledger.json_files import Transaction
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.ledger.staging import STAGING, Staged, check_folder_name, check_segment_name
from penstock.queue.attributes import CONTENT_TYPE, MAX_ATTEMPTS, TRACE
from penstock.queue.core import QueueCore
from penstock.queue.drafting import (
    MAX_CONTENT_TYPE_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
)
from penstock.queue.fold import feed_adopted
from penstock.queue.settings import MOST_ATTEMPTS, QueueSettings

MAX_APP_BYTES = 512
MAX_VERSION = (1 << 63) - 1
_COLUMNS = ("priority", "payload", "key", "headers", "attributes")
_ROWS = 16384


def check_transaction(app: str, version: int) -> Transaction:
    """Return the name of a transaction. Raise InvalidInput if it is invalid."""
    if not app or len(app.encode(errors="replace")) > MAX_APP_BYTES or not app.isprintable():
        raise InvalidInput(f"an application's name is 1 to {MAX_APP_BYTES} bytes of printable text")
    if not 0 <= version <= MAX_VERSION:
        raise InvalidInput(f"the version is {version}; it must be from 0 to 2^63 - 1")
    return Transaction(app, version)


def refuse_bounds(settings: QueueSettings, name: str) -> None:
    """Raise InvalidInput if the queue has a bound: a job is written as a whole and cannot wait."""
    for bound in ("max_messages", "max_bytes", "rate_per_s"):
        if getattr(settings, bound):
            raise InvalidInput(
                f"{name} has a bound ({bound} is {getattr(settings, bound)}), which a job that is "
                f"written as a whole cannot keep: remove the bound, or publish through the queue"
            )


def adopt_staged(
    core: QueueCore, staged: Sequence[Staged], transaction: Transaction | None
) -> Adopted:
    """Adopt segments of the staging area as messages, all or none. Adopt a transaction once."""
    for one in staged:
        check_folder_name(one.folder)
        check_segment_name(one.name)
    if transaction is None or adopted_before(core.ledger, transaction) is None:
        refuse_bounds(core.settings, core.ledger.path)
        for one in staged:
            _check(core, one)

    def within(step: Callable[[], Adopted]) -> Adopted:
        with core.lock, core.change:
            adopted = step()
            feed_adopted(core.ledger, core.state, adopted.first_seq + adopted.entries)
            core.metrics.published += adopted.entries
            core.weigh(adopted.entries)
            return adopted

    adopted = adopt_or_append(
        core.ledger, staged, transaction, now_ns=core.clock.now_ns(), within=within
    )
    core.arrived()
    core.snapshot_if_due()
    return adopted


# -- checks ----------------------------------------------------------------------------------------


def _check(core: QueueCore, one: Staged) -> None:
    """Raise InvalidInput if a message of a staged segment could not have been published."""
    data = _read(core, one)
    limit = core.ledger.settings.max_entry_bytes
    offset, rows = HEADER_BYTES, 0
    while offset < len(data):
        try:
            found = codec.decode_columns(
                data, offset, len(data), _COLUMNS, max_rows=_ROWS, max_entry_bytes=limit
            )
        except BadEntry as error:
            raise InvalidInput(
                f"the staged segment {one.folder}/{one.name} is not what was written: {error}"
            ) from None
        if found.next_offset == offset:
            break
        _check_columns(found, core.settings)
        offset, rows = found.next_offset, rows + found.rows
    if rows != one.entries:
        raise InvalidInput(
            f"the staged segment {one.folder}/{one.name} has {rows} messages, not {one.entries}"
        )


def _read(core: QueueCore, one: Staged) -> bytes:
    root = Folder(core.ledger.messages.folder.files, core.ledger.path)
    folder = root.child(STAGING).child(one.folder)
    try:
        fd = folder.files.open(folder.file(one.name), "read")
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no staged segment {one.folder}/{one.name}: it was never written, or a job "
            f"without a name was committed twice"
        ) from None
    try:
        return read_fully(folder.files, fd, folder.files.size(fd), 0)
    finally:
        folder.files.close(fd)


def _check_columns(found: Columns, settings: QueueSettings) -> None:
    buffers = found.buffers
    if max(buffers["priority"], default=0) > MAX_PRIORITY:
        raise InvalidInput(f"a staged message has a priority above {MAX_PRIORITY}")
    longest = _longest(buffers["payload.offsets"])
    if longest > settings.max_payload_bytes:
        raise PayloadTooLarge(
            f"a staged payload has {longest} bytes; the maximum is {settings.max_payload_bytes} "
            f"(max_payload_bytes)"
        )
    if _longest(buffers["key.offsets"]) > MAX_KEY_BYTES:
        raise TooLarge(f"a key of a staged message has more than {MAX_KEY_BYTES} bytes")
    if not _are_texts(buffers["key"], buffers["key.offsets"]):
        raise InvalidInput("a key of a staged message is not text (UTF-8)")
    _check_attributes(buffers)
    if any(bad in buffers["headers.keys"] for bad in b"\r\n\0"):
        raise InvalidInput("a header name of a staged message has a line break or NUL in it")
    if _longest(buffers["headers.offsets"]) > MAX_HEADERS:
        raise TooLarge(f"a staged message has more than {MAX_HEADERS} headers")
    if len(buffers["headers.keys"]) + len(buffers["headers.values"]) > MAX_HEADERS_BYTES:
        _check_headers(buffers)


def _are_texts(data: bytearray, offsets: bytearray) -> bool:
    """Return whether each value is UTF-8: all together are, and none begins inside a character."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return not any(data[at] & 0xC0 == 0x80 for at in _numbers(offsets)[:-1] if at < len(data))


def _check_attributes(buffers: "dict[str, bytearray]") -> None:
    tags, values = buffers["attributes.tags"], buffers["attributes.values"]
    if tags.translate(None, bytes(_FITS)):
        raise InvalidInput("a staged message has attributes that only the queue may set")
    starts = _numbers(buffers["attributes.values.offsets"])
    for tag, first, end in zip(tags, starts, starts[1:], strict=False):
        if not _FITS[tag](values[first:end]):
            raise InvalidInput(f"attribute {tag} of a staged message has an invalid value")


def _is_short_text(value: bytearray) -> bool:
    try:
        return len(value) <= MAX_CONTENT_TYPE_BYTES and bool(value.decode().isprintable())
    except UnicodeDecodeError:
        return False


def _is_attempts(value: bytearray) -> bool:
    return len(value) == 4 and 1 <= int.from_bytes(value, "little") <= MOST_ATTEMPTS


_FITS: dict[int, Callable[[bytearray], bool]] = {
    MAX_ATTEMPTS: _is_attempts,
    CONTENT_TYPE: _is_short_text,
    TRACE: _is_short_text,
}


def _check_headers(buffers: "dict[str, bytearray]") -> None:
    """Check the headers of each message."""
    rows = _numbers(buffers["headers.offsets"])
    names, values = (_numbers(buffers[f"headers.{part}.offsets"]) for part in ("keys", "values"))
    for first, end in pairwise(rows):
        if names[end] - names[first] + values[end] - values[first] > MAX_HEADERS_BYTES:
            raise TooLarge(f"the headers of a staged message have over {MAX_HEADERS_BYTES} bytes")


def _numbers(offsets: bytearray) -> "array[int]":
    return array("i", bytes(offsets))


def _longest(offsets: bytearray) -> int:
    starts = _numbers(offsets)
    return max(map(int.__sub__, starts[1:], starts[:-1]), default=0)
