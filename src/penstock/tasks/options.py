"""The options of a task, and of one `enqueue`."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from penstock.checking import Duration, Time, as_seconds, check_number, check_seconds, check_whole
from penstock.errors import InvalidInput
from penstock.names import check_name
from penstock.queue.settings import MOST_ATTEMPTS, YEARS_S, QueueSettings
from penstock.queue.unique import MODES

MAX_RESULT_BYTES = 64 << 10
MAX_KEEP_RESULT_S = 30 * 86400.0
DEFAULT_QUEUE = "tasks"
_JITTER = 0.1

ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]


class EnqueueOptions(TypedDict, total=False):
    """What `with_options` takes: the options of one `enqueue`."""

    delay: Duration | None
    deliver_at: Time | None
    priority: int | None
    key: str | None
    ttl: Duration | None
    headers: Mapping[str, str] | None
    max_attempts: int | None
    unique: str | None
    unique_for_s: Duration | None
    unique_key: str | None
    keep_result_s: Duration
    tenant: str | None


class TaskKeywords(TypedDict, total=False):
    """What `@tasks.task(…)` takes."""

    name: str
    queue: str
    priority: int | None
    max_attempts: int | None
    timeout_s: Duration | None
    backoff_s: Duration | None
    backoff_factor: float
    backoff_max_s: Duration
    retry_on: ExceptionTypes
    dead_on: ExceptionTypes
    unique: str | None
    unique_for_s: Duration | None
    keep_result_s: Duration
    max_in_flight: int
    rate_per_s: float
    burst: float
    fair: bool
    tenant_max_in_flight: int
    tenant_rate_per_s: float
    tenant_burst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of a task. `docs/tasks.md` lists them; a test compares the two."""

    queue: str = DEFAULT_QUEUE
    priority: int | None = None  # None: as the queue says; also below
    max_attempts: int | None = None
    timeout_s: float | None = None  # of one attempt
    backoff_s: float | None = None  # before the second attempt
    backoff_factor: float = 2.0
    backoff_max_s: float = 600.0
    retry_on: tuple[type[BaseException], ...] = ()  # anything else is dead at once
    dead_on: tuple[type[BaseException], ...] = ()
    unique: str | None = None  # "waiting" or "until_done"
    unique_for_s: float | None = None
    keep_result_s: float = 0.0  # 0: results are not kept
    max_in_flight: int = 0  # jobs that run at a time, over all workers; 0: no limit; also below
    rate_per_s: float = 0.0
    burst: float = 0.0  # 0: the jobs of one second
    fair: bool = False  # tenants take turns
    tenant_max_in_flight: int = 0
    tenant_rate_per_s: float = 0.0
    tenant_burst: float = 0.0

    def __post_init__(self) -> None:
        check_name("queue", self.queue)
        if self.priority is not None:
            check_whole("priority", self.priority, 0, 9)
        if self.max_attempts is not None:
            check_whole("max_attempts", self.max_attempts, 1, MOST_ATTEMPTS)
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None:
                seconds = check_number(name, as_seconds(value), low, high)
                object.__setattr__(self, name, seconds)
        check_unique(self.unique, self.unique_for_s)
        check_number("backoff_factor", self.backoff_factor, 1, 100)
        for name in ("retry_on", "dead_on"):
            object.__setattr__(self, name, _types(name, getattr(self, name)))
        QueueSettings(**{name: getattr(self, own) for own, name in _SETTINGS.items()})  # checks

    @property
    def limits(self) -> dict[str, Any]:
        """The settings of the task's queue that hold its limits; empty if it has none."""
        found = {name: getattr(self, own) for own, name in _SETTINGS.items()}
        return found if any(found.values()) else {}

    def backoff_delay_s(self, attempt: int) -> float | None:
        """Return the delay after a failed attempt; None: the queue's own backoff."""
        if self.backoff_s is None:
            return None
        delay_s = min(self.backoff_s * self.backoff_factor ** min(attempt - 1, 64), YEARS_S)
        spread = 1 + _JITTER * (2 * random.random() - 1)
        return min(delay_s, self.backoff_max_s) * spread


# The options that are settings of the task's queue, by their names there.
_SETTINGS = {
    "max_in_flight": "max_in_flight",
    "rate_per_s": "delivery_rate_per_s",
    "burst": "delivery_burst",
    "fair": "fair",
    "tenant_max_in_flight": "tenant_max_in_flight",
    "tenant_rate_per_s": "tenant_rate_per_s",
    "tenant_burst": "tenant_burst",
}
LIMITS = frozenset(_SETTINGS)
_RANGES = (
    ("timeout_s", 0.001, 30 * 86400.0),
    ("backoff_s", 0, YEARS_S),
    ("backoff_max_s", 0, YEARS_S),
    ("unique_for_s", 0.001, YEARS_S),
    ("keep_result_s", 0, MAX_KEEP_RESULT_S),
)


def check_unique(mode: Any, for_s: Any) -> None:
    """Raise InvalidInput if the mode or window of unique jobs is wrong, or both are given."""
    if for_s is not None:
        check_seconds("unique_for_s", for_s, 0.001, YEARS_S)
    if mode is None:
        return
    if mode not in MODES:
        raise InvalidInput(f"unique is {mode!r}; it must be {' or '.join(map(repr, MODES))}")
    if for_s is not None:
        raise InvalidInput("give unique or unique_for_s, not both: a state, or a window of time")


def _types(name: str, given: Any) -> tuple[type[BaseException], ...]:
    types = given if isinstance(given, tuple) else (given,)
    for one in types:
        if not isinstance(one, type) or not issubclass(one, BaseException):
            raise InvalidInput(f"{name} has {one!r}; it must be a type of exception, or several")
    return types
