"""The times of a schedule: those of a cron expression in a time zone, or of an interval.

The library `cronsim` reads cron expressions. It keeps to the rules of Debian's cron when clocks are
changed: what runs at fixed times runs once a day, a time that is left out runs at the next minute
that exists, and what runs at every hour or minute follows the clock on the wall.

It is imported when the first cron expression is met: intervals do without it.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from penstock.errors import InvalidInput
from penstock.model import NS
from penstock.operations.scheduling import Schedule

EXTRA = "install Penstock with the extra schedules (pip install '.[schedules]' in its checkout)"
_FIELDS = 5
_FIRST_WINDOW_NS = 3600 * NS
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Times(Protocol):
    """When a schedule runs. Times are Unix nanoseconds."""

    def after(self, at_ns: int) -> int | None:
        """Return the first time after another; None if there is none."""

    def newest(self, after_ns: int, upto_ns: int, most: int) -> list[int]:
        """Return the last times in (after_ns, upto_ns], at most `most`, oldest first."""


def times_of(schedule: Schedule, anchor_ns: int) -> Times:
    """Return the times of a schedule. An interval counts from `anchor_ns`.

    Raise InvalidInput if they cannot be read, or if there are none.
    """
    if schedule.every_s is not None:
        return IntervalTimes(anchor_ns, round(schedule.every_s * NS))
    assert schedule.cron is not None
    return CronTimes(schedule.cron, schedule.time_zone or "UTC")


def next_times(times: Times, after_ns: int, count: int) -> list[int]:
    """Return the next times, at most `count`."""
    found: list[int] = []
    while len(found) < count and (at_ns := times.after(after_ns)) is not None:
        found.append(at_ns)
        after_ns = at_ns
    return found


class IntervalTimes:
    """Times at a fixed interval after the anchor.

    >>> IntervalTimes(100, 10).newest(115, 150, 3)
    [130, 140, 150]
    """

    def __init__(self, anchor_ns: int, every_ns: int) -> None:
        self._anchor_ns = anchor_ns
        self._every_ns = every_ns

    def after(self, at_ns: int) -> int | None:
        passed = max(at_ns - self._anchor_ns, 0) // self._every_ns
        return self._anchor_ns + (passed + 1) * self._every_ns

    def newest(self, after_ns: int, upto_ns: int, most: int) -> list[int]:
        last = max(upto_ns - self._anchor_ns, 0) // self._every_ns
        first = max(max(after_ns - self._anchor_ns, 0) // self._every_ns, last - most)
        return [self._anchor_ns + n * self._every_ns for n in range(first + 1, last + 1)]


class CronTimes:
    """The times of a cron expression in a time zone."""

    def __init__(self, cron: str, time_zone: str) -> None:
        self._cron = _ALIASES.get(cron.strip().lower(), cron)
        self._zone = zone_of(time_zone)
        self._make, self._errors = _cronsim()
        if len(self._cron.split()) != _FIELDS:
            raise InvalidInput(
                f"cron is {cron!r}; it must have five fields (minute, hour, day of month, month, "
                f"day of week) or be one of {', '.join(_ALIASES)}. For seconds use every_s."
            )
        self._going_on: tuple[int, Iterator[datetime]] | None = None
        try:
            is_empty = next(self._from(0), None) is None
        except self._errors as error:
            raise InvalidInput(f"cron is {cron!r}, which cannot be read: {error}") from None
        if is_empty:
            raise InvalidInput(f"cron is {cron!r}, which is at no time in 50 years")

    def after(self, at_ns: int) -> int | None:
        # Going on is several times faster than reading the expression again.
        known = self._going_on
        times = known[1] if known is not None and known[0] == at_ns else self._from(at_ns)
        for found in times:
            found_ns = int(found.timestamp()) * NS
            # In the hour that happens twice, a search begins with the first of the two.
            if found_ns > at_ns:
                self._going_on = found_ns, times
                return found_ns
        return None

    def newest(self, after_ns: int, upto_ns: int, most: int) -> list[int]:
        # The number of times is unknown, so look back further and further.
        window_ns = _FIRST_WINDOW_NS
        while True:
            start_ns = max(after_ns, upto_ns - window_ns)
            found = self._between(start_ns, upto_ns)
            if len(found) >= most or start_ns == after_ns:
                return found[-most:]
            window_ns *= 2 if found else 8

    def _between(self, after_ns: int, upto_ns: int) -> list[int]:
        found = []
        at_ns = self.after(after_ns)
        while at_ns is not None and at_ns <= upto_ns:
            found.append(at_ns)
            at_ns = self.after(at_ns)
        return found

    def _from(self, at_ns: int) -> Iterator[datetime]:
        try:
            start = datetime.fromtimestamp(at_ns // NS, self._zone)
            made: Iterator[datetime] = self._make(self._cron, start)
            yield from made
        except OverflowError:  # the year 10000
            return


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name in the IANA database. Raise InvalidInput if it has none."""
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise InvalidInput(
            f"time_zone is {name!r}, which is not in the time zone database: it must be a name "
            f"such as Europe/Berlin. If this machine has no such database: {EXTRA}"
        ) from None


def _cronsim() -> tuple[Any, tuple[type[Exception], ...]]:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise InvalidInput(
            f"a schedule with a cron expression needs the package 'cronsim': {EXTRA}. "
            f"Schedules with every_s do not."
        ) from None
    # Some expressions that it should refuse fail an assertion instead.
    return CronSim, (CronSimError, AssertionError, ValueError)
