"""Times as they travel: RFC 3339 in UTC in answers; that, or epoch milliseconds, in requests."""

from datetime import datetime

from penstock.errors import InvalidInput

_LATEST_MS = 4_102_444_800_000  # the year 2100; what is beyond is a wrong unit


def unix_seconds(name: str, value: str | int | float) -> float:
    """A time of a request.

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
    """The same, from a query string, where a number is text too."""
    try:
        number = float(text)
    except ValueError:
        return unix_seconds(name, text)
    return unix_seconds(name, number)
