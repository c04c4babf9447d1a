"""Turn the filters that Spark pushes down into bounds on seqs, times and queues.

Spark applies every filter again to the rows it gets. So a bound may be too wide, never too narrow.
"""

from collections.abc import Iterable
from datetime import datetime

from penstock.arrow.selection import Bounds, Table
from penstock.spark.versions import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_MICROSECOND_NS = 1000


def bounds_of(filters: Iterable[Filter], table: Table) -> Bounds:
    """Return the bounds that all filters together set. Other filters are ignored."""
    # The event log is sorted by the number of the event, not by that of the message.
    seq_column = "event_seq" if table == "events" else "seq"
    bounds = Bounds()
    for one in filters:
        column = getattr(one, "attribute", None)
        if column == (seq_column,):
            bounds = _narrow_seq(bounds, one)
        elif column == ("timestamp",):
            bounds = _narrow_time(bounds, one)
        elif column in (("namespace",), ("queue",)):
            bounds = _narrow_name(bounds, one, f"{column[0]}s")
    return bounds


def _narrow_seq(bounds: Bounds, one: Filter) -> Bounds:
    match one:
        case EqualTo(value=int(seq)) | EqualNullSafe(value=int(seq)):
            return bounds.narrowed(first_seq=seq, end_seq=seq + 1)
        case GreaterThan(value=int(seq)):
            return bounds.narrowed(first_seq=seq + 1)
        case GreaterThanOrEqual(value=int(seq)):
            return bounds.narrowed(first_seq=seq)
        case LessThan(value=int(seq)):
            return bounds.narrowed(end_seq=seq)
        case LessThanOrEqual(value=int(seq)):
            return bounds.narrowed(end_seq=seq + 1)
        case In(value=values) if values and all(isinstance(seq, int) for seq in values):
            return bounds.narrowed(first_seq=min(values), end_seq=max(values) + 1)
    return bounds


def _narrow_time(bounds: Bounds, one: Filter) -> Bounds:
    """Columns have microseconds, rounded down: an end includes all nanoseconds of one."""
    match one:
        case EqualTo(value=datetime() as at) | EqualNullSafe(value=datetime() as at):
            start = _ns(at)
            return (
                bounds
                if start is None
                else bounds.narrowed(from_ns=start, to_ns=start + _MICROSECOND_NS)
            )
        case GreaterThan(value=datetime() as at) | GreaterThanOrEqual(value=datetime() as at):
            start = _ns(at)
            return bounds if start is None else bounds.narrowed(from_ns=start)
        case LessThan(value=datetime() as at) | LessThanOrEqual(value=datetime() as at):
            end = _ns(at)
            return bounds if end is None else bounds.narrowed(to_ns=end + _MICROSECOND_NS)
    return bounds


def _narrow_name(bounds: Bounds, one: Filter, which: str) -> Bounds:
    match one:
        case EqualTo(value=str(name)) | EqualNullSafe(value=str(name)):
            return bounds.narrowed(**{which: frozenset([name])})
        case In(value=names) if names and all(isinstance(name, str) for name in names):
            return bounds.narrowed(**{which: frozenset(names)})
    return bounds


def _ns(at: datetime) -> int | None:
    """Return None for a time without a time zone, which sets no bound."""
    if at.tzinfo is None:
        return None
    return max(round(at.timestamp() * 1_000_000), 0) * _MICROSECOND_NS
