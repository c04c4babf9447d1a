"""Durations and outcomes of operations, for a collector of the user's.

A queue that is opened without a collector pays nothing for this. With one, the methods of that
handle are replaced by such as measure.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sized
from contextvars import ContextVar
from functools import wraps
from inspect import iscoroutinefunction
from threading import Lock
from typing import Any, Protocol, TypeVar, runtime_checkable

from penstock.clock import Clock
from penstock.errors import InvalidInput
from penstock.model import NS, LeasedMessage
from penstock.queue.metrics import Histogram

log = logging.getLogger("penstock.queue")

OK = "ok"
_Q = TypeVar("_Q")
_Count = Callable[[tuple[Any, ...], Any], int]  # of the arguments and the result


@runtime_checkable
class MetricsCollector(Protocol):
    """What `penstock.open(…, metrics=collector)` takes."""

    def observe(self, operation: str, duration_s: float, outcome: str, count: int) -> None:
        """An operation is over; called in the thread or task that asked for it.

        `operation` is the method's name. `outcome` is "ok", or the name of the exception. `count`
        is how many messages it was about; 0 if it failed.
        """


class OperationTimes:
    """A collector that keeps histograms. `queue.metrics()["operations"]` shows them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._messages: dict[str, int] = {}
        self._times: dict[str, Histogram] = {}

    def observe(self, operation: str, duration_s: float, outcome: str, count: int) -> None:
        with self._lock:
            if operation not in self._times:
                self._times[operation] = Histogram()
            self._times[operation].add(round(duration_s * NS))
            self._calls[operation] = self._calls.get(operation, 0) + 1
            self._failed[operation] = self._failed.get(operation, 0) + (outcome != OK)
            self._messages[operation] = self._messages.get(operation, 0) + count

    def snapshot(self) -> dict[str, dict[str, object]]:
        """Calls, failures, messages and durations, by operation."""
        with self._lock:
            return {
                name: {
                    "calls": self._calls[name],
                    "failed": self._failed[name],
                    "messages": self._messages[name],
                    "duration_s": times.percentiles()._asdict(),
                }
                for name, times in sorted(self._times.items())
            }


def check_collector(collector: object) -> None:
    """Refuse what cannot be a collector."""
    if collector is not None and not isinstance(collector, MetricsCollector):
        raise InvalidInput(
            f"metrics is {collector!r}; it must have a method observe(operation, duration_s, "
            f"outcome, count)"
        )


def measured(queue: _Q, collector: MetricsCollector, clock: Clock) -> _Q:
    """Let a handle of a queue, of any kind, tell the collector of each operation."""
    times = collector if isinstance(collector, OperationTimes) else OperationTimes()
    told = _Telling([times] if times is collector else [times, collector], clock)
    metrics: Callable[[], dict[str, object]] = queue.metrics  # type: ignore[attr-defined]
    own = vars(queue)
    for name, count in _OPERATIONS.items():
        own[name] = told.wrapped(name, getattr(queue, name), count)
    own["metrics"] = lambda: {**metrics(), "operations": times.snapshot()}
    return queue


class _Telling:
    """Measures calls. One that another measured call makes is part of it, and not told."""

    def __init__(self, collectors: list[MetricsCollector], clock: Clock) -> None:
        self._collectors = collectors
        self._now_ns = clock.monotonic_ns
        self._inside: ContextVar[bool] = ContextVar("inside", default=False)
        self._has_failed = False

    def wrapped(self, name: str, method: Callable[..., Any], count: _Count) -> Callable[..., Any]:
        if iscoroutinefunction(method):
            return self._async(name, method, count)

        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            if self._inside.get():
                return method(*args, **options)
            args, token, began_ns = _countable(args), self._inside.set(True), self._now_ns()
            outcome, messages = OK, 0
            try:
                result = method(*args, **options)
                messages = count(args, result)
                return result
            except BaseException as error:
                outcome = type(error).__name__
                raise
            finally:
                self._inside.reset(token)
                self._tell(name, began_ns, outcome, messages)

        return call

    def _async(
        self, name: str, method: Callable[..., Awaitable[Any]], count: _Count
    ) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def call(*args: Any, **options: Any) -> Any:
            if self._inside.get():
                return await method(*args, **options)
            args, token, began_ns = _countable(args), self._inside.set(True), self._now_ns()
            outcome, messages = OK, 0
            try:
                result = await method(*args, **options)
                messages = count(args, result)
                return result
            except BaseException as error:
                outcome = type(error).__name__
                raise
            finally:
                self._inside.reset(token)
                self._tell(name, began_ns, outcome, messages)

        return call

    def _tell(self, name: str, began_ns: int, outcome: str, count: int) -> None:
        duration_s = (self._now_ns() - began_ns) / NS
        for collector in self._collectors:
            try:
                collector.observe(name, duration_s, outcome, count)
            except Exception:  # the operation is done; its caller is not to blame
                if not self._has_failed:
                    self._has_failed = True
                    log.exception("the metrics collector failed; further failures are not logged")


def _countable(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, the first of them as a list where it could be gone through only once."""
    if args and isinstance(args[0], Iterable) and not isinstance(args[0], Sized):
        return (list(args[0]), *args[1:])
    return args


def _one(args: tuple[Any, ...], result: Any) -> int:
    return 1


def _some(args: tuple[Any, ...], result: Any) -> int:
    """As many as the result has, or is."""
    if isinstance(result, Sized):
        return len(result)
    return int(result or 0)


def _found(args: tuple[Any, ...], result: Any) -> int:
    return 0 if result is None else 1


def _receipts(args: tuple[Any, ...], result: Any) -> int:
    if not args or isinstance(args[0], LeasedMessage | str):
        return 1
    return len(args[0])


_OPERATIONS: dict[str, _Count] = {
    "enqueue": _one,
    "enqueue_batch": _some,
    "publish": _some,
    "lease": _some,
    "lease_dead": _some,
    "dequeue": _found,
    "dequeue_batch": _some,
    "ack": _receipts,
    "nack": _receipts,
    "extend": _receipts,
    "release": _receipts,
    "peek": _some,
    "get": _one,
    "state": _one,
    "why": _one,
    "retry_info": _one,
    "history": _one,
    "stats": _one,
    "seek": _one,
    "cancel": _some,
    "purge": _some,
    "redrive": _some,
    "discard": _some,
    "pause": _one,
    "resume": _one,
    "compact": _one,
    "sync": _one,
}
