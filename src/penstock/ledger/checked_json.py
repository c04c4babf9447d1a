"""Small JSON files with a checksum over their content."""

import json
from typing import Any

from penstock.codec import crc32c
from penstock.errors import BadEntry


def pack_checked(content: dict[str, Any]) -> bytes:
    """Return the content as a file: readable, with its checksum as member `crc`."""
    checksum = crc32c(_canonical(content))
    return (json.dumps({**content, "crc": checksum}, indent=1) + "\n").encode()


def unpack_checked(name: str, data: bytes) -> dict[str, Any]:
    """Return the content of a file; BadEntry if it is not what was written."""
    try:
        content = json.loads(data)
        checksum = content.pop("crc")
        if checksum != crc32c(_canonical(content)):
            raise BadEntry(0, f"the checksum of {name} does not match")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadEntry(0, f"{name} cannot be read: {error}") from None
    assert isinstance(content, dict)  # else it had no `pop`
    return content


def whole(value: object, low: int, high: int) -> int:
    """Return a whole number within its limits; ValueError if it is not one."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} is not between {low} and {high}")
    return value


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
