"""Bytes that requests and answers hold in memory, of all connections together."""

from penstock.errors import Overloaded

SMALL_BYTES = 64 * 1024
_FOR_LARGE = 0.75  # of the limit; what is left is for bodies of at most SMALL_BYTES
DEFAULT_MAX_HELD_BYTES = 256 << 20


def encoded_bytes(payload_bytes: int) -> int:
    """Return the most bytes that payloads take in an answer: base64 adds a third."""
    return payload_bytes * 4 // 3


class Held:
    """A count of bytes with a limit. Holders add what they hold and subtract it afterwards."""

    __slots__ = ("bytes", "max_bytes")

    def __init__(self, max_bytes: int = DEFAULT_MAX_HELD_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0

    def has_room_for_body(self, size: int) -> bool:
        """Return whether a body may go on, of which `size` bytes are held already.

        A quarter of the limit is kept for small bodies: a few clients that send large ones slowly
        must not keep everyone else out.
        """
        limit = self.max_bytes if size <= SMALL_BYTES else self.max_bytes * _FOR_LARGE
        return self.bytes <= limit

    def check_room(self, also_held: int = 0) -> int:
        """Return how many bytes are free, at least one. Raise Overloaded if none are."""
        room = self.max_bytes - self.bytes - also_held
        if room <= 0:
            raise self._overloaded(also_held)
        return room

    def check_room_for(self, size: int) -> None:
        """Raise Overloaded unless `size` bytes more fit. Alone, one answer of any size does."""
        if self.bytes > 0 and self.bytes + size > self.max_bytes:
            raise self._overloaded(size)

    def _overloaded(self, also_held: int) -> Overloaded:
        return Overloaded(
            f"requests and answers hold {self.bytes + also_held} bytes, the most is "
            f"{self.max_bytes} (max_buffered_bytes): try again in a moment"
        )
