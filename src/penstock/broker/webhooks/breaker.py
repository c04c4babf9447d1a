"""The circuit breaker of an endpoint: one that fails again and again is left alone for a while.

Closed: deliveries flow. After a few failures in a row it opens: nothing is leased for the
endpoint, so its messages wait in the queue and spend no attempts. When the rest is over, one
delivery is tried (half open). If that succeeds the breaker closes; if not, it rests twice as long.
"""

from enum import StrEnum

FAILURES_TO_OPEN = 5
FIRST_REST_S = 30.0
LONGEST_REST_S = 600.0


class Circuit(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts failures, and says until when to rest. Times are those of a monotonic clock.

    >>> breaker = Breaker()
    >>> for _ in range(FAILURES_TO_OPEN):
    ...     breaker.failed(now_s=100.0)
    >>> breaker.state(now_s=101.0), breaker.rests_until_s
    (<Circuit.OPEN: 'open'>, 130.0)
    >>> breaker.state(now_s=130.0)
    <Circuit.HALF_OPEN: 'half_open'>
    """

    def __init__(self) -> None:
        self.rests_until_s = 0.0
        self._failures = 0  # in a row
        self._rest_s = 0.0  # 0: closed

    def state(self, now_s: float) -> Circuit:
        if now_s < self.rests_until_s:
            return Circuit.OPEN
        return Circuit.HALF_OPEN if self._rest_s else Circuit.CLOSED

    def succeeded(self) -> None:
        """The endpoint took a delivery: all is well."""
        self._failures = 0
        self._rest_s = 0.0
        self.rests_until_s = 0.0

    def failed(self, now_s: float) -> None:
        """A delivery failed in a way that is the endpoint's, not the message's."""
        if now_s < self.rests_until_s:
            return  # it was under way when the breaker opened, and says nothing new
        self._failures += 1
        if self._rest_s or self._failures >= FAILURES_TO_OPEN:
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S) or FIRST_REST_S
            self.rests_until_s = now_s + self._rest_s

    def pause(self, until_s: float) -> None:
        """The endpoint said itself how long it wants to be left alone."""
        self.rests_until_s = max(self.rests_until_s, until_s)
