"""How often one client may do a thing: a token bucket each, in a bounded table."""

from collections import OrderedDict

from penstock.clock import Clock
from penstock.errors import TooManyRequests
from penstock.queue.publishing import TokenBucket


class ClientBuckets:
    """Buckets by client. The one that was unseen longest is forgotten first."""

    def __init__(self, *, rate_per_s: float, burst: float, most: int, clock: Clock) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst or max(rate_per_s, 1.0)
        self._most = most
        self._clock = clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, client: str, what: str) -> None:
        """Once more of this client; TooManyRequests says when the next may come."""
        if not self._rate_per_s:
            return
        now_ns = self._clock.monotonic_ns()
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = TokenBucket(rate_per_s=self._rate_per_s, burst=self._burst, now_ns=now_ns)
            self._buckets[client] = bucket
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(client)
        wait_s = bucket.take(1, now_ns)
        if wait_s:
            raise TooManyRequests(
                f"too many {what}: {self._rate_per_s:g} a second from one client; try again in "
                f"{wait_s:.3f} s",
                wait_s,
            )
