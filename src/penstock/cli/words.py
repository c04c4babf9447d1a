"""Sizes, durations and times: as people write them, and as they read them."""

import re
from datetime import datetime

import typer

from penstock.units import A_DURATION, A_SIZE, duration_s, size_bytes

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PREVIEW_BYTES = 400


def seconds_of(text: str | float) -> float:
    """A duration: seconds, or a number with one of ms, s, m, h, d.

    >>> [seconds_of(text) for text in ("30", "0.5", "250ms", "10m", "2h", "7d")]
    [30.0, 0.5, 0.25, 600.0, 7200.0, 604800.0]
    """
    found = duration_s(str(text))  # an option's default comes as it is: a number
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write {A_DURATION}")
    return found


def bytes_of(text: str | int) -> int:
    """A size: bytes, or a number with a unit.

    >>> [bytes_of(text) for text in ("4096", "64MB", "1GiB")]
    [4096, 64000000, 1073741824]
    """
    found = size_bytes(str(text))
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size; write {A_SIZE}")
    return found


def time_of(text: str) -> float:
    """A moment: Unix seconds, or ISO 8601, which is local time unless it says otherwise.

    >>> time_of("1700000000.5"), time_of("2023-11-14T22:13:20Z")
    (1700000000.5, 1700000000.0)
    """
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
            return float(text)
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a time; write Unix seconds, or ISO 8601: 2030-01-31T09:00"
        ) from None


def size(count: float) -> str:
    """Bytes, in the largest unit that leaves a number above one.

    >>> [size(count) for count in (0, 999, 16384, 64 << 20, 3 << 40)]
    ['0 B', '999 B', '16.0 KiB', '64.0 MiB', '3.0 TiB']
    """
    if count < 1024:
        return f"{count} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def span(seconds: float) -> str:
    """A duration, in at most two units.

    >>> [span(seconds) for seconds in (0, 0.0123, 4.25, 95, 7300, 200_000, 4e7)]
    ['0 s', '12 ms', '4.2 s', '1 m 35 s', '2 h 1 m', '2 d 7 h', '462 d 23 h']
    """
    if seconds < 0.001:
        return "<1 ms" if seconds else "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for large, small in (("d", "h"), ("h", "m"), ("m", "s")):
        unit_s = int(_UNITS_S[large])
        if whole >= unit_s:
            return f"{whole // unit_s} {large} {whole % unit_s // int(_UNITS_S[small])} {small}"
    raise AssertionError(seconds)


def moment(unix_s: float) -> str:
    """A time in the reader's time zone."""
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def clock_time(unix_s: float) -> str:
    """Only the time of day."""
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%H:%M:%S")


def number(value: int, noun: str = "") -> str:
    """With thousands apart, and of what, one or many.

    >>> number(1234567), number(1, "segment"), number(0, "segment")
    ('1,234,567', '1 segment', '0 segments')
    """
    if not noun:
        return f"{value:,}"
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def plain(text: str) -> str:
    r"""Text on one line, and harmless to a terminal.

    >>> plain("two\nlines, \x1b[31mred")
    'two\\nlines, \\x1b[31mred'
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def preview(payload: bytes) -> str:
    r"""The beginning of a payload, for people.

    >>> preview(b"hello"), preview(b"\xff\x00"), preview(b"")
    ('hello', '2 bytes: ff 00', '')
    """
    start = payload[:_PREVIEW_BYTES]
    try:
        # A character that the cut went through does not make it binary.
        text = start.decode(errors="ignore" if len(payload) > _PREVIEW_BYTES else "strict")
    except UnicodeDecodeError:
        return f"{len(payload)} bytes: {start[:64].hex(' ')}"
    return plain(text)
