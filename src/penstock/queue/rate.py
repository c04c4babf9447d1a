"""A token bucket: so many messages a second, with room for a burst."""


class TokenBucket:
    """Filled by time, emptied by publishing. Not part of the fold: it starts full after a restart.

    >>> bucket = TokenBucket(rate_per_s=10, burst=2, now_ns=0)
    >>> bucket.take(2, 0), bucket.take(1, 0), bucket.take(1, 100_000_000)
    (0.0, 0.1, 0.0)
    """

    def __init__(self, *, rate_per_s: float, burst: float, now_ns: int) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._tokens = burst
        self._filled_ns = now_ns

    def take(self, count: int, now_ns: int) -> float:
        """Take so many tokens and answer 0, or take none and answer the seconds to wait."""
        elapsed_s = max(now_ns - self._filled_ns, 0) / 1e9
        self._tokens = min(self.burst, self._tokens + elapsed_s * self.rate_per_s)
        self._filled_ns = now_ns
        if count > self._tokens:
            return (min(count, self.burst) - self._tokens) / self.rate_per_s or 1 / self.rate_per_s
        self._tokens -= count
        return 0.0

    def give_back(self, count: int) -> None:
        """They were taken, and nothing came of it."""
        self._tokens = min(self.burst, self._tokens + count)
