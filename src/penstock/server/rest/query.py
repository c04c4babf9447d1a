"""Strict query strings: unknown and repeated parameters are refused.

Times of requests are RFC 3339, or milliseconds since 1970.
"""

import math
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar
from urllib.parse import parse_qsl

from penstock.checking import check_choice, check_number, check_whole
from penstock.errors import InvalidInput

_N = TypeVar("_N", int, float)
_MOST = 50
_LATEST_MS = 4_102_444_800_000  # the year 2100; a later time has a wrong unit


class Query:
    """The parameters of one request. `known` are the parameters of its route."""

    def __init__(self, raw: bytes, known: frozenset[str]) -> None:
        self._values: dict[str, str] = {}
        for name, value in _pairs(raw):
            if name not in known:
                raise InvalidInput(
                    f"there is no parameter {name!r}; "
                    f"the parameters are {', '.join(sorted(known)) or 'none'}"
                )
            if name in self._values:
                raise InvalidInput(f"the parameter {name} is given twice")
            self._values[name] = value

    def given(self) -> list[str]:
        """Return the names of the parameters that were given."""
        return list(self._values)

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self._values.get(name)
        if value is not None:
            check_choice(name, value, choices)
        return value

    def flag(self, name: str) -> bool:
        return self.choice(name, ("true", "false")) == "true"

    def number(self, name: str) -> float | None:
        """Return a number. The broker checks its range."""
        value = self._read(name, float)
        return None if value is None else check_number(name, value, -math.inf, math.inf)

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self._read(name, int)
        return None if value is None else check_whole(name, value, low, high)

    def time_s(self, name: str) -> float | None:
        value = self._values.get(name)
        return None if value is None else unix_seconds_of_query(name, value)

    def _read(self, name: str, kind: Callable[[str], _N]) -> _N | None:
        value = self._values.get(name)
        if value is None:
            return None
        try:
            if not value.isascii() or len(value) > 32 or "_" in value:
                raise ValueError
            return kind(value)
        except ValueError:
            raise InvalidInput(f"{name} is {value!r}; it must be a number") from None


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        text = raw.decode("ascii")
        if "%" not in text and "+" not in text and text.count("&") < _MOST:
            # Nothing to decode: a fifth of the time.
            parts = [part.partition("=") for part in text.split("&") if part]
            return [(name, value) for name, _, value in parts]
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST)
    except UnicodeDecodeError:
        raise InvalidInput("the query string is not UTF-8, percent-encoded") from None
    except ValueError:
        raise InvalidInput(f"the query string has more than {_MOST} parameters") from None


NO_QUERY = Query(b"", frozenset())
# Short query strings are sent again and again. A query is not changed once it is made.
_queries: dict[tuple[bytes, frozenset[str]], Query] = {}
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 256, 64


def query_of(raw: bytes, known: frozenset[str]) -> Query:
    """Return the parameters of a request; see `Query`."""
    found = _queries.get((raw, known))
    if found is None:
        found = Query(raw, known)
        if len(raw) <= _LONGEST_REMEMBERED:
            if len(_queries) >= _MOST_REMEMBERED:
                _queries.clear()
            _queries[raw, known] = found
    return found


def unix_seconds(name: str, value: str | int | float) -> float:
    """Return a time of a request as Unix seconds.

    >>> unix_seconds("deliver_at", "2023-11-14T22:13:20Z") == unix_seconds("deliver_at", 1.7e12)
    True
    """
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None or "T" not in value.upper():
            raise InvalidInput(
                f"{name} is {value!r}; it must be a time like 2030-01-31T12:00:00Z, "
                f"or milliseconds since 1970"
            )
        return time.timestamp()
    if isinstance(value, bool) or not 0 <= value <= _LATEST_MS:
        raise InvalidInput(
            f"{name} is {value!r}; milliseconds since 1970 are from 0 to {_LATEST_MS}"
        )
    return value / 1000


def unix_seconds_of_query(name: str, text: str) -> float:
    """Return a time of a query string, where a number is text, as Unix seconds."""
    try:
        number = float(text)
    except ValueError:
        return unix_seconds(name, text)
    return unix_seconds(name, number)
