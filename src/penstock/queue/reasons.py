"""Groups of reasons: failures that differ only in numbers and ids have the same cause."""

import re

_MAX_REASON = 200  # characters that tell reasons apart
# Hexadecimal ids with a digit in them, and numbers.
_NUMBERS = re.compile(r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{4,}(?:-[0-9a-fA-F]{2,})*\b|\d+", re.ASCII)


def reason_group(reason: str) -> str:
    """Return what reasons have in common that differ in numbers and ids only.

    >>> reason_group("timeout after 3.2 s at node-17 (request 9f86d081-884c)")
    'timeout after #.# s at node-# (request #)'
    """
    return _NUMBERS.sub("#", reason.partition("\n")[0][:_MAX_REASON])
