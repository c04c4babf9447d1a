"""The times of cron expressions and intervals, compared with a search through every minute."""

import itertools
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.model import NS
from penstock.queue.schedule_times import CronTimes, IntervalTimes, Times, next_times

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
ZONES = (BERLIN, NEW_YORK, LORD_HOWE, "UTC", "Asia/Kolkata", "America/Santiago")
MINUTE = timedelta(minutes=1)


def ns(at: datetime) -> int:
    return round(at.timestamp()) * NS


def between(times: Times, start: datetime, end: datetime) -> list[datetime]:
    """Return the times from start to end, in UTC."""
    found = []
    at_ns = times.after(ns(start) - 1)
    while at_ns is not None and at_ns < ns(end):
        found.append(datetime.fromtimestamp(at_ns / NS, UTC))
        at_ns = times.after(at_ns)
    return found


def at_fixed_times(zone: str, start: datetime, end: datetime, clock: list[time]) -> list[datetime]:
    """Return once a day: each time on the wall, or the next minute that exists."""
    found = set()
    for day in itertools.count():
        local: date = start.astimezone(ZoneInfo(zone)).date() + timedelta(days=day - 1)
        for at in clock:
            naive = datetime.combine(local, at)
            while True:
                aware = naive.replace(tzinfo=ZoneInfo(zone))
                utc = aware.astimezone(UTC)
                if utc.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == naive:
                    break
                naive += MINUTE
            found.add(utc)
        if local > end.date() + timedelta(days=1):
            return sorted(at for at in found if start <= at < end)
    raise AssertionError


def every_minute(zone: str, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    at = start
    while at < end:
        yield at, at.astimezone(ZoneInfo(zone))
        at += MINUTE


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("clock", ["02:30", "00:00", "02:00", "23:45", "01:45", "03:00"])
def test_what_runs_at_a_fixed_time_runs_once_a_day_all_year(zone: str, clock: str) -> None:
    at = time.fromisoformat(clock)
    start, end = datetime(2027, 12, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)
    found = between(CronTimes(f"{at.minute} {at.hour} * * *", zone), start, end)
    assert found == at_fixed_times(zone, start, end, [at])
    days = [one.astimezone(ZoneInfo(zone)).date() for one in found]
    assert len(set(days)) == len(days), "twice on a day"
    assert all(b - a == timedelta(days=1) for a, b in itertools.pairwise(days)), "a day without"


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE])
def test_times_on_the_days_of_a_change(zone: str) -> None:
    """2026 in each zone: in spring and autumn, with several times in the hour that changes."""
    times = CronTimes("0,15,30,45 1,2,3 * * *", zone)
    clock = [time(hour, minute) for hour in (1, 2, 3) for minute in (0, 15, 30, 45)]
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    assert between(times, start, end) == at_fixed_times(zone, start, end, clock)


CHANGES = {
    BERLIN: [datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)],
    NEW_YORK: [datetime(2026, 3, 7, tzinfo=UTC), datetime(2026, 10, 31, tzinfo=UTC)],
    LORD_HOWE: [datetime(2026, 4, 3, tzinfo=UTC), datetime(2026, 10, 2, tzinfo=UTC)],
}


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("step", [5, 15, 20])
def test_what_runs_all_the_time_follows_the_clock_on_the_wall(zone: str, step: int) -> None:
    for start in CHANGES[zone]:
        end = start + timedelta(days=3)
        found = between(CronTimes(f"*/{step} * * * *", zone), start, end)
        assert found == [
            at for at, local in every_minute(zone, start, end) if local.minute % step == 0
        ]


@pytest.mark.parametrize("zone", CHANGES)
def test_what_runs_hourly_runs_at_each_full_hour_of_the_wall(zone: str) -> None:
    for start in CHANGES[zone]:
        end = start + timedelta(days=3)
        found = between(CronTimes("@hourly", zone), start, end)
        assert found == [at for at, local in every_minute(zone, start, end) if local.minute == 0]


def test_the_leap_day() -> None:
    start, end = datetime(2025, 1, 1, tzinfo=UTC), datetime(2037, 1, 1, tzinfo=UTC)
    found = between(CronTimes("0 6 29 2 *", BERLIN), start, end)
    assert [at.year for at in found] == [2028, 2032, 2036]


@given(
    st.sampled_from(ZONES),
    st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 0 1 * *", "15 1-3 * * sun", "0 */2 * * *"]),
    st.integers(1_750_000_000, 1_850_000_000),
    st.integers(0, 40 * 86400),
    st.integers(1, 50),
)
def test_times_are_the_same_wherever_a_search_begins(
    zone: str, cron: str, after_s: int, span_s: int, most: int
) -> None:
    times = CronTimes(cron, zone)
    after_ns, upto_ns = after_s * NS, (after_s + span_s) * NS
    found = times.newest(after_ns, upto_ns, most)
    expected: list[int] = []
    at_ns = times.after(after_ns)
    while at_ns is not None and at_ns <= upto_ns:
        expected.append(at_ns)
        at_ns = CronTimes(cron, zone).after(at_ns)
    assert found == expected[-most:]


@given(
    st.integers(0, 1000), st.integers(1, 50), st.integers(0, 2000), st.integers(0, 900), st.data()
)
def test_an_interval_has_the_same_phase_for_ever(
    anchor: int, every: int, after: int, span: int, data: st.DataObject
) -> None:
    times, most = IntervalTimes(anchor, every), data.draw(st.integers(1, 20))
    expected = [
        anchor + n * every
        for n in range(1, 3000 // every + 2)
        if after < anchor + n * every <= after + span
    ]
    assert times.newest(after, after + span, most) == expected[-most:]
    assert next_times(times, after, len(expected)) == expected or after < anchor


def test_a_time_in_the_hour_that_happens_twice_is_not_found_before_the_search_begins() -> None:
    # The second 02:40 in Berlin: the 02:45 of that day was an hour earlier.
    start = datetime(2026, 10, 25, 1, 40, tzinfo=UTC)
    assert start.astimezone(ZoneInfo(BERLIN)).strftime("%H:%M %z") == "02:40 +0100"
    found_ns = CronTimes("45 2 * * *", BERLIN).after(ns(start))
    assert found_ns == ns(datetime(2026, 10, 26, 1, 45, tzinfo=UTC))


BAD = (
    *("", "x", "* * * *", "0 30 2 * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "0 0 30 2 *"),
    *("* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *", "@never", "1,,2 * * * *"),
    *("a * * * *", "0 0 31 2,4 * *", "* * * * mon#6", "L * * * *", "1" * 200),
)


@pytest.mark.parametrize("cron", BAD)
def test_a_bad_cron_expression_is_refused_with_its_text(cron: str) -> None:
    with pytest.raises(InvalidInput, match="cron is "):
        CronTimes(cron, "UTC")


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "Europe", "../../etc/passwd", "/etc/passwd", "\0"]
)
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidInput, match="time zone database"):
        CronTimes("0 0 * * *", zone)


def test_the_year_10000_has_no_times() -> None:
    assert CronTimes("0 0 * * *", "UTC").after(253_402_300_799 * NS) is None
