"""Retries: how long a failed message waits before its next attempt."""

import hashlib
import logging
import math
from typing import NamedTuple, Protocol

from penstock.model import NS
from penstock.queue.handlers import check_extension
from penstock.queue.settings import YEARS_S, QueueSettings

log = logging.getLogger("penstock.queue")


class FailedAttempt(NamedTuple):
    """A delivery that failed, as a retry policy sees it."""

    seq: int  # the message's number in the queue
    group: str
    attempt: int  # number of this delivery, from 1
    max_attempts: int
    reason: str  # as given to `nack`, or "lease ran out"
    timed_out: bool


class RetryPolicy(Protocol):
    """The argument `retry_policy` of `penstock.open`.

    It is called while the queue's lock is held: it must be quick, and must not use the queue.
    """

    def delay_s(self, failed: FailedAttempt) -> float | None:
        """Return the seconds until the next attempt, or None to make the message a dead letter.

        Not called if `nack` was given a delay, or if `max_attempts` is reached.
        """


class Backoff:
    """The default policy: exponential backoff with jitter, as the queue's settings say.

    The jitter depends only on the queue, the message and the attempt, so it can be repeated.
    """

    def __init__(self, settings: QueueSettings, identity: int) -> None:
        self._settings = settings
        self._identity = identity

    def delay_s(self, failed: FailedAttempt) -> float:
        settings = self._settings
        exponent = min(failed.attempt - 1, 64)
        seconds = min(
            settings.backoff_base_s * settings.backoff_factor**exponent, settings.backoff_max_s
        )
        if settings.backoff_jitter:
            seed = b"%d/%d/%d" % (self._identity, failed.seq, failed.attempt)
            number = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "little")
            seconds *= 1 + settings.backoff_jitter * (number / (1 << 63) - 1)
        return seconds


def check_retry_policy(policy: object) -> None:
    """Raise InvalidInput if an object is not a retry policy."""
    if policy is not None:
        check_extension("retry_policy", policy, ["delay_s"])


def retry_delay_ns(policy: RetryPolicy, default: Backoff, failed: FailedAttempt) -> int | None:
    """Return the delay that a policy decides, or None for a dead letter.

    A policy that raises, or answers something else, must not stop the queue: log it, and use the
    default.
    """
    try:
        delay_s = policy.delay_s(failed)
        if delay_s is None:
            return None
        if math.isfinite(delay_s) and 0 <= delay_s <= YEARS_S:
            return round(delay_s * NS)
        log.warning("retry policy %r answered %r: the backoff is used", policy, delay_s)
    except Exception:
        log.exception("retry policy %r failed: the backoff is used", policy)
    return round(default.delay_s(failed) * NS)
