"""Make series of rows: every step has a value, also those in which nothing changed."""

from collections.abc import Collection, Iterable, Sequence
from operator import add
from typing import NamedTuple

from penstock.broker.charts.rows import (
    AGE,
    COUNTS,
    RINGS,
    SERIES,
    STATES,
    TIMES,
    Codes,
    rows_of,
    value_of,
)

_WHOLE = frozenset((*COUNTS, *STATES, "size_bytes"))
_AT = {name: at for at, name in enumerate(SERIES)}
_READY = _AT["ready"]

Series = dict[str, list[float | None]]


class Range(NamedTuple):
    """Steps of a ring."""

    ring: int
    first: int
    steps: int

    @property
    def step_s(self) -> int:
        return RINGS[self.ring].step_s


def columns(
    asked: Range,
    rows: bytes,
    known: Collection[int],
    names: Sequence[str],
    before: bytes = b"",
) -> Series:
    """Return the series of a queue.

    `known`: steps in which some broker ran; a step that is not among them has no values. A known
    step without a row: nothing happened, and the queue held what it held before. `before`: a row of
    longer steps, for what it held before the first.
    """
    found = dict(rows_of(rows))
    earlier = [step for step in found if step < asked.first]
    last: Codes | None = found[max(earlier)] if earlier else None
    if last is None:
        last = next((codes for _, codes in rows_of(before)), None)
    passed_s = 0.0
    series: Series = {name: [] for name in names}
    for step in range(asked.first, asked.first + asked.steps):
        codes = found.get(step)
        if codes is not None:
            last, passed_s = codes, 0.0
        else:
            passed_s += asked.step_s
        for name in names:
            if codes is not None:
                value = _value(name, codes, asked.step_s)
            elif step not in known or (last is None and name not in COUNTS):
                value = None
            else:
                value = _unchanged(name, last, passed_s)
            series[name].append(value)
    return series


def _value(name: str, codes: Codes, step_s: int) -> float | None:
    value = value_of(codes[_AT[name]])
    if name in _WHOLE:
        value = float(round(value))
    if name in COUNTS:
        return value / step_s
    return value or None if name in TIMES else value


def _unchanged(name: str, last: Codes | None, passed_s: float) -> float | None:
    """Return the value of a step in which nothing happened."""
    if name in COUNTS:
        return 0.0
    if name in TIMES or last is None:
        return None
    if name == AGE:
        return value_of(last[_AT[AGE]]) + passed_s if last[_READY] else 0.0
    return float(round(value_of(last[_AT[name]])))


def overall_columns(asked: Range, brokers: Iterable[bytes], names: Sequence[str]) -> Series:
    """Return the series of all queues: the sum over the brokers; of ages and percentiles, the
    largest."""
    steps = range(asked.first, asked.first + asked.steps)
    series: Series = {name: [None] * asked.steps for name in names}
    for data in brokers:
        for step, codes in rows_of(data):
            if step not in steps:
                continue
            at = step - asked.first
            for name in names:
                value, known = _value(name, codes, asked.step_s), series[name][at]
                if known is None or value is None:
                    series[name][at] = value if known is None else known
                elif name in TIMES or name == AGE:
                    series[name][at] = max(known, value)
                else:
                    series[name][at] = add(known, value)
    return series


def thinned(series: Series, count: int, max_points: int) -> tuple[int, Series]:
    """Return how many steps make a point, and the series with at most that many points.

    Counts are averages, ages and percentiles the largest, and other values the last.
    """
    by = max(-(-count // max_points), 1)
    if by == 1:
        return 1, series
    return by, {
        name: [_point(name, values[at : at + by]) for at in range(0, count, by)]
        for name, values in series.items()
    }


def _point(name: str, values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    if not known:
        return None
    if name in COUNTS:
        return sum(known) / len(known)
    return max(known) if name in TIMES or name == AGE else known[-1]
