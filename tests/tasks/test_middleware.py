"""Middleware of tasks: order of the hooks, what they see, and what Penstock brings."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.tasks import (
    Attempt,
    CarryContext,
    CountJobs,
    Enqueuing,
    TaskMiddleware,
    Tasks,
    TasksWorker,
    TasksWorkerOptions,
    TraceJobs,
)
from penstock.testing import in_memory


class Recorder(TaskMiddleware):
    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    def before_enqueue(self, job: Enqueuing) -> None:
        self.seen.append(f"{self.name} enqueue {job.task.name}")
        job.headers[self.name] = "was here"

    @contextmanager
    def around_attempt(self, attempt: Attempt) -> Iterator[None]:
        self.seen.append(f"{self.name} begin {attempt.number}")
        try:
            yield
        except ValueError:
            self.seen.append(f"{self.name} saw it")
            raise
        finally:
            self.seen.append(f"{self.name} end")

    def on_done(self, attempt: Attempt) -> None:
        self.seen.append(f"{self.name} done")

    def on_failed(self, attempt: Attempt, error: BaseException) -> None:
        self.seen.append(f"{self.name} failed: {error}")

    def on_dead(self, attempt: Attempt, error: BaseException) -> None:
        self.seen.append(f"{self.name} dead: {error}")


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_are_called_in_order_and_around_the_function(is_async: bool) -> None:
    seen: list[str] = []
    tasks = Tasks("memory:", middleware=[Recorder("a", seen), Recorder("b", seen)])

    def plain(n: int) -> None:
        seen.append("run")
        if n:
            raise ValueError("no")

    async def coroutine(n: int) -> None:
        await asyncio.sleep(0)
        plain(n)

    task = tasks.add(coroutine if is_async else plain, name="work", max_attempts=2)
    with in_memory(tasks) as box:
        job = task.enqueue(0)
        assert tasks.queue().get(job.id).headers == {"a": "was here", "b": "was here"}
        box.run_pending()
        around = ["a begin 1", "b begin 1", "run"]
        assert seen == [
            *("a enqueue work", "b enqueue work"),
            *around,
            *("b end", "a end", "a done", "b done"),
        ]
        seen.clear()
        task.enqueue(1)
        box.run_pending()
        ends = ["b saw it", "b end", "a saw it", "a end"]
        assert seen[2:] == [*around, *ends, "a failed: no", "b failed: no"]
        seen.clear()
        box.advance(60)
        assert seen[-2:] == ["a dead: no", "b dead: no"]


def test_a_hook_that_raises_does_not_change_the_outcome(tasks: Tasks) -> None:
    class Broken(TaskMiddleware):
        def on_done(self, attempt: Attempt) -> None:
            raise RuntimeError("broken")

        on_dead: Any = on_done

    broken = Tasks("memory:", middleware=[Broken()])
    fine = broken.add(lambda: None, name="fine")
    bad = broken.add(lambda: 1 / 0, name="bad", max_attempts=1)
    with in_memory(broken) as box:
        first, second = fine.enqueue(), bad.enqueue()
        assert box.run_pending() == 2
        assert (first.state(), second.state()) == ("done", "dead")


def test_a_hook_that_raises_before_it_is_an_error_of_the_caller() -> None:
    class Refuses(TaskMiddleware):
        def before_enqueue(self, job: Enqueuing) -> None:
            raise PermissionError("not you")

    tasks = Tasks("memory:", middleware=[Refuses()])
    task = tasks.add(lambda: None, name="fine")
    with in_memory(tasks) as box:
        with pytest.raises(PermissionError):
            task.enqueue()
        box.assert_not_enqueued(task)


def test_what_is_no_middleware_is_refused() -> None:
    for wrong in (object(), TaskMiddleware):
        with pytest.raises(InvalidInput, match="TaskMiddleware"):
            Tasks("memory:", middleware=[wrong])  # type: ignore[list-item]


def test_jobs_are_counted_by_task_and_outcome() -> None:
    counting = CountJobs()
    tasks = Tasks("memory:", middleware=[counting])
    fine = tasks.add(lambda: None, name="fine")
    bad = tasks.add(lambda: 1 / 0, name="bad", max_attempts=2)
    with in_memory(tasks) as box:
        fine.enqueue()
        fine.enqueue()
        bad.enqueue()
        box.advance(60)
    found = counting.counts
    assert (found["fine"].enqueued, found["fine"].done) == (2, 2)
    assert (found["bad"].failed, found["bad"].dead, found["bad"].done) == (1, 1, 0)
    assert found["fine"].seconds >= 0


def test_a_context_variable_is_carried_from_the_caller_to_the_job() -> None:
    request_id: ContextVar[str] = ContextVar("request_id", default="")
    seen: list[str] = []
    tasks = Tasks("memory:", middleware=[CarryContext({"request-id": request_id})])
    task = tasks.add(lambda: seen.append(request_id.get()), name="note")
    with in_memory(tasks) as box:
        token = request_id.set("r-7")
        task.enqueue()
        request_id.reset(token)
        task.enqueue()
        box.run_pending()
    assert seen == ["r-7", ""]
    with pytest.raises(InvalidInput, match="ContextVar"):
        CarryContext({"a": "b"})  # type: ignore[dict-item]


def test_a_span_around_each_attempt_is_linked_to_the_enqueuing(clock: ManualClock) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tasks = Tasks("memory:", middleware=[TraceJobs(provider)])
    inside: list[int] = []

    def note() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    task = tasks.add(note, queue="notes")
    with in_memory(tasks) as box:
        with provider.get_tracer("test").start_as_current_span("request") as request:
            task.enqueue()
        box.run_pending()
    span = next(one for one in spans.get_finished_spans() if one.name == "run note")
    assert [link.context.span_id for link in span.links] == [request.get_span_context().span_id]
    assert inside == [span.context.span_id]
    assert span.attributes is not None
    assert span.attributes["penstock.task"] == "note"
    assert span.attributes["messaging.destination.name"] == "notes"


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Watch(TaskMiddleware):
    """Notes what is called, and swallows errors if it is asked to."""

    def __init__(self, *, swallows: bool) -> None:
        self.swallows = swallows
        self.seen: list[tuple[str, str]] = []

    @contextmanager
    def around_attempt(self, attempt: Attempt) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if not self.swallows:
                raise

    def on_done(self, attempt: Attempt) -> None:
        self.seen.append(("done", ""))

    def on_failed(self, attempt: Attempt, error: BaseException) -> None:
        self.seen.append(("failed", type(error).__name__))

    def on_dead(self, attempt: Attempt, error: BaseException) -> None:
        self.seen.append(("dead", type(error).__name__))


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("runs", ["pending", "worker"])
@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("x"),
        SystemExit("config missing"),
        asyncio.CancelledError(),
        GeneratorExit(),
        _Unprintable(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_way_to_end_is_a_failure_with_its_error_hooks_and_log(
    error: BaseException,
    is_async: bool,
    swallows: bool,
    runs: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = _Watch(swallows=swallows)
    tasks = Tasks("memory:", middleware=[watch], backoff_base_s=0)

    def plain() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    task = tasks.add(coroutine if is_async else plain, name="work", max_attempts=2)
    with tasks:
        job = task.enqueue()
        if runs == "pending":
            assert tasks.run_pending() == 2
        else:
            TasksWorker(tasks, options=TasksWorkerOptions(idle_s=0)).run()
        name = type(error).__name__
        assert job.state() == "dead"
        assert name in job.retry_info().reason.partition("\n")[0]
    assert watch.seen == [("failed", name), ("dead", name)]
    ours = [one for one in caplog.records if one.name == "penstock.tasks"]
    assert [one.levelname for one in ours] == ["WARNING", "ERROR"]
    assert all(name in one.getMessage() for one in ours)
