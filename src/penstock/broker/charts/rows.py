"""Rows of chart history: one row is one step of one queue, in 40 bytes.

Each value is a code of 16 bits on a logarithmic scale, exact to 0.04 %: whole numbers up to 1,000
are exact. So a queue that is always busy needs 70 KB for the whole week, and a queue in which
nothing happens needs nothing: a step is only written if something changed.
"""

import struct
from collections.abc import Iterator, Sequence
from math import log2
from typing import NamedTuple

COUNTS = ("published", "delivered", "acked", "failed", "dead_lettered")  # in the step
STATES = ("ready", "scheduled", "leased", "parked", "dead")  # at its end, in all groups
AGE, SIZE = "oldest_age_s", "size_bytes"
TIMES = ("wait_p50_s", "wait_p95_s", "wait_p99_s", "work_p50_s", "work_p95_s", "work_p99_s")
SERIES = (*COUNTS, *STATES, AGE, SIZE, *TIMES)

N_COUNTS, N_LEVELS = len(COUNTS), len(STATES) + 2
AGE_AT = SERIES.index(AGE)
_ROW = struct.Struct(f"<I{len(SERIES)}H")
ROW_BYTES = _ROW.size
_PER_DOUBLING = 936
_DOUBLINGS_BELOW_1 = 20  # the smallest value is 2^-20, a microsecond
_MAX_CODE = 0xFFFF

Codes = tuple[int, ...]


class RingKind(NamedTuple):
    """How long steps of a length are kept. Saved in six parts, so that a save writes little."""

    name: str
    step_s: int
    steps: int

    @property
    def part_steps(self) -> int:
        return self.steps // 6

    @property
    def parts(self) -> int:
        """Return how many documents there are: of the window, of now, and one to spare."""
        return 8


RINGS = (
    RingKind("10s", 10, 360),  # an hour
    RingKind("2m", 120, 720),  # a day
    RingKind("15m", 900, 672),  # a week
)


def code_of(value: float) -> int:
    """Return the code of a value.

    >>> [round(value_of(code_of(n)), 1) for n in (0, 1, 42, 0.5)]
    [0.0, 1.0, 42.0, 0.5]
    """
    if value <= 0:
        return 0
    code = round((log2(value) + _DOUBLINGS_BELOW_1) * _PER_DOUBLING) + 1
    return 1 if code < 1 else min(code, _MAX_CODE)


def value_of(code: int) -> float:
    """Return the value of a code."""
    return 2.0 ** ((code - 1) / _PER_DOUBLING - _DOUBLINGS_BELOW_1) if code else 0.0


class Rows:
    """The rows of one ring of one queue, by rising step."""

    __slots__ = ("_capacity", "_data")

    def __init__(self, capacity: int, data: bytes = b"") -> None:
        self._capacity = capacity
        self._data = bytearray(data)

    def __len__(self) -> int:
        return len(self._data) // ROW_BYTES

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def clear(self) -> None:
        self._data.clear()

    @property
    def last_step(self) -> int:
        """Return the last step; -1 if there is none."""
        return _step_at(self._data, len(self._data) - ROW_BYTES) if self._data else -1

    def add(self, step: int, codes: Sequence[int]) -> None:
        """Add a row. One of the same step is replaced by the larger of both, value by value.

        Two brokers may record the same step: both if they share a process, or one after the other
        if the queue changed its owner. To add a row twice makes no difference.
        """
        last = self.last_step
        if step > last:
            self._data += _ROW.pack(step, *codes)
            excess = len(self) - self._capacity
            if excess > 0:
                del self._data[: excess * ROW_BYTES]
        elif step == last:
            old = _ROW.unpack_from(self._data, len(self._data) - ROW_BYTES)[1:]
            larger = map(max, old, codes)
            self._data[-ROW_BYTES:] = _ROW.pack(step, *larger)
        else:
            self.merge(_ROW.pack(step, *codes))

    def merge(self, data: bytes) -> None:
        """Add the rows of another broker, or of an earlier life."""
        self._data[:] = joined(self._data, data)[-self._capacity * ROW_BYTES :]

    def since(self, step: int) -> bytes:
        """Return the rows from a step on."""
        at = len(self._data)
        while at and _step_at(self._data, at - ROW_BYTES) >= step:
            at -= ROW_BYTES
        return bytes(self._data[at:])


def joined(old: bytes | bytearray, new: bytes) -> bytes:
    """Return the rows of both; of two of the same step the larger, value by value."""
    if not new or not old or _step_at(old, len(old) - ROW_BYTES) < _step_at(new, 0):
        return bytes(old) + new
    found = dict(rows_of(old))
    for step, codes in rows_of(new):
        known = found.get(step)
        found[step] = codes if known is None else tuple(map(max, known, codes))
    return b"".join([_ROW.pack(step, *found[step]) for step in sorted(found)])


def is_valid(data: object) -> bool:
    """Return whether bytes of a document can be rows."""
    if not isinstance(data, bytes) or len(data) % ROW_BYTES:
        return False
    steps = [_step_at(data, at) for at in range(0, len(data), ROW_BYTES)]
    return steps == sorted(set(steps))


def _step_at(data: bytes | bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def rows_of(data: bytes | bytearray) -> Iterator[tuple[int, Codes]]:
    """Yield the steps and the codes of rows."""
    for step, *codes in _ROW.iter_unpack(bytes(data)):
        yield step, tuple(codes)
