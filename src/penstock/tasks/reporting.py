"""Middleware that Penstock brings: counts and durations, context of the caller, OpenTelemetry."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.locks import Lock
from penstock.tasks.context import Attempt
from penstock.tasks.middleware import Enqueuing, TaskMiddleware

_clock = SystemClock()
_MAX_TASKS = 10_000


@dataclass(slots=True)
class TaskCounts:
    """What became of the attempts of one task in this process."""

    enqueued: int = 0
    done: int = 0
    failed: int = 0  # to be tried again
    dead: int = 0
    seconds: float = 0.0  # in the function, all attempts together


@dataclass
class CountJobs(TaskMiddleware):
    """Counts jobs by task and outcome: `counts["welcome"].done`."""

    counts: dict[str, TaskCounts] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def _of(self, name: str) -> TaskCounts:
        if name not in self.counts and len(self.counts) >= _MAX_TASKS:
            return TaskCounts()
        return self.counts.setdefault(name, TaskCounts())

    def before_enqueue(self, job: Enqueuing) -> None:
        with self._lock:
            self._of(job.task.name).enqueued += 1

    @contextmanager
    def around_attempt(self, attempt: Attempt) -> Iterator[None]:
        began_ns = _clock.monotonic_ns()
        try:
            yield
        finally:
            with self._lock:
                self._of(attempt.task.name).seconds += (_clock.monotonic_ns() - began_ns) / 1e9

    def on_done(self, attempt: Attempt) -> None:
        with self._lock:
            self._of(attempt.task.name).done += 1

    def on_failed(self, attempt: Attempt, error: BaseException) -> None:
        with self._lock:
            self._of(attempt.task.name).failed += 1

    def on_dead(self, attempt: Attempt, error: BaseException) -> None:
        with self._lock:
            self._of(attempt.task.name).dead += 1


class CarryContext(TaskMiddleware):
    """Carries context variables of text, such as a request id, from `enqueue` to the job.

    >>> from contextvars import ContextVar
    >>> request_id: ContextVar[str] = ContextVar("request_id", default="")
    >>> carried = CarryContext({"request-id": request_id})
    """

    def __init__(self, variables: Mapping[str, ContextVar[str]]) -> None:
        for name, variable in variables.items():
            if not isinstance(name, str) or not isinstance(variable, ContextVar):
                raise InvalidInput(
                    f"CarryContext takes the name of a header and a ContextVar for each, not "
                    f"{name!r}: {variable!r}"
                )
        self._variables = dict(variables)

    def before_enqueue(self, job: Enqueuing) -> None:
        for name, variable in self._variables.items():
            value = variable.get("")
            if value and name not in job.headers:
                job.headers[name] = value

    @contextmanager
    def around_attempt(self, attempt: Attempt) -> Iterator[None]:
        headers = attempt.message.headers
        tokens = [
            (variable, variable.set(headers[name]))
            for name, variable in self._variables.items()
            if name in headers
        ]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)


class TraceJobs(TaskMiddleware):
    """Opens an OpenTelemetry span around each attempt, linked to the one that enqueued it.

    Needs the extra `otel`.
    """

    def __init__(self, tracer_provider: object = None) -> None:
        try:
            from opentelemetry import trace
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"TraceJobs needs the package {error.name!r}, which is not installed; "
                f"install Penstock with the extra otel (pip install '.[otel]' in its checkout)",
                name=error.name,
            ) from None

        import penstock

        provider: trace.TracerProvider | None = tracer_provider  # type: ignore[assignment]
        self._tracer = trace.get_tracer("penstock", penstock.__version__, provider)

    def before_enqueue(self, job: Enqueuing) -> None:
        from penstock.tracing import with_context

        job.headers.update(with_context(job.headers) or {})

    def around_attempt(self, attempt: Attempt) -> AbstractContextManager[object]:
        from opentelemetry.trace import SpanKind

        from penstock.tracing import links_to

        return self._tracer.start_as_current_span(
            f"run {attempt.task.name}",
            kind=SpanKind.CONSUMER,
            links=links_to([attempt.message.message]),
            attributes={
                "messaging.system": "penstock",
                "messaging.operation.name": "process",
                "messaging.destination.name": attempt.task.options.queue,
                "messaging.message.id": attempt.id,
                "penstock.task": attempt.task.name,
                "penstock.attempt": attempt.number,
            },
        )
