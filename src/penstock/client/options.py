"""The options of a client. `docs/client.md` lists them; a test compares."""

import os
import re
import ssl
from dataclasses import dataclass, field
from typing import TypedDict

from penstock.checking import check_number, check_whole
from penstock.client.batching import Batching
from penstock.client.request_retries import RetryLimits
from penstock.errors import InvalidInput
from penstock.queue.settings import QueueOptions

KEY_VARIABLE = "PENSTOCK_KEY"
_KEY = re.compile(r"[!-~]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of a client."""

    # An API key; None: that of PENSTOCK_KEY, if set. Not in `repr`, which ends up in logs.
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 10.0  # to connect, and to answer; a lease may wait longer by its wait_s
    retry_s: float = 30.0  # how long a call is retried; 0: no retry
    max_connections: int = 256
    verify: ssl.SSLContext | bool = True  # whether and how the certificate of https is checked
    batching: Batching | None = None  # gather single publishes into batches

    def __post_init__(self) -> None:
        check_number("timeout_s", self.timeout_s, 0.001, 3600)
        check_whole("max_connections", self.max_connections, 1, 100_000)
        if self.key is not None:
            if not isinstance(self.key, str):
                raise InvalidInput(f"key is a {type(self.key).__name__}; it must be text")
            _check_key("key", self.key)
        if not isinstance(self.verify, bool | ssl.SSLContext):
            raise InvalidInput(
                f"verify is {self.verify!r}; it must be True, False or an ssl.SSLContext"
            )
        if self.batching is not None and not isinstance(self.batching, Batching):
            raise InvalidInput(
                f"batching is {self.batching!r}; it must be a penstock.client.Batching"
            )
        self.retry_limits()  # checks retry_s

    def retry_limits(self) -> RetryLimits:
        return RetryLimits(retry_s=self.retry_s)

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        key = self.key
        if key is None:
            key = os.environ.get(KEY_VARIABLE, "")
            _check_key(KEY_VARIABLE, key)
        said = {"accept": "application/json", "user-agent": "penstock"}
        return {**said, "authorization": f"Bearer {key}"} if key else said

    def dedup_window_s(self) -> float:
        """Return how long the broker must remember the dedup ids that this client generates.

        As long as a publish can be retried; no longer, because a queue remembers a bounded number
        of them. 0: without retries they are not needed.
        """
        return self.retry_s + 2 * self.timeout_s if self.retry_s else 0.0


def _check_key(name: str, key: str) -> None:
    """Raise InvalidInput if it cannot be an API key. The error does not show it."""
    if not _KEY.fullmatch(key):
        raise InvalidInput(
            f"{name} has characters that API keys do not have, such as a space or a line break"
        )


class ClientKeywords(TypedDict, total=False):
    """The options of a client as keyword arguments, and the queue's name at its broker."""

    queue: str | None
    key: str | None
    timeout_s: float
    retry_s: float
    max_connections: int
    verify: ssl.SSLContext | bool
    batching: Batching | None


class OpenOptions(QueueOptions, ClientKeywords, total=False):
    """Options of `penstock.open`: a queue's settings for a directory, a client's for a URL."""
