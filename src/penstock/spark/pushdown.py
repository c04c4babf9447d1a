"""Filters that Spark hands down: what they say about seqs, times and queues, to read less.

They only narrow what is read. Spark applies every filter again to the rows it gets, so a bound here
may be too wide, never too narrow.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.spark.options import Table

_LARGEST = (1 << 63) - 1
_MICROSECOND_NS = 1000


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a row must have to be wanted; ends are not included."""

    first_seq: int = 0
    end_seq: int = _LARGEST
    from_ns: int = 0
    to_ns: int = _LARGEST
    namespaces: frozenset[str] | None = None
    queues: frozenset[str] | None = None

    def narrowed(self, **to: Any) -> "Bounds":
        """Within other bounds as well."""
        return replace(
            self,
            first_seq=max(self.first_seq, to.get("first_seq", 0)),
            end_seq=min(self.end_seq, to.get("end_seq", _LARGEST)),
            from_ns=max(self.from_ns, to.get("from_ns", 0)),
            to_ns=min(self.to_ns, to.get("to_ns", _LARGEST)),
            namespaces=_both(self.namespaces, to.get("namespaces")),
            queues=_both(self.queues, to.get("queues")),
        )

    @property
    def is_empty(self) -> bool:
        return self.first_seq >= self.end_seq or self.from_ns >= self.to_ns


def _both(some: frozenset[str] | None, others: frozenset[str] | None) -> frozenset[str] | None:
    if some is None or others is None:
        return others if some is None else some
    return some & others


def bounds_of(filters: Iterable[Filter], table: Table) -> Bounds:
    """What all of the filters together ask for; those that say nothing about it are passed over."""
    # Of an event's messages the order says nothing: there only the event's own number is sorted.
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
    """Columns have microseconds, cut off: an end at one includes all of its nanoseconds."""
    match one:
        case EqualTo(value=datetime() as at) | EqualNullSafe(value=datetime() as at):
            start = _ns(at)
            return bounds if start is None else bounds.narrowed(from_ns=start, to_ns=start + 1000)
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
    """None for a time that does not say where: then nothing is left out."""
    if at.tzinfo is None:
        return None
    return max(round(at.timestamp() * 1_000_000), 0) * _MICROSECOND_NS
