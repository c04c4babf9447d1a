"""What can be said about how a broker is reached. `docs/client.md` lists it; a test compares."""

import os
import ssl
from dataclasses import dataclass, field

from penstock.checking import check_number, check_whole
from penstock.client.batching import Batching
from penstock.client.tries import Retrying
from penstock.errors import InvalidInput

KEY_VARIABLE = "PENSTOCK_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How a broker is reached."""

    # An API key; None: that of the environment, if any. Not in `repr`, which ends up in logs.
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 10.0  # for a connection, and for an answer beyond what was to be waited
    retry_s: float = 30.0  # how long a call is tried again; 0: not at all
    max_connections: int = 256
    verify: ssl.SSLContext | bool = True  # how the certificate of https is judged
    batching: Batching | None = None  # gather single publishes into batches

    def __post_init__(self) -> None:
        check_number("timeout_s", self.timeout_s, 0.001, 3600)
        check_whole("max_connections", self.max_connections, 1, 100_000)
        if self.key is not None:
            if not isinstance(self.key, str):
                raise InvalidInput(f"key is a {type(self.key).__name__}; it must be text")
            if not (self.key.isascii() and self.key.isprintable()):
                raise InvalidInput("the key has characters that no key has")
        if not isinstance(self.verify, bool | ssl.SSLContext):
            raise InvalidInput(
                f"verify is {self.verify!r}; it must be True, False or an ssl.SSLContext"
            )
        if self.batching is not None and not isinstance(self.batching, Batching):
            raise InvalidInput(
                f"batching is {self.batching!r}; it must be a penstock.client.Batching"
            )
        self.retrying()

    def retrying(self) -> Retrying:
        return Retrying(retry_s=self.retry_s)

    def headers(self) -> dict[str, str]:
        """Sent with every request."""
        key = self.key if self.key is not None else os.environ.get(KEY_VARIABLE)
        said = {"accept": "application/json", "user-agent": "penstock"}
        return {**said, "authorization": f"Bearer {key}"} if key else said

    def keys_known_for_s(self) -> float:
        """As long as a publish can be under way, so that its last try still finds its key; and not
        longer, since a queue remembers a bounded number of them. 0: they are of no use."""
        return self.retry_s + 2 * self.timeout_s if self.retry_s else 0.0
