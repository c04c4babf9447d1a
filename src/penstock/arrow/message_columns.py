"""Messages as Arrow columns, and the table `state`: messages with their state in a group.

Columns are made from the codec's buffers, without a step per row. For `state` the driver folds the
queue's logs once, as a reader beside the writer does. Each task gets what concerns its range: ready
messages as runs, and messages with a history one by one. A message in neither is done.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock import codec
from penstock.arrow.broker_files import files_of
from penstock.arrow.locations import QueueLocation
from penstock.arrow.segments import QueueInfo
from penstock.arrow.tables import BATCH_BYTES, TIME
from penstock.arrow.unpacking import unpacked_parts
from penstock.codec import Columns
from penstock.codec.layout import GZIP, ZSTD
from penstock.queue.attributes import CONTENT_TYPE, DEDUP, MAX_ATTEMPTS, TENANT, unpack_dedup
from penstock.queue.delivery import State
from penstock.queue.group import Group
from penstock.queue.queue import open_core

MICROSECOND_NS = pa.scalar(1000, pa.int64())  # typed: otherwise pyarrow tries to import pandas
_TEXT, _INT32, _INT64 = pa.string(), pa.int32(), pa.int64()
_COMPRESSIONS = {GZIP: "gzip", ZSTD: "zstd"}

# The codec's columns that a column is made of. `seq` is always decoded, to find missing ones.
_NEEDS: dict[str, tuple[str, ...]] = {
    "id": ("timestamp_ns",),
    "timestamp": ("timestamp_ns",),
    "timestamp_ns": ("timestamp_ns",),
    "priority": ("priority",),
    "key": ("key",),
    "headers": ("headers",),
    "payload": ("payload", "compression"),
    "value": ("payload", "compression"),
    "expires_at": ("expires_at_ns",),
    "expires_at_ns": ("expires_at_ns",),
    "deliver_at": ("deliver_at_ns",),
    "deliver_at_ns": ("deliver_at_ns",),
    "dedup": ("attributes",),
    "attributes": ("attributes",),
    "content_type": ("attributes",),
    "max_attempts": ("attributes",),
    "tenant": ("attributes",),
    "compression": ("compression",),
    "offset": ("offset",),
    "size": ("size",),
}


class MessageColumns:
    """The columns of messages in one segment."""

    def __init__(
        self, info: QueueInfo, segment: int, names: Sequence[str], *, unpack: bool
    ) -> None:
        self.info = info
        self.segment = segment
        self._names = names
        self._unpack = unpack
        self.needed = ["seq", *{need: None for name in names for need in _NEEDS.get(name, ())}]

    def batches(self, found: Columns) -> Iterator[list[pa.Array]]:
        """Yield the columns, in the order of `names`."""
        return map(self.arrays, self.parts(found))

    def parts(self, found: Columns) -> Iterator[Columns]:
        """Yield the rows in parts of bounded size, with payloads as they are wanted."""
        if not self._unpack or "payload" not in self.needed:
            return iter((found,))
        return unpacked_parts(
            found,
            queue=self.info.queue.key,
            max_unpacked_bytes=self.info.max_unpacked_bytes,
            max_part_bytes=BATCH_BYTES,
        )

    def arrays(self, part: Columns) -> list[pa.Array]:
        """Return the columns of a part."""
        return [_COLUMNS[name](self, part) for name in self._names]

    def ids(self, found: Columns) -> pa.Array:
        times = memoryview(found.buffers["timestamp_ns"]).cast("q")
        seqs = memoryview(found.buffers["seq"]).cast("q")
        identity, make_id = self.info.identity, codec.make_id
        ids = [make_id(at, identity, seq) for at, seq in zip(times, seqs, strict=True)]
        return pa.array(ids, _TEXT)


def constant(value: object, type_: pa.DataType, rows: int) -> pa.Array:
    """Return a column of one value."""
    return pa.nulls(rows, type_) if value is None else pa.repeat(pa.scalar(value, type_), rows)


def _is_zero(data: bytearray) -> bool:
    return codec.first_nonzero(data, 0, len(data)) < 0


def _array(
    found: Columns, name: str, type_: pa.DataType, rows: int, *values: bytearray
) -> pa.Array:
    """Return the column of some buffers; nulls if no row has a value, as is usual for options."""
    validity = found.buffers.get(f"{name}.validity")
    if validity is not None and _is_zero(validity):
        return pa.nulls(rows, type_)
    buffers = [None if validity is None else pa.py_buffer(validity), *map(pa.py_buffer, values)]
    return pa.Array.from_buffers(type_, rows, buffers)


def _fixed(found: Columns, name: str, type_: pa.DataType) -> pa.Array:
    return _array(found, name, type_, found.rows, found.buffers[name])


def _variable(found: Columns, name: str, type_: pa.DataType) -> pa.Array:
    offsets = found.buffers[f"{name}.offsets"]
    rows = len(offsets) // _INT32.byte_width - 1
    return _array(found, name, type_, rows, offsets, found.buffers[name])


def _time(found: Columns, name: str) -> pa.Array:
    """Return nanoseconds as Spark's microseconds, rounded down."""
    return pc.divide(_fixed(found, name, _INT64), MICROSECOND_NS).view(TIME)


def _map(found: Columns, name: str, keys: pa.Array, values: pa.Array) -> pa.Array:
    buffers = [None, pa.py_buffer(found.buffers[f"{name}.offsets"])]
    offsets = pa.Array.from_buffers(_INT32, found.rows + 1, buffers)
    return pa.MapArray.from_arrays(offsets, keys, values, type=pa.map_(keys.type, values.type))


def _headers(found: Columns) -> pa.Array:
    keys, values = (_variable(found, f"headers.{part}", _TEXT) for part in ("keys", "values"))
    return _map(found, "headers", keys, values)


def _attributes(found: Columns) -> pa.Array:
    tags = found.buffers["attributes.tags"]
    keys = pa.Array.from_buffers(pa.uint8(), len(tags), [None, pa.py_buffer(tags)]).cast(_INT32)
    return _map(found, "attributes", keys, _variable(found, "attributes.values", pa.binary()))


def _attribute(
    found: Columns, tag: int, read: Callable[[bytes], str | int], type_: pa.DataType
) -> pa.Array:
    if tag not in found.buffers["attributes.tags"]:
        return pa.nulls(found.rows, type_)
    rows = _attributes(found).to_pylist()
    values = [next((data for key, data in row if key == tag), None) for row in rows]
    return pa.array([None if v is None else read(v) for v in values], type_)


def _compression(found: Columns) -> pa.Array:
    numbers = found.buffers["compression"]
    if _is_zero(numbers):
        return pa.nulls(found.rows, _TEXT)
    return pa.array([_COMPRESSIONS.get(n, str(n)) if n else None for n in numbers], _TEXT)


def _dedup(data: bytes) -> str:
    return unpack_dedup(data)[0].hex()


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


_COLUMNS: dict[str, Callable[[MessageColumns, Columns], pa.Array]] = {
    "namespace": lambda it, found: constant(it.info.queue.namespace, _TEXT, found.rows),
    "queue": lambda it, found: constant(it.info.queue.name, _TEXT, found.rows),
    "seq": lambda _, found: _fixed(found, "seq", _INT64),
    "id": MessageColumns.ids,
    "timestamp": lambda _, found: _time(found, "timestamp_ns"),
    "timestamp_ns": lambda _, found: _fixed(found, "timestamp_ns", _INT64),
    "priority": lambda _, found: _fixed(found, "priority", pa.int8()),
    "key": lambda _, found: _variable(found, "key", _TEXT),
    "headers": lambda _, found: _headers(found),
    "payload": lambda _, found: _variable(found, "payload", pa.binary()),
    "value": lambda _, found: _variable(found, "payload", pa.binary()),
    "expires_at": lambda _, found: _time(found, "expires_at_ns"),
    "deliver_at": lambda _, found: _time(found, "deliver_at_ns"),
    "expires_at_ns": lambda _, found: _fixed(found, "expires_at_ns", _INT64),
    "deliver_at_ns": lambda _, found: _fixed(found, "deliver_at_ns", _INT64),
    "dedup": lambda _, found: _attribute(found, DEDUP, _dedup, _TEXT),
    "attributes": lambda _, found: _attributes(found),
    "content_type": lambda _, found: _attribute(found, CONTENT_TYPE, bytes.decode, _TEXT),
    "max_attempts": lambda _, found: _attribute(found, MAX_ATTEMPTS, _number, _INT32),
    "tenant": lambda _, found: _attribute(found, TENANT, bytes.decode, _TEXT),
    "compression": lambda _, found: _compression(found),
    "segment": lambda it, found: constant(it.segment, _INT64, found.rows),
    "offset": lambda _, found: _fixed(found, "offset", _INT64),
    "size": lambda _, found: _fixed(found, "size", _INT32),
}


# -- the table `state` -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageState:
    """The state of one message in a consumer group."""

    state: str
    attempts: int | None = 0  # None: only the events have the attempts of a done message
    reason: str | None = None
    due_ns: int = 0
    until_ns: int = 0
    holder: str | None = None
    first_failure_ns: int = 0
    last_failure_ns: int = 0


_READY, _DONE = MessageState("ready"), MessageState("done", attempts=None)
_CAN_EXPIRE = frozenset(["ready", "scheduled", "parked", "blocked"])


@dataclass(frozen=True, slots=True)
class QueueStates:
    """The states of a range of messages in a consumer group."""

    group: str
    now_ns: int
    ready: Sequence[tuple[int, int]]  # runs [first, end), rising
    others: dict[int, MessageState]  # by seq

    def within(self, first_seq: int, end_seq: int) -> "QueueStates":
        """Return the states of the seqs [first_seq, end_seq)."""
        ready = [
            (max(first, first_seq), min(end, end_seq))
            for first, end in self.ready
            if first < end_seq and end > first_seq
        ]
        others = {seq: it for seq, it in self.others.items() if first_seq <= seq < end_seq}
        return QueueStates(self.group, self.now_ns, ready, others)

    def of(self, seq: int) -> MessageState:
        state = self.others.get(seq)
        if state is not None:
            return state
        at = bisect_left(self.ready, (seq + 1,)) - 1
        return _READY if at >= 0 and seq < self.ready[at][1] else _DONE


def fold_states(queue: QueueLocation, group_name: str) -> tuple[QueueStates, int]:
    """Return the states in a group now, and the seq up to which messages were read."""
    core = open_core(
        queue.path,
        {"on_corruption": "quarantine"},
        files=files_of(queue),
        read_only=True,
        create=False,
    )
    try:
        with core.lock, core.change:
            core.catch_up()
            group = core.group(group_name)
            now_ns = core.clock.now_ns()
            group.waiting.promote(now_ns)
            ready = sorted(group.waiting.fresh_pairs())
            others = _states_of(group, now_ns)
            return QueueStates(group_name, now_ns, ready, others), core.state.ingested_upto
    finally:
        core.close()


def _states_of(group: Group, now_ns: int) -> dict[int, MessageState]:
    found: dict[int, MessageState] = {}
    for seq in group.waiting.delays:
        due_ns, _ = group.waiting.delays.get(seq) or (0, 0)
        found[seq] = MessageState("ready" if due_ns <= now_ns else "scheduled", due_ns=due_ns)
    for seq, delivery in group.deliveries.items():
        waits = delivery.state in (State.READY, State.SCHEDULED)
        ready = waits and delivery.due_ns <= now_ns
        found[seq] = MessageState(
            "ready" if ready else delivery.state.name.lower(),
            delivery.attempt,
            delivery.reason or None,
            delivery.due_ns if waits else 0,
            first_failure_ns=delivery.first_failure_ns,
            last_failure_ns=delivery.last_failure_ns,
        )
    for seq, lease in group.leases.items():
        before = found.get(seq, _READY)
        found[seq] = MessageState(
            "leased",
            lease.attempt,
            before.reason,
            0,
            lease.deadline_ns,
            lease.holder or None,
            before.first_failure_ns,
            before.last_failure_ns,
        )
    return found


class StateColumns:
    """The columns of the table `state`."""

    def __init__(
        self,
        info: QueueInfo,
        segment: int,
        names: Sequence[str],
        states: QueueStates,
        *,
        unpack: bool,
    ) -> None:
        of_messages = [name for name in names if name not in _STATE_COLUMNS]
        self._messages = MessageColumns(info, segment, of_messages, unpack=unpack)
        self._names = names
        self._states = states
        self.needed = [*dict.fromkeys([*self._messages.needed, "expires_at_ns"])]

    def batches(self, found: Columns) -> Iterator[list[pa.Array]]:
        return map(self._arrays, self._messages.parts(found))

    def _arrays(self, part: Columns) -> list[pa.Array]:
        messages = iter(self._messages.arrays(part))
        states = self._states_in(part)
        return [
            _STATE_COLUMNS[name](self._states.group, states)
            if name in _STATE_COLUMNS
            else next(messages)
            for name in self._names
        ]

    def _states_in(self, found: Columns) -> list[MessageState]:
        """Return the state of each row. A message may expire without an event in the log."""
        seqs, expires = (
            memoryview(found.buffers[name]).cast("q") for name in ("seq", "expires_at_ns")
        )
        states = []
        for seq, expires_ns in zip(seqs, expires, strict=True):
            state = self._states.of(seq)
            if 0 < expires_ns <= self._states.now_ns and state.state in _CAN_EXPIRE:
                state = MessageState("expired", state.attempts, state.reason)
            states.append(state)
        return states


def _of_states(name: str, type_: pa.DataType) -> Callable[[str, Sequence[MessageState]], Any]:
    return lambda _, states: pa.array([getattr(state, name) for state in states], type_)


def _state_times(name: str) -> Callable[[str, Sequence[MessageState]], Any]:
    return lambda _, states: pa.array(
        [getattr(state, name) // 1000 or None for state in states], _INT64
    ).view(TIME)


_STATE_COLUMNS: dict[str, Callable[[str, Sequence[MessageState]], Any]] = {
    "group": lambda group, states: pa.repeat(group, len(states)),
    "state": _of_states("state", _TEXT),
    "attempts": _of_states("attempts", _INT32),
    "reason": _of_states("reason", _TEXT),
    "due_at": _state_times("due_ns"),
    "leased_until": _state_times("until_ns"),
    "holder": _of_states("holder", _TEXT),
    "first_failure": _state_times("first_failure_ns"),
    "last_failure": _state_times("last_failure_ns"),
}
