"""The state as bytes and back. The same state always gives the same bytes.

A header of JSON (counts, names), then the bulk as packed arrays, each with its length.
"""

import json
import struct
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from penstock.errors import BadEntry, NewerVersion
from penstock.queue.delays import Delays
from penstock.queue.events import EventType
from penstock.queue.flight import Flight, Lease, State
from penstock.queue.group import Group
from penstock.queue.state import QueueState

_VERSION = 1
_LENGTH = struct.Struct("<Q")
_FLIGHT = struct.Struct("<QBBQIQBQQB")
_DEDUP = struct.Struct("<32sQQQ")


def dump_state(state: QueueState) -> bytes:
    """The state, whole."""
    return freeze_state(state).done()


def freeze_state(state: QueueState) -> "Frozen":
    """The state as it is now. To make bytes of it takes longer, and may be done later."""
    writer = Frozen()
    groups = [state.groups[number] for number in sorted(state.groups)]
    writer.json(
        {
            "version": _VERSION,
            "ingested_upto": state.ingested_upto,
            "next_group": state.next_group,
            "paused": state.paused,
            "dedup_evicted": state.dedup.evicted,
            "deduplicated": state.deduplicated,
            "groups": [_group_header(group) for group in groups],
        }
    )
    writer.blob(b"".join(_DEDUP.pack(*item) for item in state.dedup.items()))
    for group in groups:
        _dump_group(writer, group)
    return writer


def load_state(state: QueueState, blob: bytes) -> None:
    """Fill a new state from a snapshot; BadEntry if that is not what `dump_state` gives."""
    try:
        _load_state(state, _Reader(blob))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadEntry(0, f"the snapshot cannot be read: {error!r}") from error
    except (RecursionError, struct.error) as error:
        raise BadEntry(0, f"the snapshot cannot be read: {error!r}") from error


def _load_state(state: QueueState, reader: "_Reader") -> None:
    header = reader.json()
    if header["version"] > _VERSION:
        raise NewerVersion(0, "the snapshot was written by a newer version")
    state.ingested_upto = header["ingested_upto"]
    state.next_group = header["next_group"]
    state.paused = header["paused"]
    state.dedup.evicted = header["dedup_evicted"]
    state.deduplicated = header.get("deduplicated", 0)
    state.dedup.load(list(_DEDUP.iter_unpack(reader.blob())))
    state.groups.clear()
    for group_header in header["groups"]:
        group = Group(
            group_header["number"], group_header["name"], group_header["fed_upto"], state.moment
        )
        for name, total in group_header["totals"].items():
            group.totals[EventType[name]] = total
        _load_group(reader, group)
        state.groups[group.number] = group


def _group_header(group: Group) -> dict[str, Any]:
    totals = {kind.name: group.totals[kind] for kind in EventType if group.totals[kind]}
    return {
        "number": group.number,
        "name": group.name,
        "fed_upto": group.fed_upto,
        "totals": totals,
    }


def _dump_group(writer: "Frozen", group: Group) -> None:
    for lane in group.lanes:
        writer.blob(lane.fresh.dump())
    # Due or scheduled makes no difference here: when a message becomes the one is chance.
    writer.later(group.delays.freeze(), size=17 * len(group.delays))
    writer.blob(b"".join(_FLIGHT.pack(seq, *_flight_numbers(f)) for seq, f in _sorted(group)))
    writer.json([[f.reason, None if f.key is None else f.key.hex()] for _, f in _sorted(group)])
    writer.numbers(group.dead)
    leases = sorted(
        ((_held(group, lease), lease) for lease in dict.fromkeys(group.leases.values())),
        key=lambda pair: pair[0],
    )
    writer.json([_lease_values(seqs, lease) for seqs, lease in leases])


def _load_group(reader: "_Reader", group: Group) -> None:
    for lane in group.lanes:
        lane.fresh.load(reader.blob())
    delayed = reader.blob()
    packed, texts = reader.blob(), reader.json()
    for (seq, *values), (reason, key) in zip(_FLIGHT.iter_unpack(packed), texts, strict=True):
        group.flights[seq] = _flight(values, reason, None if key is None else bytes.fromhex(key))
    group.dead = {seq: group.flights[seq] for seq in reader.numbers()}
    for values in reader.json():
        _load_lease(group, values)
    group.restore_waiting(Delays.load(delayed, group.flights))


def _sorted(group: Group) -> list[tuple[int, Flight]]:
    return sorted(group.flights.items())


def _held(group: Group, lease: Lease) -> list[int]:
    return [seq for seq in lease.seqs if group.leases.get(seq) is lease]


def _flight_numbers(flight: Flight) -> tuple[int, ...]:
    waits = flight.state in (State.READY, State.SCHEDULED)
    return (
        State.SCHEDULED if waits else flight.state,
        flight.priority,
        flight.due_ns,
        flight.attempt,
        flight.nonce,
        flight.timed_out,
        flight.first_failure_ns,
        flight.last_failure_ns,
        flight.cause,
    )


def _flight(numbers: list[int], reason: str, key: bytes | None) -> Flight:
    state, priority, due_ns, attempt, nonce, timed_out, first, last, cause = numbers
    flight = Flight(State(state), priority, due_ns, key)
    flight.attempt, flight.nonce, flight.timed_out = attempt, nonce, bool(timed_out)
    flight.first_failure_ns, flight.last_failure_ns = first, last
    flight.cause, flight.reason = cause, reason
    return flight


def _lease_values(seqs: list[int], lease: Lease) -> list[Any]:
    return [
        seqs,
        lease.attempt,
        lease.nonce,
        lease.deadline_ns,
        lease.length_ns,
        lease.holder,
        lease.priority,
    ]


def _load_lease(group: Group, values: list[Any]) -> None:
    seqs, attempt, nonce, deadline_ns, length_ns, holder, priority = values
    lease = Lease(
        attempt=attempt,
        nonce=nonce,
        deadline_ns=deadline_ns,
        length_ns=length_ns,
        ends_mono_ns=0,
        holder=holder,
        priority=priority,
        seqs=seqs,
    )
    group.leases.update(dict.fromkeys(seqs, lease))


class Frozen:
    """A snapshot that is being made: parts that are bytes, and parts that are yet to be."""

    def __init__(self) -> None:
        self._parts: list[bytes | Callable[[], bytes]] = []
        self.size = 0  # nearly

    def blob(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)

    def later(self, make: Callable[[], bytes], *, size: int) -> None:
        """A part that is made by `done`."""
        self._parts.append(make)
        self.size += size

    def json(self, value: object) -> None:
        self.blob(json.dumps(value, separators=(",", ":"), sort_keys=True).encode())

    def numbers(self, values: Iterable[int]) -> None:
        self.blob(array("Q", values).tobytes())

    def done(self) -> bytes:
        """All of it, each part with its length."""
        found: list[bytes] = []
        for part in self._parts:
            data = part if isinstance(part, bytes) else part()
            found += (_LENGTH.pack(len(data)), data)
        return b"".join(found)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def blob(self) -> bytes:
        (length,) = _LENGTH.unpack_from(self._data, self._at)
        start = self._at + _LENGTH.size
        if start + length > len(self._data):
            raise BadEntry(self._at, "the snapshot is cut off")
        self._at = start + length
        return bytes(self._data[start : self._at])

    def json(self) -> Any:
        return json.loads(self.blob())

    def numbers(self) -> "array[int]":
        numbers = array("Q")
        numbers.frombytes(self.blob())
        return numbers
