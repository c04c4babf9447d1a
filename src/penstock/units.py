"""Durations and sizes as people write them in settings: 90, 250ms, 10m, 64MB, 1.5GiB."""

import re

from penstock.errors import InvalidInput

_NUMBER = r"\d+(?:\.\d+)?"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(rf"({_NUMBER})(ms|s|m|h|d)?", re.ASCII)
_BYTES = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
_SIZE = re.compile(rf"({_NUMBER})({'|'.join(_BYTES)})?", re.ASCII | re.IGNORECASE)
_UNIT_OF = {unit.lower(): count for unit, count in _BYTES.items()}

A_DURATION = "seconds, or a number with a unit: 90, 250ms, 10m, 2h, 7d"
A_SIZE = "bytes, or a number with a unit: 4096, 64MB (64,000,000), 64MiB (67,108,864)"


def duration_s(text: str) -> float | None:
    """Return the seconds of a duration; None if the text is none.

    >>> [duration_s(text) for text in ("30", "0.5", "250ms", "10m", "2h", "7d", "soon")]
    [30.0, 0.5, 0.25, 600.0, 7200.0, 604800.0, None]
    """
    found = _DURATION.fullmatch(text)
    return None if found is None else float(found[1]) * _SECONDS[found[2] or "s"]


def size_bytes(text: str) -> int | None:
    """Return the bytes of a size; None if the text is none.

    >>> [size_bytes(text) for text in ("4096", "64MB", "64MiB", "1.5kb", "big")]
    [4096, 64000000, 67108864, 1500, None]
    """
    found = _SIZE.fullmatch(text)
    return None if found is None else round(float(found[1]) * _UNIT_OF[(found[2] or "B").lower()])


def number_of(name: str, value: object) -> object:
    """Return the number that a text means as the value of a setting: of seconds or bytes, as the
    setting's name ends. Anything else is returned as it is.

    >>> number_of("lease_s", "1m"), number_of("segment_bytes", "1MiB"), number_of("sync", "never")
    (60.0, 1048576, 'never')
    """
    if not isinstance(value, str):
        return value
    if name.endswith("_bytes"):
        found: float | None = size_bytes(value)
        meant = A_SIZE
    elif name.endswith("_s") and not name.endswith("_per_s"):
        found, meant = duration_s(value), A_DURATION
    else:
        return value
    if found is None:
        raise InvalidInput(f"{name} is {value!r}; it must be {meant}")
    return found
