"""Retries of a request: take its answer, send it again after a backoff, or raise an error.

A state machine without sockets or sleeping, shared by the connections for threads and for tasks.
A request that the broker may have carried out is retried only if it is idempotent.
"""

import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from penstock.checking import check_number
from penstock.client.faults import error_of, retry_after_of
from penstock.client.request import Reply, Request, T
from penstock.clock import Clock
from penstock.errors import BrokerError, PenstockError, QueueFull, QuotaExceeded, Unreachable
from penstock.model import NS

log = logging.getLogger("penstock.client")

_RETRIED_STATUSES = (408, 429, 502, 503, 504)
_UNCERTAIN_STATUSES = (502, 504)  # a proxy's: the broker may have carried the request out
# Not retried: waiting does not make room in a full queue.
_FINAL = (QueueFull, QuotaExceeded)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How long a request is retried, and how often."""

    retry_s: float = 30.0  # from the first attempt on; 0: no retry
    backoff_s: float = 0.05  # doubles with each retry
    backoff_s_max: float = 2.0
    logged_retry: int = 4  # fewer retries take too little time to be worth a line in the log

    def __post_init__(self) -> None:
        check_number("retry_s", self.retry_s, 0, 86400)
        check_number("backoff_s", self.backoff_s, 0, 60)
        check_number("backoff_s_max", self.backoff_s_max, self.backoff_s, 3600)


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The request succeeded."""

    value: T


@dataclass(frozen=True, slots=True)
class Retry:
    """The request is to be sent again."""

    after_s: float


class Attempts(Generic[T]):
    """The attempts of one request."""

    def __init__(
        self,
        request: Request[T],
        limits: RetryLimits,
        clock: Clock,
        *,
        base: str = "",
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._request = request
        self._limits = limits
        self._clock = clock
        self._url = f"{base}{request.path}"
        self._chance = chance
        self._until_ns = clock.monotonic_ns() + round(limits.retry_s * NS)
        self._may_be_done = False
        self._retries = 0

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> Done[T] | Retry:
        """Return what follows an answer of the broker or a proxy; raise an error that is final."""
        if 200 <= status < 300 or status == self._request.also_read:
            return Done(self._read(status, headers, body))
        after_s = retry_after_of(headers)
        error = error_of(status, body, after_s)
        self._may_be_done |= status in _UNCERTAIN_STATUSES
        again = status in _RETRIED_STATUSES and not isinstance(error, _FINAL)
        if status == 404 and type(error) is BrokerError:
            raise BrokerError(f"{error} ({self._request.method} {self._url}): check the URL")
        return self.refused(error, again=again, after_s=after_s or 0.0)

    def refused(
        self, error: PenstockError, *, again: bool, after_s: float, sent: bool = False
    ) -> Retry:
        """Return what follows an error of the broker; raise it if it is final.

        `again`: it may succeed later. `sent`: it may have been carried out nevertheless.
        """
        self._may_be_done |= sent
        if not again or (self._may_be_done and not self._request.idempotent):
            raise error
        return self._retry(error, after_s)

    @property
    def may_be_done(self) -> bool:
        """Return whether an earlier attempt may have been carried out."""
        return self._may_be_done

    def _read(self, status: int, headers: Mapping[str, str], body: bytes) -> T:
        try:
            data = body if self._request.raw else _parsed(body)
            return self._request.read(Reply(data, self._may_be_done, headers, status))
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            if isinstance(error, PenstockError):
                raise
            raise BrokerError(
                f"the answer to {self._request.method} {self._request.path} is not as expected "
                f"({error!r}): check that client and broker are of the same version"
            ) from error

    def failed(self, sentence: str, *, sent: bool, hopeless: bool = False) -> Retry:
        """Return what follows an attempt without an answer, or raise Unreachable.

        `sent`: the request may have arrived. `hopeless`: it would fail again.
        """
        self._may_be_done |= sent
        if self._may_be_done:
            outcome = "whether it was carried out is not known"
        else:
            outcome = "nothing was changed"
        error = Unreachable(f"{sentence}; {outcome}")
        if hopeless or (self._may_be_done and not self._request.idempotent):
            raise error
        return self._retry(error, 0.0)

    def _retry(self, error: PenstockError, at_least_s: float) -> Retry:
        """Return the next retry; raise the error if the time for retries is over.

        Exponential backoff with jitter, so that many clients do not come back at once.
        """
        limits = self._limits
        backoff_s = min(limits.backoff_s * 2 ** min(self._retries, 30), limits.backoff_s_max)
        wait_s = max(backoff_s * (0.5 + self._chance() / 2), at_least_s)
        self._retries += 1
        if self._clock.monotonic_ns() + round(wait_s * NS) > self._until_ns:
            raise error
        if self._retries == limits.logged_retry:
            log.warning("%s; retrying for up to %g s", error, limits.retry_s)
        return Retry(wait_s)


def _parsed(body: bytes) -> object:
    if not body:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # the latter: it is nested too deeply
        raise BrokerError(
            "the answer is not JSON: check that the URL is that of a Penstock broker"
        ) from None
