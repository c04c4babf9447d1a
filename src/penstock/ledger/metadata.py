"""metadata.json: a summary for people and tools. A cache, never the truth, and never read back."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from penstock.ledger.folder import Folder

METADATA_NAME = "metadata.json"


def save_metadata(
    root: Folder, *, now_ns: int, created_at_ns: int, facts: Mapping[str, object]
) -> None:
    """Put it in place of the old one, if that can be done."""
    metadata = {
        "version": 1,
        "created_at": _as_text(created_at_ns),
        "updated_at": _as_text(now_ns),
        **facts,
    }
    try:
        root.replace(METADATA_NAME, (json.dumps(metadata, indent=1) + "\n").encode())
    except OSError:
        pass  # a full disk, say: no reason to fail a close or a snapshot that went well


def _as_text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")
