"""Checks of what callers give: one wording, one exception."""

import math
import re

from penstock.errors import InvalidInput

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def check_number(name: str, value: object, low: float, high: float) -> float:
    """A finite number between two others, both included; not a bool, not text."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not low <= value <= high
    ):
        raise InvalidInput(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}")
    return value


def check_whole(name: str, value: object, low: int, high: int) -> int:
    """A whole number between two others, both included."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number from {low} to {high}")
    return value


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def check_local(path: str) -> str:
    """Return a path of this machine's file system. Refuse a URL, which would name a directory.

    >>> check_local("./orders")
    './orders'
    """
    if _SCHEME.match(path):
        raise InvalidInput(
            f"{path!r} is a URL, not a directory: give a path of this machine, such as ./orders. "
            f"Object stores and other remote file systems are not supported."
        )
    return path
