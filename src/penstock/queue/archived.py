"""How far a queue is archived: `archived.json`, which the archive job writes beside the logs.

With the setting `archive_required` nothing leaves the message log that is not archived. Without
the file nothing is; where it cannot be read, the same.
"""

import json
import logging

from penstock.codec import crc32c
from penstock.errors import InvalidInput
from penstock.ledger.folder import Folder

ARCHIVED_NAME = "archived.json"
_FORMAT = 1
_MAX_BYTES = 4096

log = logging.getLogger("penstock.queue")


def archived_upto(root: Folder, identity: int) -> int:
    """All messages below this seq are archived."""
    try:
        content = json.loads(root.read(ARCHIVED_NAME, max_bytes=_MAX_BYTES))
        checksum = content.pop("crc")
        if checksum != crc32c(_canonical(content)) or content["format"] > _FORMAT:
            raise ValueError("the checksum does not match, or a newer version wrote it")
        return int(content["upto"]) if content["identity"] == identity else 1
    except FileNotFoundError:
        return 1
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning(
            "%s cannot be read (%s): nothing is taken for archived until the archive job has run",
            root.file(ARCHIVED_NAME),
            error,
        )
        return 1


def note_archived(root: Folder, identity: int, upto: int, *, next_seq: int) -> None:
    """Note, durably, that all messages below a seq are archived. Never less than before."""
    if not 1 <= upto <= next_seq:
        raise InvalidInput(
            f"seqs below {upto} are said to be archived; the next one to be written is {next_seq}"
        )
    if upto <= archived_upto(root, identity):
        return
    content = {"format": _FORMAT, "identity": identity, "upto": upto}
    root.replace(
        ARCHIVED_NAME, json.dumps({**content, "crc": crc32c(_canonical(content))}).encode() + b"\n"
    )


def _canonical(content: dict[str, int]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
