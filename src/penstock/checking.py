"""Checks of arguments. All raise InvalidInput, with the same wording."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, TypeGuard, get_args, get_origin

from penstock.errors import InvalidInput

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
# `http//host`, `localhost:8080/x`, `10.0.0.1:8080/x`: mistyped. `./10.0.0.1:80/x` is a directory.
_URL_WITHOUT_SCHEME = re.compile(r"https?//|(localhost|[\w-]+(\.[\w-]+)+):[0-9]{2,5}/", re.ASCII)

_PASSWORD = re.compile(r"(?<=[^/]):[^@/]*(?=@)|(?<=[?&])password=[^&]*")

MEMORY = "memory:"  # instead of a directory: a queue in the memory of this process

Duration = float | timedelta  # a number is seconds
Time = float | datetime  # a number is Unix seconds


def check_number(name: str, value: object, low: float, high: float) -> float:
    """Return a number from `low` to `high`. Raise InvalidInput if it is anything else, or NaN."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not low <= value <= high  # NaN is neither
    ):
        raise InvalidInput(
            f"{name} is {_shown(value)}; it must be a number from {_plain(low)} to {_plain(high)}"
        )
    return value


def check_whole(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`. Raise InvalidInput if it is anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(
            f"{name} is {_shown(value)}; it must be a whole number from {low} to {high}"
        )
    return value


def _plain(number: float) -> str:
    """Return a number as people write it, without an exponent if that is short.

    >>> _plain(3.1536e9), _plain(0.001), _plain(30)
    ('3153600000', '0.001', '30')
    """
    return f"{number:.0f}" if abs(number) < 1e15 and number == int(number) else f"{number:g}"


def _shown(value: object) -> str:
    """Return a value as text; Python does not write the digits of a huge number."""
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"


def check_text(name: str, value: object) -> str:
    """Return a text. Raise InvalidInput if it is anything else."""
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is {_shown(value)}; it must be text")
    return value


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise InvalidInput if the value is not one of the choices."""
    if value not in choices:
        raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def check_fields(settings: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Check the fields of a dataclass by their types, and numbers by their ranges.

    Fields of other types are left to the caller, and numbers without a range.
    """
    for item in fields(settings):
        name, value, kind = item.name, getattr(settings, item.name), item.type
        if kind is bool and not isinstance(value, bool):
            raise InvalidInput(f"{name} is {_shown(value)}; it must be true or false")
        if kind is str:
            check_text(name, value)
        if get_origin(kind) is Literal:
            check_choice(name, value, get_args(kind))
        elif name in ranges:
            low, high = ranges[name]
            if kind is int:
                check_whole(name, value, int(low), int(high))
            else:
                check_number(name, value, low, high)


_SCHEMES = ("http://", "https://", "http+unix://", "grpc://", "grpcs://")


def is_url(text: object) -> TypeGuard[str]:
    """Return whether it is the URL of a broker or queue, not a path.

    >>> is_url("https://example.com/shop/orders"), is_url("./orders")
    (True, False)
    """
    return isinstance(text, str) and text.startswith(_SCHEMES)


def path_of(path: object) -> str:
    """Return a path as text. It was given as text, bytes or a path object.

    >>> path_of(b"./orders")
    './orders'
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise InvalidInput(f"path is {path!r}; it must be text or a path object")
    text = os.fsdecode(path)
    if not text:
        raise InvalidInput("path is empty; it must name a directory, such as ./orders")
    if "\0" in text:
        raise InvalidInput(f"path is {text!r}; a path has no NUL in it")
    return text


def is_database_url(location: str) -> bool:
    """Return whether a location is a PostgreSQL database."""
    return location.startswith(("postgresql://", "postgres://"))


def without_password(location: str) -> str:
    """Return a location to be shown: the URL of a database without its password.

    >>> without_password("postgresql://ann:secret@db1,db2/shop"), without_password("./data")
    ('postgresql://ann@db1,db2/shop', './data')
    """
    return _PASSWORD.sub("", location) if is_database_url(location) else location


def check_not_empty(name: str, location: object) -> str:
    """Return a location, which is text that is not empty.

    An empty one is often the value of a variable that is not set. The operating system would take
    it for the current directory.

    >>> check_not_empty("archive", ".")
    '.'
    """
    text = check_text(name, location)
    if not text.strip():
        raise InvalidInput(
            f"{name} is {location!r}, which is empty: give a directory or a URL; write . for the "
            f"current directory"
        )
    return text


def check_local(
    path: str,
    wanted: str = "give a path of this machine, such as ./orders",
    remote: str = "Object stores and other remote file systems are not supported.",
) -> str:
    """Return a path of this machine's file system. Refuse `memory:` and URLs, also mistyped ones.

    An error for a URL says what is `wanted`, and what to do about `remote` places.

    >>> check_local("./orders")
    './orders'
    """
    if path.startswith(MEMORY):
        raise InvalidInput(
            f"{path!r} is not a directory: {MEMORY} by itself is a queue in memory, which has no "
            f"name and no files. For a directory, write ./{path}"
        )
    if is_database_url(path):
        raise InvalidInput(
            f"{without_password(path)!r} is a database: start a broker on it with `penstock serve "
            f"--store …`, and give the broker's URL, such as http://127.0.0.1:8080"
        )
    if _SCHEME.match(path) or _URL_WITHOUT_SCHEME.match(path):
        raise InvalidInput(f"{path!r} is a URL, not a directory: {wanted}. {remote}")
    return path


def as_seconds(value: object) -> object:
    """Return a timedelta as its seconds, anything else as it is."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def as_unix_s(name: str, value: object) -> object:
    """Return a datetime as its Unix seconds, anything else as it is.

    >>> as_unix_s("until", datetime.fromisoformat("2023-11-14T22:13:20Z"))
    1700000000.0
    """
    if isinstance(value, str):
        raise InvalidInput(
            f"{name} is {value!r}; it must be a datetime with a time zone, or Unix seconds: "
            f"datetime.fromisoformat reads such text"
        )
    if not isinstance(value, datetime) or is_no_time(value):
        return value
    if value.utcoffset() is None:
        raise InvalidInput(
            f"{name} is {value!r}, which has no time zone: give one, as in datetime.now(UTC), or "
            f"use value.astimezone() if it is local time"
        )
    return value.timestamp()


def is_no_time(value: datetime) -> bool:
    """Return whether it is `NaT` of pandas: a datetime that is not equal to itself."""
    return value != value


def check_seconds(name: str, value: object, low: float, high: float) -> float:
    """Return a duration in seconds; it was given as a number or a timedelta."""
    return check_number(name, as_seconds(value), low, high)


def check_time(name: str, value: object, low: float, high: float) -> float:
    """Return a time in Unix seconds; it was given as a number or an aware datetime."""
    return check_number(name, as_unix_s(name, value), low, high)


def unix_ns(unix_s: float) -> int:
    """Return a time in Unix seconds as nanoseconds.

    A float has steps of 238 ns at present. If it is the one nearest to a whole microsecond, it is
    that microsecond: so a datetime is exact, until the year 2242.

    >>> unix_ns(1700000000), unix_ns(1700000000.000001)
    (1700000000000000000, 1700000000000001000)
    """
    if isinstance(unix_s, int):
        return unix_s * 1_000_000_000
    nearest_us = round(unix_s * 1e6)
    return nearest_us * 1000 if nearest_us / 1e6 == unix_s else round(unix_s * 1e9)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint at the nearest known name, or else a list of all.

    >>> did_you_mean("max_atempts", ["lease_s", "max_attempts"])
    'did you mean max_attempts?'
    """
    known = sorted(known)
    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
