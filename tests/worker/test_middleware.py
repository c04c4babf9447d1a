"""Hooks around a handler, and serializers: the extension points of a worker."""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import AsyncObjectQueue, ObjectQueue, OperationTimes
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage
from penstock.queue.queue import Queue
from penstock.worker import Counts, Middleware, Worker, WorkerOptions
from tests.harness.virtual_loop import LoopClock, run_virtually

UNTIL_EMPTY = WorkerOptions(idle_s=0)


class Recorder(Middleware):
    """Remembers the calls of its hooks."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name = name
        self._seen = seen

    def before(self, message: LeasedMessage) -> None:
        self._seen.append(f"{self._name} before {message.payload.decode()}")

    def after(self, message: LeasedMessage) -> None:
        self._seen.append(f"{self._name} after {message.payload.decode()}")

    def failed(self, message: LeasedMessage, error: Exception) -> None:
        self._seen.append(f"{self._name} failed {message.payload.decode()}: {error}")


class AsyncRecorder(Middleware):
    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    async def before(self, message: LeasedMessage) -> None:
        await asyncio.sleep(0)
        self._seen.append("before")

    async def after(self, message: LeasedMessage) -> None:
        await asyncio.sleep(0)
        self._seen.append("after")

    async def failed(self, message: LeasedMessage, error: Exception) -> None:
        await asyncio.sleep(0)
        self._seen.append(f"failed: {error}")


class Json:
    content_type = "application/json"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def decode(self, payload: bytes) -> Any:
        return json.loads(payload)


class Untyped(Json):
    content_type: Any = None


class AsyncJson:
    content_type = "application/json"

    async def encode(self, value: Any) -> bytes:
        return b""

    async def decode(self, payload: bytes) -> Any:
        return None


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="penstock.worker")


def fail_on_bad(job: LeasedMessage) -> None:
    if job.payload == b"bad":
        raise ValueError("no")


def test_hooks_are_called_in_order_before_and_in_reverse_order_after(queue: Queue) -> None:
    queue.enqueue(b"good")
    queue.enqueue(b"bad", max_attempts=1)
    seen: list[str] = []
    middleware = [Recorder("outer", seen), Recorder("inner", seen)]
    worker = Worker(queue, fail_on_bad, options=UNTIL_EMPTY, middleware=middleware)
    assert worker.run() == Counts(done=1, failed=1)
    assert seen == [
        "outer before good",
        "inner before good",
        "inner after good",
        "outer after good",
        "outer before bad",
        "inner before bad",
        "inner failed bad: no",
        "outer failed bad: no",
    ]


def test_hooks_of_a_coroutine_function_may_be_coroutine_functions(
    queue: Queue, clock: LoopClock
) -> None:
    queue.enqueue(b"good")
    queue.enqueue(b"bad", max_attempts=1)
    seen: list[str] = []

    async def handle(job: LeasedMessage) -> None:
        fail_on_bad(job)

    worker = Worker(queue, handle, options=UNTIL_EMPTY, middleware=[AsyncRecorder(seen)])
    assert run_virtually(lambda _: worker.work(), clock=clock) == Counts(done=1, failed=1)
    assert seen == ["before", "after", "before", "failed: no"]


def test_hooks_surround_a_coroutine_that_a_plain_function_returns(queue: Queue) -> None:
    queue.enqueue(b"good")
    queue.enqueue(b"bad", max_attempts=1)
    seen: list[str] = []

    async def work(job: LeasedMessage) -> None:
        seen.append("works")
        fail_on_bad(job)

    worker = Worker(
        queue, lambda job: work(job), options=UNTIL_EMPTY, middleware=[Recorder("m", seen)]
    )
    assert worker.run() == Counts(done=1, failed=1)
    assert [line for line in seen if "good" in line] == ["m before good", "m after good"]
    assert "m failed bad: no" in seen
    assert seen.count("works") == 2


def test_a_message_fails_without_its_handler_if_before_raises(queue: Queue) -> None:
    queue.enqueue(b"x", max_attempts=1)
    handled: list[object] = []

    class Refuses(Middleware):
        def before(self, message: LeasedMessage) -> None:
            raise PermissionError("not now")

    worker = Worker(queue, handled.append, options=UNTIL_EMPTY, middleware=[Refuses()])
    assert worker.run() == Counts(failed=1)
    assert handled == []
    assert [letter.reason for letter in queue.dead()] == ["PermissionError: not now"]


@pytest.mark.parametrize("payload", [b"good", b"bad"])
def test_a_hook_that_raises_afterwards_changes_nothing(
    queue: Queue, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="penstock.worker")
    queue.enqueue(payload, max_attempts=1)

    class Broken(Middleware):
        def after(self, message: LeasedMessage) -> None:
            raise ZeroDivisionError

        def failed(self, message: LeasedMessage, error: Exception) -> None:
            raise ZeroDivisionError

    counts = Worker(queue, fail_on_bad, options=UNTIL_EMPTY, middleware=[Broken()]).run()
    assert counts == (Counts(done=1) if payload == b"good" else Counts(failed=1))
    assert "ZeroDivisionError" in caplog.text


def test_every_message_of_a_batch_has_its_hooks(queue: Queue) -> None:
    queue.enqueue_batch([b"1", b"2"])
    seen: list[str] = []
    options = WorkerOptions(idle_s=0, batch=2)
    worker = Worker(queue, lambda jobs: None, options=options, middleware=[Recorder("m", seen)])
    assert worker.run() == Counts(done=2)
    assert seen == ["m before 1", "m before 2", "m after 1", "m after 2"]


def test_a_message_that_is_handed_back_is_neither_done_nor_failed(
    queue: Queue, clock: LoopClock
) -> None:
    queue.enqueue(b"long")
    seen: list[str] = []

    async def handle(job: LeasedMessage) -> None:
        worker.stop()
        await asyncio.sleep(1000)

    options = WorkerOptions(stop_s=5)
    worker = Worker(queue, handle, options=options, middleware=[AsyncRecorder(seen)])
    assert run_virtually(lambda _: worker.work(), clock=clock) == Counts(handed_back=1)
    assert seen == ["before"]


@pytest.mark.parametrize("batch", [1, 2])
def test_a_handler_gets_decoded_payloads(queue: Queue, batch: int) -> None:
    orders = ObjectQueue(queue, Json())
    orders.enqueue({"order": 1})
    orders.enqueue_batch([{"order": 2}, {"order": 3}])
    got: list[Any] = []
    handle = got.append if batch == 1 else got.extend
    options = WorkerOptions(idle_s=0, batch=batch)
    assert Worker(queue, handle, options=options, serializer=Json()).run().done == 3
    assert got == [{"order": 1}, {"order": 2}, {"order": 3}]


def test_a_payload_that_cannot_be_decoded_fails_its_message(queue: Queue) -> None:
    queue.enqueue(b"{", max_attempts=1)
    seen: list[str] = []
    worker = Worker(
        queue,
        lambda value: None,
        options=UNTIL_EMPTY,
        serializer=Json(),
        middleware=[Recorder("m", seen)],
    )
    assert worker.run() == Counts(failed=1)
    assert [letter.reason.partition(":")[0] for letter in queue.dead()] == ["JSONDecodeError"]
    assert seen[0] == "m before {" and seen[1].startswith("m failed {")


def test_objects_are_published_with_options_and_read_back(queue: Queue) -> None:
    orders = ObjectQueue(queue, Json())
    id_ = orders.enqueue([1, 2], priority=9, headers={"a": "b"})
    message = queue.get(id_)
    assert (message.content_type, message.priority) == ("application/json", 9)
    assert orders.value(message) == [1, 2]
    other = orders.enqueue({}, content_type="application/x-own")
    assert queue.get(other).content_type == "application/x-own"


def test_objects_are_published_by_tasks(queue: Queue, clock: LoopClock) -> None:
    async def main() -> list[str]:
        orders = AsyncObjectQueue(queue.for_tasks(), Json())
        return [await orders.enqueue(1), *await orders.enqueue_batch([2, 3])]

    ids = run_virtually(lambda _: main(), clock=clock)
    assert [queue.get(id_).payload for id_ in ids] == [b"1", b"2", b"3"]


def test_what_is_no_middleware_or_serializer_is_refused(queue: Queue) -> None:
    wrong: Any = object()
    with pytest.raises(
        InvalidInput, match="middleware is <object .*it must have the method before"
    ):
        Worker(queue, print, middleware=[wrong])
    one: Any = Recorder("m", [])
    for no_list in (wrong, one):
        with pytest.raises(InvalidInput, match="middleware is .*; it must be a list"):
            Worker(queue, print, middleware=no_list)
    with pytest.raises(InvalidInput, match="coroutine function"):
        Worker(queue, print, middleware=[AsyncRecorder([])])
    is_async: Any = AsyncJson()
    calls: list[Callable[[], object]] = [
        lambda: Worker(queue, print, serializer=wrong),
        lambda: ObjectQueue(queue, wrong),
        lambda: ObjectQueue(queue, None),  # type: ignore[arg-type]
        lambda: AsyncObjectQueue(queue.for_tasks(), None),  # type: ignore[arg-type]
        lambda: ObjectQueue(queue, Untyped()),
        lambda: ObjectQueue(queue, is_async),
    ]
    for refused in calls:
        with pytest.raises(InvalidInput, match="serializer is "):
            refused()


def test_a_class_is_refused_where_an_object_is_needed(queue: Queue, tmp_path: Path) -> None:
    given: Any = {"serializer": Json, "middleware": Middleware, "observe": OperationTimes}
    refused: list[tuple[str, Callable[[], object]]] = [
        (
            "middleware is the class Middleware: give an object of it, Middleware()",
            lambda: Worker(queue, print, middleware=[given["middleware"]]),
        ),
        (
            "serializer is the class Json",
            lambda: Worker(queue, print, serializer=given["serializer"]),
        ),
        ("serializer is the class Json", lambda: ObjectQueue(queue, given["serializer"])),
        (
            "metrics is the class OperationTimes",
            lambda: penstock.open(tmp_path / "new", metrics=given["observe"]),
        ),
        (
            "metrics is the class OperationTimes",
            lambda: penstock.connect("http://host/a/b", metrics=given["observe"]),
        ),
        (
            "retry_policy is the class Json",
            lambda: penstock.open(tmp_path / "new", retry_policy=given["serializer"]),
        ),
    ]
    for text, call in refused:
        with pytest.raises(InvalidInput, match=re.escape(text)):
            call()
    assert not (tmp_path / "new").exists()


def test_objects_of_threads_and_of_tasks_are_not_mixed_up(queue: Queue) -> None:
    tasks: Any = queue.for_tasks()
    threads: Any = queue
    path: Any = queue.path
    with pytest.raises(InvalidInput, match="use AsyncObjectQueue"):
        ObjectQueue(tasks, Json())
    with pytest.raises(InvalidInput, match="use ObjectQueue"):
        AsyncObjectQueue(threads, Json())
    with pytest.raises(InvalidInput, match="it must be an open queue"):
        ObjectQueue(path, Json())


def test_middleware_may_be_any_iterable(queue: Queue) -> None:
    queue.enqueue(b"x")
    seen: list[str] = []
    hooks: Any = (one for one in [Recorder("m", seen)])
    assert Worker(queue, fail_on_bad, options=UNTIL_EMPTY, middleware=hooks).run().done == 1
    assert seen == ["m before x", "m after x"]


class RefusesSecond(Recorder):
    """Its `before` raises for the message `2`."""

    def before(self, message: LeasedMessage) -> None:
        super().before(message)
        if message.payload == b"2":
            raise PermissionError("not now")


@pytest.mark.parametrize("is_async", [False, True])
def test_failed_is_called_only_where_before_was_called(queue: Queue, *, is_async: bool) -> None:
    for payload in (b"1", b"2", b"3"):
        queue.enqueue(payload, max_attempts=1)
    seen: list[str] = []

    async def in_task(jobs: list[LeasedMessage]) -> None: ...

    def in_thread(jobs: list[LeasedMessage]) -> None: ...

    worker = Worker(
        queue,
        in_task if is_async else in_thread,
        options=WorkerOptions(idle_s=0, batch=3),
        middleware=[Recorder("outer", seen), RefusesSecond("refuses", seen), Recorder("in", seen)],
    )
    assert worker.run().failed == 3
    assert seen == [
        *("outer before 1", "outer before 2", "outer before 3"),
        *("refuses before 1", "refuses before 2"),
        *("refuses failed 1: not now", "refuses failed 2: not now"),
        *("outer failed 1: not now", "outer failed 2: not now", "outer failed 3: not now"),
    ]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_behind_the_work_that_raises_anything_stops_nothing(
    queue: Queue, error: type[BaseException], *, is_async: bool
) -> None:
    class Failing(Middleware):
        def after(self, message: LeasedMessage) -> None:
            raise error

    async def in_task(job: LeasedMessage) -> None: ...

    def in_thread(job: LeasedMessage) -> None: ...

    queue.enqueue(b"1", max_attempts=1)
    handler = in_task if is_async else in_thread
    worker = Worker(queue, handler, options=UNTIL_EMPTY, middleware=[Failing()])
    assert worker.run() == Counts(done=1)
