"""Decide what an answer means: for the message (`judge`) and for the endpoint (`Breaker`).

Everything here is pure: the caller passes the time in.
"""

from enum import StrEnum
from typing import Literal, NamedTuple

from penstock.broker.webhooks.sending import Answer
from penstock.broker.webhooks.subscription import Style, Subscription

STANDARD_RETRY_S = (5.0, 60.0, 300.0, 1800.0, 7200.0)
EPOCHQUEUE_RETRY_S = (1.0, 5.0, 30.0)
MAX_RETRY_AFTER_S = 86400.0

FAILURES_TO_OPEN = 5
FIRST_OPEN_S = 30.0
MAX_OPEN_S = 600.0

_GONE = 410
_TOO_MANY_REQUESTS = 429
_SERVICE_UNAVAILABLE = 503

# -- the message -----------------------------------------------------------------------------------

Outcome = Literal["delivered", "retry", "dead", "disabled", "failed"]  # failed: sent by hand


class Judgement(NamedTuple):
    """The outcome of one delivery of a message."""

    outcome: Outcome
    reason: str = ""
    delay_s: float = 0.0  # before a retry
    pause_s: float = 0.0  # no deliveries to the endpoint for this long, at its own request


def judge(subscription: Subscription, answer: Answer, attempt: int) -> Judgement:
    """Return what the answer to delivery number `attempt` of a message means."""
    if answer.ok:
        return Judgement("delivered")
    reason = answer.error or f"the endpoint answered {answer.status}"
    pause_s = 0.0
    if (
        answer.status in (_TOO_MANY_REQUESTS, _SERVICE_UNAVAILABLE)
        and answer.retry_after_s is not None
    ):
        pause_s = min(answer.retry_after_s, MAX_RETRY_AFTER_S)
    waits = subscription.retry_s
    if subscription.style is Style.EPOCHQUEUE:
        is_refused = 400 <= answer.status < 500 and answer.status != _TOO_MANY_REQUESTS
        if is_refused or attempt > len(waits):
            return Judgement("dead", reason, pause_s=pause_s)
    elif answer.status == _GONE:
        return Judgement("disabled", "the endpoint answered 410: it wants no more deliveries")
    wait_s = waits[min(attempt, len(waits)) - 1]
    return Judgement("retry", reason, max(wait_s, pause_s), pause_s)


# -- the endpoint ----------------------------------------------------------------------------------


class Circuit(StrEnum):
    """The state of an endpoint's circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    UNKNOWN = "unknown"  # another broker delivers to the endpoint


class Breaker:
    """The circuit breaker of an endpoint. Times are those of a monotonic clock.

    Closed: deliveries flow. It opens after several failures in a row: nothing is leased for the
    endpoint, so its messages wait in the queue and spend no attempts. After a while one delivery is
    tried (half open). A success closes the breaker; a failure opens it for twice as long.

    >>> breaker = Breaker()
    >>> for _ in range(FAILURES_TO_OPEN):
    ...     breaker.failed(now_s=100.0)
    >>> breaker.state(now_s=101.0), breaker.open_until_s
    (<Circuit.OPEN: 'open'>, 130.0)
    >>> breaker.state(now_s=130.0)
    <Circuit.HALF_OPEN: 'half_open'>
    """

    def __init__(self) -> None:
        self.open_until_s = 0.0
        self._failures = 0  # in a row
        self._open_s = 0.0  # how long it was opened for; 0: closed

    @property
    def failures(self) -> int:
        """Return how many deliveries failed in a row."""
        return self._failures

    def state(self, now_s: float) -> Circuit:
        if now_s < self.open_until_s:
            return Circuit.OPEN
        return Circuit.HALF_OPEN if self._open_s else Circuit.CLOSED

    def succeeded(self) -> None:
        """Close the breaker: the endpoint took a delivery."""
        self._failures = 0
        self._open_s = 0.0
        self.open_until_s = 0.0

    def failed(self, now_s: float) -> None:
        """Count a failure of the endpoint, and open the breaker if it was one too many."""
        self._failures += 1
        if now_s < self.open_until_s:
            return  # this delivery started before the breaker opened
        if self._open_s or self._failures >= FAILURES_TO_OPEN:
            self._open_s = min(2 * self._open_s, MAX_OPEN_S) or FIRST_OPEN_S
            self.open_until_s = now_s + self._open_s

    def pause(self, until_s: float) -> None:
        """Stay open until this time at least: the endpoint sent Retry-After."""
        self.open_until_s = max(self.open_until_s, until_s)
