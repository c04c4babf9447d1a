"""Events as Arrow columns: one row for each message of an event.

Nearly every event concerns one run of messages. The fields of such bodies have fixed offsets, which
come from the layout in `queue.events`, and are taken for all rows at once. Other bodies are decoded
one by one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.message_columns import MICROSECOND_NS, constant
from penstock.arrow.segments import QueueInfo
from penstock.arrow.tables import TIME
from penstock.codec import Columns
from penstock.codec.layout import EVENT_OF_ONE_BYTES, EVENT_OF_ONE_FORMAT
from penstock.queue.events import ALL_GROUPS, EventType, decode, offsets_in_one

_Numbers = npt.NDArray[np.int64]
_ZERO = pa.scalar(0, pa.int64())  # typed: otherwise pyarrow tries to import pandas
_CODES = zip(("group", "attempt", "runs", "first", "n"), EVENT_OF_ONE_FORMAT[1:], strict=True)
_HEAD = np.dtype([(name, f"<{code}") for name, code in _CODES])
_BY_NUMBER = {int(kind): kind.name.lower() for kind in EventType}
_NAMES = pa.array([_BY_NUMBER.get(number) for number in range(256)], pa.string())
# Offset of a field in a body with one run, by event type.
_REASON, _HOLDER = offsets_in_one("reason"), offsets_in_one("holder")
_RETRY_AT, _DEADLINE = offsets_in_one("retry_at_ns"), offsets_in_one("deadline_ns")
_TARGET = offsets_in_one("target_seq")

_NEEDED = ("seq", "timestamp_ns", "type", "payload", "offset")


class EventColumns:
    """The columns of events in one segment."""

    def __init__(
        self, info: QueueInfo, segment: int, names: Sequence[str], groups: Mapping[int, str]
    ) -> None:
        self.info = info
        self.segment = segment
        self.groups = groups
        self._names = names
        self.needed = [name for name in _NEEDED if name != "offset" or "offset" in names]

    def batches(self, found: Columns) -> Iterator[list[pa.Array]]:
        """Yield the columns, in the order of `names`. There may be more rows than entries."""
        rows = _Rows(found, self)
        yield [_COLUMNS[name](rows) for name in self._names]


class _Rows:
    """The rows of some entries: the entry of each row, and the fields of each body's head."""

    def __init__(self, found: Columns, of: EventColumns) -> None:
        self.of = of
        self._found = found
        self._types = np.frombuffer(found.buffers["type"], np.uint8)
        self._offsets = np.frombuffer(found.buffers["payload.offsets"], np.int32)
        # Padded, so that a head or number can be taken at the end of the last body.
        padded = bytes(found.buffers["payload"]) + bytes(EVENT_OF_ONE_BYTES)
        self._data = np.frombuffer(padded, np.uint8)
        self._body = pa.Array.from_buffers(
            pa.binary(),
            found.rows,
            [
                None,
                pa.py_buffer(found.buffers["payload.offsets"]),
                pa.py_buffer(found.buffers["payload"]),
            ],
        )
        heads = self._heads()
        self.single = heads["runs"] == 1
        counts = np.where(self.single, heads["n"], 1).astype(np.int64)
        first = heads["first"].astype(np.int64)
        self._odd = self._decode_odd()
        for entry, event in self._odd.items():
            counts[entry] = max(sum(count for _, count in event.runs), 1)
        self.entry: _Numbers = np.repeat(np.arange(found.rows, dtype=np.int64), counts)
        self.count = len(self.entry)
        before = np.cumsum(counts) - counts
        self.seqs: _Numbers = first[self.entry] + np.arange(self.count) - before[self.entry]
        self.has_seq = np.ones(self.count, np.bool_)
        self.groups = heads["group"].astype(np.int64)
        self.attempts = heads["attempt"].astype(np.int32)
        for entry, event in self._odd.items():
            at = int(before[entry])
            seqs = list(event.seqs)
            self.has_seq[at : at + int(counts[entry])] = bool(seqs)
            self.seqs[at : at + len(seqs)] = seqs

    def _heads(self) -> npt.NDArray[Any]:
        """Return the head of every body as fields. A shorter body counts as one without runs."""
        heads = self._take(self._offsets[:-1], EVENT_OF_ONE_BYTES).view(_HEAD).reshape(-1)
        short = np.diff(self._offsets) < EVENT_OF_ONE_BYTES
        if short.any():
            heads["runs"] = np.where(short, 0, heads["runs"])
        return heads

    def _take(self, starts: npt.NDArray[Any], width: int) -> npt.NDArray[np.uint8]:
        """Return `width` bytes from each of the offsets on."""
        windows = np.lib.stride_tricks.sliding_window_view(self._data, width)
        return np.ascontiguousarray(windows[starts])

    def _decode_odd(self) -> dict[int, Any]:
        odd = np.flatnonzero(~self.single)
        bodies = self._body.take(pa.array(odd)).to_pylist()
        return {
            int(at): decode(int(self._types[at]), body, timestamp_ns=0, event_seq=0)
            for at, body in zip(odd, bodies, strict=True)
        }

    # -- columns -----------------------------------------------------------------------------------

    def per_entry(self, values: pa.Array) -> pa.Array:
        """Repeat the value of each entry for each of its rows."""
        if self.count == self._found.rows:
            return values
        return values.take(pa.array(self.entry))

    def number(self, name: str) -> pa.Array:
        return self.per_entry(pa.array(np.frombuffer(self._found.buffers[name], np.int64)))

    def time(self, name: str) -> pa.Array:
        return pc.divide(self.number(name), MICROSECOND_NS).view(TIME)

    def event(self) -> pa.Array:
        return self.per_entry(_NAMES.take(pa.array(self._types)))

    def group(self) -> pa.Array:
        numbers, where = np.unique(self.groups, return_inverse=True)
        names = [None if n == ALL_GROUPS else self.of.groups.get(int(n), f"#{n}") for n in numbers]
        return self.per_entry(pa.array(names, pa.string()).take(pa.array(where.reshape(-1))))

    def text(self, offsets: Mapping[EventType, int], field: str) -> pa.Array:
        """Return the text at the end of the bodies of some types; null if it is empty."""
        texts = pa.nulls(self._found.rows, pa.string())
        for type_, start in offsets.items():
            mask = (self._types == type_) & self.single
            if not mask.any() or (np.diff(self._offsets)[mask] == start).all():
                continue  # no such events, or all texts are empty
            bodies = self._body.filter(pa.array(mask)).to_pylist()
            found = [body[start:].decode(errors="replace") or None for body in bodies]
            texts = pc.replace_with_mask(texts, pa.array(mask), pa.array(found, pa.string()))
        return self.per_entry(self._with_odd(texts, offsets, field))

    def integer(self, offsets: Mapping[EventType, int], field: str) -> pa.Array:
        """Return the number in the bodies of some types; null if it is 0."""
        numbers = pa.nulls(self._found.rows, pa.int64())
        for type_, start in offsets.items():
            mask = (self._types == type_) & self.single
            if mask.any():
                starts = self._offsets[:-1][mask] + start
                values = pa.array(self._take(starts, 8).view(np.int64).reshape(-1))
                numbers = pc.replace_with_mask(numbers, pa.array(mask), values)
        numbers = self._with_odd(numbers, offsets, field)
        numbers = pc.if_else(pc.equal(numbers, _ZERO), pa.scalar(None, pa.int64()), numbers)
        return self.per_entry(numbers)

    def moment(self, offsets: Mapping[EventType, int], field: str) -> pa.Array:
        return pc.divide(self.integer(offsets, field), MICROSECOND_NS).view(TIME)

    def _with_odd(self, values: pa.Array, offsets: Mapping[EventType, int], field: str) -> pa.Array:
        """Add the field of the bodies that were decoded one by one."""
        if not self._odd:
            return values
        odd = [
            (getattr(event, field) or None) if event.type in offsets else None
            for event in self._odd.values()
        ]
        return pc.replace_with_mask(values, pa.array(~self.single), pa.array(odd, values.type))

    def seq(self) -> pa.Array:
        return pa.array(self.seqs, mask=None if self.has_seq.all() else ~self.has_seq)


_COLUMNS: dict[str, Callable[[_Rows], pa.Array]] = {
    "namespace": lambda rows: constant(rows.of.info.queue.namespace, pa.string(), rows.count),
    "queue": lambda rows: constant(rows.of.info.queue.name, pa.string(), rows.count),
    "event_seq": lambda rows: rows.number("seq"),
    "event": _Rows.event,
    "group": _Rows.group,
    "seq": _Rows.seq,
    "timestamp": lambda rows: rows.time("timestamp_ns"),
    "timestamp_ns": lambda rows: rows.number("timestamp_ns"),
    "attempt": lambda rows: rows.per_entry(pa.array(rows.attempts)),
    "reason": lambda rows: rows.text(_REASON, "reason"),
    "holder": lambda rows: rows.text(_HOLDER, "holder"),
    "retry_at": lambda rows: rows.moment(_RETRY_AT, "retry_at_ns"),
    "deadline": lambda rows: rows.moment(_DEADLINE, "deadline_ns"),
    "target_seq": lambda rows: rows.integer(_TARGET, "target_seq"),
    "segment": lambda rows: constant(rows.of.segment, pa.int64(), rows.count),
    "offset": lambda rows: rows.number("offset"),
}
