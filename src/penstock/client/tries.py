"""What follows each try of a call: its answer is taken, it is tried again, or given up.

A state machine without sockets or sleeping, so that the faces for threads and for tasks are one in
this. The rule: what may have been carried out is sent again only if that makes no difference.
"""

import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from penstock.checking import check_number
from penstock.client.call import Call, Reply, T
from penstock.client.faults import error_of, retry_after_of
from penstock.clock import Clock
from penstock.errors import BrokerError, PenstockError, QueueFull, QuotaExceeded, Unreachable
from penstock.model import NS

log = logging.getLogger("penstock.client")

_NOTICED = 4  # tries after which it is told: nobody notices fewer
_REFUSED_FOR_NOW = (408, 429, 502, 503, 504)
_MAY_BE_DONE = (502, 504)  # a proxy's: the broker behind it may have carried it out
# A bound that was reached is an answer of its own: waiting is not what makes room.
_FINAL = (QueueFull, QuotaExceeded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """How long a call is tried, and how fast."""

    retry_s: float = 30.0  # from the first try on; 0: once only
    first_pause_s: float = 0.05  # doubles with each try
    longest_pause_s: float = 2.0

    def __post_init__(self) -> None:
        check_number("retry_s", self.retry_s, 0, 86400)
        check_number("first_pause_s", self.first_pause_s, 0, 60)
        check_number("longest_pause_s", self.longest_pause_s, self.first_pause_s, 3600)


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The call was answered well."""

    value: T


@dataclass(frozen=True, slots=True)
class Pause:
    """Try again after so long."""

    seconds: float


class Tries(Generic[T]):
    """The tries of one call."""

    def __init__(
        self,
        call: Call[T],
        retrying: Retrying,
        clock: Clock,
        *,
        base: str = "",
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._call = call
        self._retrying = retrying
        self._clock = clock
        self._url = f"{base}{call.path}"
        self._chance = chance
        self._until_ns = clock.monotonic_ns() + round(retrying.retry_s * NS)
        self._may_be_done = False
        self.count = 0

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> Done[T] | Pause:
        """The broker, or something before it, has answered. Raises what the answer stands for."""
        if 200 <= status < 300 or status == self._call.also_read:
            return Done(self._read(status, headers, body))
        after_s = retry_after_of(headers)
        error = error_of(status, body, after_s)
        self._may_be_done |= status in _MAY_BE_DONE
        again = status in _REFUSED_FOR_NOW and not isinstance(error, _FINAL)
        if status == 404 and type(error) is BrokerError:
            raise BrokerError(f"{error} ({self._call.method} {self._url}): check the URL")
        if not again or (self._may_be_done and not self._call.repeatable):
            raise error
        return self._pause(error, after_s or 0.0)

    def _read(self, status: int, headers: Mapping[str, str], body: bytes) -> T:
        try:
            data = body if self._call.raw else _parsed(body)
            return self._call.read(Reply(data, self._may_be_done, headers, status))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, PenstockError):
                raise
            raise BrokerError(
                f"the answer to {self._call.method} {self._call.path} is not as expected "
                f"({error!r}): check that client and broker are of the same version"
            ) from error

    def failed(self, sentence: str, *, sent: bool, hopeless: bool = False) -> Pause:
        """There was no answer. `sent`: the request may have arrived."""
        self._may_be_done |= sent
        if self._may_be_done:
            outcome = "whether it was carried out is not known"
        else:
            outcome = "nothing was changed"
        error = Unreachable(f"{sentence}; {outcome}")
        if hopeless or (self._may_be_done and not self._call.repeatable):
            raise error
        return self._pause(error, 0.0)

    def _pause(self, error: PenstockError, at_least_s: float) -> Pause:
        """Waits grow, and are spread by chance so that many clients do not come back at once."""
        retrying = self._retrying
        grown_s = min(retrying.first_pause_s * 2 ** min(self.count, 30), retrying.longest_pause_s)
        pause_s = max(grown_s * (0.5 + self._chance() / 2), at_least_s)
        self.count += 1
        if self._clock.monotonic_ns() + round(pause_s * NS) > self._until_ns:
            raise error
        if self.count == _NOTICED:
            log.info("%s; it is tried again for up to %g s", error, retrying.retry_s)
        return Pause(pause_s)


def _parsed(body: bytes) -> object:
    if not body:
        return None
    try:
        return json.loads(body)
    except ValueError:
        raise BrokerError(
            "the answer is not JSON: check that the URL is that of a Penstock broker"
        ) from None
