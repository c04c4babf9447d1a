"""The messages that a message comes after: how they are named, and how they are stored with it.

`after=[…]` names messages by id, or by their index in the batch that is being published. On disk,
in the attribute `AFTER`, little-endian:

    flags u8 | near u16 | far u16 | near x (distance u32, count u32) | far x (first seq u64, count
    u32) | ids of messages of other queues, 16 bytes each | id of the gate, if the flags say so

`near` are messages of the same batch, as distances back from the message itself: its own seq is not
known before it is written. `far` are earlier messages of the queue. Both are runs, so that one
message that comes after ten thousand neighbours takes a few bytes. A gate (see `gate.py`) is named
twice: among the others, and last.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.codec import make_id, parse_id
from penstock.errors import InvalidInput, TooLarge
from penstock.queue.runs import as_runs

MAX_AFTER = 10_000  # messages that one message may come after
MAX_AFTER_BYTES = 60_000  # as they are stored
AFTER_FAILED = ("dead", "run")
ID_BYTES = 16

_HEAD = struct.Struct("<BHH")
_NEAR = struct.Struct("<II")
_FAR = struct.Struct("<QI")
_RUNS_ANYWAY, _HAS_GATE = 1, 2
_MS_BITS, _IDENTITY_BITS = 80, 48


class After(NamedTuple):
    """What a message comes after."""

    near: tuple[tuple[int, int], ...] = ()  # (distance back to the first, count)
    far: tuple[tuple[int, int], ...] = ()  # (first seq, count)
    elsewhere: tuple[bytes, ...] = ()  # ids of other queues
    runs_anyway: bool = False  # also if one of them fails
    gate: bytes | None = None  # id of that one of them which is a gate

    def gate_of(self) -> "int | bytes | None":
        """Return the gate: its seq, or its id if it is of another queue."""
        if self.gate is None or self.gate in self.elsewhere:
            return self.gate
        return int.from_bytes(self.gate, "big") & ((1 << _IDENTITY_BITS) - 1)

    def seqs(self, own_seq: int) -> Iterator[int]:
        """Yield the seqs of those in the message's own queue."""
        for distance, count in self.near:
            yield from range(own_seq - distance, min(own_seq - distance + count, own_seq))
        for first, count in self.far:
            yield from range(first, min(first + count, own_seq))


def pack_after(after: After) -> bytes:
    """Return the attribute. Raise TooLarge if they take too many bytes."""
    flags = after.runs_anyway * _RUNS_ANYWAY | (after.gate is not None) * _HAS_GATE
    data = b"".join(
        (
            _HEAD.pack(flags, len(after.near), len(after.far)),
            *(_NEAR.pack(*run) for run in after.near),
            *(_FAR.pack(*run) for run in after.far),
            *after.elsewhere,
            after.gate or b"",
        )
    )
    if len(data) > MAX_AFTER_BYTES:
        raise TooLarge(
            f"after takes {len(data)} bytes; the maximum is {MAX_AFTER_BYTES}. Name fewer "
            f"messages, or neighbours: put a message between that comes after some of them"
        )
    return data


def unpack_after(data: bytes) -> After:
    """Return what the attribute says. Raise ValueError or struct.error if it is invalid."""
    flags, near, far = _HEAD.unpack_from(data)
    far_at = _HEAD.size + near * _NEAR.size
    ids_at = far_at + far * _FAR.size
    if ids_at > len(data) or (len(data) - ids_at) % ID_BYTES:
        raise ValueError("the attribute `after` is cut off")
    ids = tuple(data[at : at + ID_BYTES] for at in range(ids_at, len(data), ID_BYTES))
    has_gate = bool(flags & _HAS_GATE)
    if has_gate and not ids:
        raise ValueError("the attribute `after` has no gate")
    return After(
        tuple(_NEAR.iter_unpack(data[_HEAD.size : far_at])),
        tuple(_FAR.iter_unpack(data[far_at:ids_at])),
        ids[:-1] if has_gate else ids,
        bool(flags & _RUNS_ANYWAY),
        ids[-1] if has_gate else None,
    )


def check_after(after: object, after_failed: object, number: int) -> None:
    """Raise InvalidInput if these are no options of the message with that index in its batch."""
    if after_failed is not None and after_failed not in AFTER_FAILED:
        raise InvalidInput(f'after_failed is {after_failed!r}; it must be "dead" or "run"')
    if after is None:
        if after_failed is not None:
            raise InvalidInput("after_failed is for messages with after: give both, or neither")
        return
    if isinstance(after, str | bytes) or not isinstance(after, Sequence):
        raise InvalidInput(f"after is a list of message ids, not {type(after).__name__}")
    if len(after) > MAX_AFTER:
        raise TooLarge(f"after names {len(after)} messages; the maximum is {MAX_AFTER}")
    for one in after:
        if type(one) is int:
            if not 0 <= one < number:
                raise InvalidInput(
                    f"after names item {one} of the batch; item {number} can only come after "
                    f"earlier ones, from 0 on"
                )
        elif isinstance(one, str):
            parse_id(one)
        else:
            raise InvalidInput(
                f"after has {one!r}; it takes message ids, and indexes of earlier items of the "
                f"batch"
            )


def id_bytes(id_: str) -> bytes:
    """Return an id as it is stored.

    >>> id_text(id_bytes("06DJ4DC1G00000G40000000001"))
    '06DJ4DC1G00000G40000000001'
    """
    milliseconds, identity, seq = parse_id(id_)
    number = milliseconds << _MS_BITS | identity << _IDENTITY_BITS | seq
    return number.to_bytes(ID_BYTES, "big")


def id_text(data: bytes) -> str:
    """Return a stored id as text."""
    number = int.from_bytes(data, "big")
    identity = number >> _IDENTITY_BITS & 0xFFFFFFFF
    return make_id((number >> _MS_BITS) * 1_000_000, identity, number & ((1 << _IDENTITY_BITS) - 1))


def after_of(
    near: Iterable[int],
    far: Iterable[int],
    elsewhere: Iterable[bytes],
    *,
    runs_anyway: bool,
    gate: bytes | None = None,
) -> After:
    """Return what a message comes after, given distances back, seqs, and ids of other queues."""
    return After(
        # A run of positions rises where its distances fall.
        tuple((-first, count) for first, count in as_runs({-one for one in near})),
        tuple(as_runs(set(far))),
        tuple(sorted(set(elsewhere))),
        runs_anyway,
        gate,
    )
