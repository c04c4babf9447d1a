"""What a call of the handler may come to, and how often each was so."""

from dataclasses import dataclass


class TimeLimitExceeded(Exception):
    """Raised inside a handler that takes longer than the time limit."""


class HandedBack(BaseException):
    """Raised inside a handler that is still at work when a stop waits no longer.

    No Exception, so that a handler which catches those does not hold up the stop.
    """


class LeaseLost(BaseException):
    """Raised inside a handler whose message is not its own any more: someone else may have it."""


@dataclass(slots=True)
class Counts:
    """How many messages of a worker came to what."""

    done: int = 0
    failed: int = 0  # nacked: the handler raised, or took too long
    handed_back: int = 0  # released at a stop, no attempt spent
    lost: int = 0  # the lease was over, or the outcome could not be told: it is delivered again
