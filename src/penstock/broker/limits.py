"""Limits of the broker: calls of a client, bytes in memory, and work in the event loop."""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from penstock.broker.store import Publishable
from penstock.clock import Clock
from penstock.errors import Overloaded, TooManyRequests
from penstock.model import NewMessage, TypedPayload
from penstock.queue.publishing import TokenBucket

SMALL_BYTES = 64 * 1024
LARGE_BYTES = 256 * 1024
DEFAULT_MAX_HELD_BYTES = 256 << 20
_MOST_SHARED = 1000  # clients of which other brokers are told at a time
_FOR_LARGE = 0.75  # part of the limit; the rest is for bodies of at most SMALL_BYTES
_MANY = 500  # messages


class ClientBuckets:
    """A token bucket for each client, in a bounded table: the least recently seen is dropped.

    Several brokers of a store tell each other of the calls that they admitted (`taken`, `charge`),
    so that the buckets of a client are nearly the same at all of them.
    """

    def __init__(self, *, rate_per_s: float, burst: float, most: int, clock: Clock) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst or max(rate_per_s, 1.0)
        self._most = most
        self._clock = clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._taken: Counter[str] = Counter()  # since `taken` was last called

    def take(self, client: str, what: str) -> None:
        """Count a call of a client. Raise TooManyRequests, with the time to wait, if too many."""
        now_ns = self._clock.monotonic_ns()
        wait_s = self._bucket(client, now_ns).take(1, now_ns)
        if wait_s:
            raise TooManyRequests(
                f"too many {what}: {self._rate_per_s:g} a second from one client; try again in "
                f"{wait_s:.3f} s",
                wait_s,
            )
        self._taken[client] += 1
        if len(self._taken) > self._most:
            self._taken.clear()

    def taken(self) -> list[tuple[str, int]]:
        """Return and forget the calls admitted since the last time, of the busiest clients."""
        taken, self._taken = self._taken, Counter()
        return taken.most_common(_MOST_SHARED)

    def charge(self, client: str, calls: int) -> None:
        """Count calls that another broker has admitted. The client may be in debt for them."""
        now_ns = self._clock.monotonic_ns()
        self._bucket(client, now_ns).charge(calls, self._burst + self._rate_per_s, now_ns)

    def _bucket(self, client: str, now_ns: int) -> TokenBucket:
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = TokenBucket(rate_per_s=self._rate_per_s, burst=self._burst, now_ns=now_ns)
            self._buckets[client] = bucket
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(client)
        return bucket


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
        """Return whether to read on a body of which `size` bytes are held already.

        A quarter of the limit is reserved for small bodies, so that a few clients that send large
        ones slowly cannot block all others.
        """
        limit = self.max_bytes if size <= SMALL_BYTES else self.max_bytes * _FOR_LARGE
        return self.bytes <= limit

    def check_room(self, also_held: int = 0) -> int:
        """Return the number of free bytes. Raise Overloaded if there are none."""
        room = self.max_bytes - self.bytes - also_held
        if room <= 0:
            raise self._overloaded(also_held)
        return room

    def check_room_for(self, size: int) -> None:
        """Raise Overloaded unless `size` more bytes fit. A single answer always fits."""
        if self.bytes > 0 and self.bytes + size > self.max_bytes:
            raise self._overloaded(size)

    def _overloaded(self, also_held: int) -> Overloaded:
        return Overloaded(
            f"requests and answers hold {self.bytes + also_held} bytes, the maximum is "
            f"{self.max_bytes} (max_buffered_bytes): retry in a moment"
        )


def is_heavy(messages: Sequence[Publishable]) -> bool:
    """Return whether to publish these in a thread: many of them, or much to check and compress."""
    return len(messages) > _MANY or sum(map(_size_of, messages)) > LARGE_BYTES


def _size_of(message: Publishable) -> int:
    payload = message.payload if isinstance(message, NewMessage | TypedPayload) else message
    return len(payload) if isinstance(payload, bytes | bytearray | memoryview | str) else 0
