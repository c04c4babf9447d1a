"""The staging area of a queue: where others put segments before the queue takes them in.

A folder for each writer, named by when it began, so that what failed writers leave behind can be
told from what is being written.
"""

import re
from collections.abc import Sequence

from penstock import codec
from penstock.codec import Draft
from penstock.codec.entry import draft_of
from penstock.errors import InvalidInput
from penstock.ledger.adoption import (
    Adopted,
    Within,
    adopt,
    adopted_before,
    append_once,
    sweep_staging,
)
from penstock.ledger.folder import Folder
from penstock.ledger.ledger import Ledger
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.ledger.staged_segments import STAGING, Staged, check_header
from penstock.ledger.transactions import Transaction
from penstock.model import NS

SMALL_BYTES = 8 << 20  # below it, entries are appended: many small segments would be slow to read
ORPHANED_AFTER_S = 24 * 3600
_FOLDER = re.compile(r"[0-9]{1,19}-[0-9a-f]{16}", re.ASCII)
_SEGMENT = re.compile(r"[0-9]{1,9}\.log", re.ASCII)


def folder_name(now_ns: int, chance: str) -> str:
    """The folder of a writer that begins now; `chance` are 16 random hexadecimal digits."""
    return f"{now_ns}-{chance}"


def check_folder_name(folder: str) -> str:
    if not _FOLDER.fullmatch(folder):
        raise InvalidInput(
            f"{folder[:100]!r} is no folder of a staging area: <nanoseconds>-<16 hex digits>"
        )
    return folder


def check_segment_name(name: str) -> str:
    if not _SEGMENT.fullmatch(name):
        raise InvalidInput(f"{name[:100]!r} is no staged segment: <number>.log")
    return name


def is_orphan(folder: str, now_ns: int) -> bool:
    """Was a folder begun so long ago that nobody is at it any more?"""
    began = folder.partition("-")[0]
    return began.isdigit() and now_ns - int(began) > ORPHANED_AFTER_S * NS


def take_in(
    ledger: Ledger,
    staged: Sequence[Staged],
    transaction: Transaction | None,
    *,
    now_ns: int,
    within: Within | None = None,
) -> Adopted:
    """Take staged segments in, all or none: little is appended, much is adopted.

    Then their folders are removed, and those that nobody has been at for a day. `within`: see
    `adopt`.
    """
    staging = Folder(ledger.messages.folder.files, ledger.path).child(STAGING)
    earlier = None if transaction is None else adopted_before(ledger, transaction)
    if earlier is not None:
        adopted = earlier
    elif _size_of(staging, staged) < SMALL_BYTES:
        drafts = [draft for one in staged for draft in _drafts(ledger, staging, one)]
        adopted = append_once(ledger, drafts, transaction, within=within)
    else:
        adopted = adopt(ledger, staged, transaction, within=within)
    orphans = [name for name in staging.names() if is_orphan(name, now_ns)]
    sweep_staging(ledger, [*dict.fromkeys(one.folder for one in staged), *orphans])
    return adopted


def _size_of(staging: Folder, staged: Sequence[Staged]) -> int:
    """How much there is; what is missing was adopted before, or is told of by who reads it."""
    total = 0
    for one in staged:
        folder = staging.child(one.folder)
        if folder.has(one.name):
            fd = folder.files.open(folder.file(one.name), "read")
            try:
                total += folder.files.size(fd)
            finally:
                folder.files.close(fd)
    return total


def _drafts(ledger: Ledger, staging: Folder, one: Staged) -> list[Draft]:
    folder = staging.child(one.folder)
    try:
        data = folder.read(one.name, max_bytes=SMALL_BYTES)
    except FileNotFoundError:
        raise InvalidInput(f"{folder.file(one.name)} is not there; nothing was appended") from None
    check_header(one, data, ledger.identity)
    entries, after = codec.read_entries(
        data,
        HEADER_BYTES,
        len(data),
        max_count=one.entries + 1,
        max_entry_bytes=ledger.settings.max_entry_bytes,
    )
    if len(entries) != one.entries or after != len(data):
        raise InvalidInput(f"{folder.file(one.name)} is not what was written; nothing was appended")
    return [draft_of(entry) for entry in entries]
