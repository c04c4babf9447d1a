"""Unique messages: while one of a key waits, or until it is done, no other of it is published.

A publisher asks for it by the header `penstock-unique`: `waiting:KEY` or `until_done:KEY`. So every
interface of a broker offers it. The queue stores the mode and the digest of the key with the
message, in one write. Whether a message stands for its key follows from its state in group `main`,
so there is nothing to release: what ends a message ends that, whatever crashes.
"""

import hashlib
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.queue.group import Group

HEADER = "penstock-unique"
_SPARE = 1024  # entries of messages that ended, before they are removed


class Mode(IntEnum):
    """How long a message stands for its key. The numbers are part of the file format."""

    WAITING = 1  # until it is leased; again while it waits for another attempt
    UNTIL_DONE = 2  # until it is done, dead, expired or removed


_MODES = {mode.name.lower(): mode for mode in Mode}
MODES = tuple(_MODES)


def header_of(mode: str, key: str) -> str:
    """Return the value of the header.

    >>> header_of("until_done", "user 7")
    'until_done:user 7'
    """
    return f"{mode}:{key}"


def unique_attribute(headers: Mapping[str, str] | None) -> bytes | None:
    """Return the attribute that headers ask for: mode and digest; None if they ask for none."""
    value = None if headers is None else headers.get(HEADER)
    if value is None:
        return None
    name, colon, key = value.partition(":")
    mode = _MODES.get(name)
    if mode is None or not colon or not key:
        raise InvalidInput(
            f"header {HEADER} is {value!r}; it must be waiting:KEY or until_done:KEY"
        )
    return bytes([mode]) + hashlib.sha256(key.encode()).digest()


class UniqueTable:
    """The newest message of each key. Its answers depend on nothing that is removed."""

    def __init__(self) -> None:
        # attribute -> (seq, published_ns, expires_at_ns or 0)
        self._newest: dict[bytes, tuple[int, int, int]] = {}
        self._clean_at = _SPARE

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, attribute: bytes, seq: int, published_ns: int, expires_at_ns: int) -> None:
        """Note that a message was published."""
        known = self._newest.get(attribute)
        if known is None or known[0] < seq:
            self._newest[attribute] = (seq, published_ns, expires_at_ns)

    def first_with(self, attribute: bytes, main: "Group", now_ns: int) -> tuple[int, int] | None:
        """Return (seq, published_ns) of the message that stands for a key."""
        found = self._newest.get(attribute)
        if found is None:
            return None
        seq, published_ns, expires_at_ns = found
        stands = _stands(attribute, seq, expires_at_ns, main, now_ns)
        return (seq, published_ns) if stands else None

    def clean(self, main: "Group") -> None:
        """Forget messages that stand for nothing any more, if there may be many."""
        if len(self._newest) > self._clean_at:
            self.load(self.items(main))
            self._clean_at = 2 * len(self._newest) + _SPARE

    def items(self, main: "Group") -> list[tuple[bytes, int, int, int]]:
        """Return the attribute, seq and times of all that are not done, in a fixed order."""
        return sorted(
            (attribute, *found)
            for attribute, found in self._newest.items()
            if not main.is_settled(found[0])
        )

    def load(self, items: list[tuple[bytes, int, int, int]]) -> None:
        self._newest = {attribute: (seq, at_ns, end_ns) for attribute, seq, at_ns, end_ns in items}


def _stands(attribute: bytes, seq: int, expires_at_ns: int, main: "Group", now_ns: int) -> bool:
    lease, delivery = main.leases.get(seq), main.deliveries.get(seq)
    if delivery is not None and delivery.cause:
        return False  # a dead letter
    if lease is not None:
        return attribute[0] == Mode.UNTIL_DONE
    # A waiting message is not looked at when it expires, only when it would be delivered.
    return not (main.is_settled(seq) or 0 < expires_at_ns <= now_ns)
