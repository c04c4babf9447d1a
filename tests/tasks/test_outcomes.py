"""What happens to a job: by what its function returns or raises."""

import asyncio
import json
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.tasks import Discard, GiveUp, Job, Retry, Tasks, current


def _raising(tasks: Tasks, error: BaseException, **options: Any) -> Job[None]:
    @tasks.task(**options)
    def fail() -> None:
        raise error

    return fail.enqueue()


def test_a_job_that_returns_is_done(tasks: Tasks) -> None:
    @tasks.task
    def fine() -> str:
        return "x"

    job = fine.enqueue()
    assert job.state() == "ready"
    assert tasks.run_pending() == 1
    assert job.state() == "done"


def test_a_job_that_raises_is_tried_again_with_the_error_and_where_it_was_raised(
    tasks: Tasks, clock: ManualClock
) -> None:
    job = _raising(tasks, ValueError("cannot\ndigest this"))
    tasks.run_pending()
    info = job.retry_info()
    assert (info.state, info.attempts, info.max_attempts) == ("scheduled", 1, 20)
    first, _, where = info.reason.partition("\n")
    assert first == "ValueError: cannot digest this"
    assert "test_outcomes.py" in where and "in fail" in where and "penstock/tasks" not in where
    assert job.why().code == "backing_off"
    clock.advance(1)
    assert tasks.run_pending() == 1
    assert job.retry_info().attempts == 2


def test_the_defaults_outlive_an_outage_of_an_hour_and_three_quarters(
    tasks: Tasks, clock: ManualClock
) -> None:
    """19 waits: 1, 2, 4 … 512 seconds, then nine of 600 seconds: 6,423 seconds."""
    job = _raising(tasks, ConnectionError("down"))
    waited_s = 0
    tasks.run_pending()
    while job.state() == "scheduled":
        clock.advance(1)
        waited_s += 1
        tasks.run_pending()
    assert (job.state(), job.retry_info().attempts, waited_s) == ("dead", 20, 6423)


def test_backoff_and_attempts_of_a_task_replace_those_of_the_queue(
    tasks: Tasks, clock: ManualClock
) -> None:
    options = {"backoff_s": 100, "backoff_factor": 10, "backoff_max_s": 500, "max_attempts": 3}
    job = _raising(tasks, ValueError("x"), **options)
    tasks.run_pending()
    info = job.retry_info()
    assert info.max_attempts == 3
    assert 90 <= info.next_attempt_ns / 1e9 - clock.now_ns() / 1e9 <= 110
    clock.advance(111)
    tasks.run_pending()
    wait_s = job.retry_info().next_attempt_ns / 1e9 - clock.now_ns() / 1e9
    assert 450 <= wait_s <= 550
    clock.advance(551)
    tasks.run_pending()
    assert job.state() == "dead"


def test_retry_says_when_to_try_again(tasks: Tasks, clock: ManualClock) -> None:
    job = _raising(tasks, Retry("the printer is busy", delay=300))
    tasks.run_pending()
    info = job.retry_info()
    assert info.reason == "Retry: the printer is busy"
    assert info.next_attempt_ns == clock.now_ns() + 300 * 10**9


def test_give_up_is_a_dead_letter_at_once(tasks: Tasks) -> None:
    job = _raising(tasks, GiveUp("no such user"))
    tasks.run_pending()
    assert (job.state(), job.retry_info().attempts) == ("dead", 1)
    assert job.retry_info().reason == "GiveUp: no such user"


def test_discard_is_done_without_a_result(tasks: Tasks) -> None:
    job = _raising(tasks, Discard("the user is gone"), keep_result_s=60)
    tasks.run_pending()
    assert job.state() == "done"
    assert tasks.queue().stats().scheduled == 0


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({"retry_on": OSError}, "scheduled"),
        ({"retry_on": (KeyError, ConnectionError)}, "scheduled"),
        ({"retry_on": KeyError}, "dead"),
        ({"dead_on": OSError}, "dead"),
        ({"dead_on": KeyError}, "scheduled"),
        ({"retry_on": OSError, "dead_on": ConnectionError}, "dead"),
    ],
)
def test_the_type_of_the_error_decides(tasks: Tasks, options: Any, state: str) -> None:
    job = _raising(tasks, ConnectionError("x"), **options)
    tasks.run_pending()
    assert job.state() == state


def test_arguments_that_cannot_be_read_are_a_dead_letter_with_that_reason(tasks: Tasks) -> None:
    @tasks.task
    def welcome(user_id: int) -> None: ...

    queue = tasks.queue()
    for args in ({"user_id": "x"}, {}, [1]):
        id_ = queue.enqueue({"v": 1, "task": "welcome", "args": args})
        tasks.run_pending()
        info = queue.retry_info(id_)
        assert (info.state, info.attempts) == ("dead", 1)
        assert info.reason.startswith("the arguments do not fit task 'welcome': ")


@pytest.mark.parametrize("payload", [b"hello", b"[1]", b"\xff", b"{}", b'{"v":1}'])
def test_a_message_that_is_no_task_is_a_dead_letter(tasks: Tasks, payload: bytes) -> None:
    @tasks.task
    def nothing() -> None: ...

    id_ = tasks.queue().enqueue(payload)
    tasks.run_pending()
    assert tasks.queue().retry_info(id_).state == "dead"
    assert "not the call of a task" in tasks.queue().retry_info(id_).reason


def test_a_task_or_version_that_a_newer_worker_may_know_is_tried_again(tasks: Tasks) -> None:
    @tasks.task
    def nothing() -> None: ...

    queue = tasks.queue()
    for payload in ({"v": 1, "task": "new", "args": {}}, {"v": 2, "task": "nothing"}):
        id_ = queue.enqueue(payload)
        tasks.run_pending()
        assert queue.retry_info(id_).state == "scheduled"


def test_an_argument_that_a_newer_worker_may_take_is_tried_again(tasks: Tasks) -> None:
    """A rolling deploy: the producer has the new code, this worker has the old."""

    @tasks.task
    def pay(user: int) -> None: ...

    id_ = tasks.queue().enqueue({"v": 1, "task": "pay", "args": {"user": 1, "currency": "USD"}})
    tasks.run_pending()
    info = tasks.queue().retry_info(id_)
    assert info.state == "scheduled"
    assert "no parameter 'currency'; a newer worker may run it" in info.reason


def test_a_coroutine_function_is_a_task_too(tasks: Tasks) -> None:
    @tasks.task(keep_result_s=60)
    async def double(n: int) -> int:
        assert current().number == 1
        return 2 * n

    job = double.enqueue(21)
    tasks.run_pending()
    assert job.result() == 42


def test_a_running_function_knows_its_job(tasks: Tasks) -> None:
    @tasks.task(keep_result_s=60, max_attempts=1)
    def who() -> tuple[str, int, bool]:
        job = current()
        return job.id, job.number, job.is_last

    job = who.enqueue()
    tasks.run_pending()
    assert job.result() == (job.id, 1, True)
    with pytest.raises(InvalidInput, match="no current job"):
        who()


def test_an_interrupt_gives_the_job_back_and_uses_no_attempt(tasks: Tasks) -> None:
    job = _raising(tasks, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        tasks.run_pending()
    assert (job.state(), job.retry_info().attempts) == ("ready", 0)


def test_a_payload_is_json_that_any_language_can_write(tasks: Tasks) -> None:
    ran: list[int] = []

    @tasks.task
    def note(n: int) -> None:
        ran.append(n)

    tasks.queue().enqueue(json.dumps({"v": 1, "task": "note", "args": {"n": 5}}))
    tasks.run_pending()
    assert ran == [5]


def test_jobs_are_run_in_an_event_loop(tasks: Tasks) -> None:
    @tasks.task(keep_result_s=60)
    async def double(n: int) -> int:
        assert asyncio.get_running_loop() is loops[0]
        return 2 * n

    @tasks.task(keep_result_s=60)
    def plain(n: int) -> int:
        return n + 1

    @tasks.task(max_attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    loops: list[object] = []

    async def use() -> list[Job[Any]]:
        loops.append(asyncio.get_running_loop())
        jobs: list[Job[Any]] = [await double.aenqueue(21)]
        with pytest.raises(InvalidInput, match="await tasks.arun_pending"):
            tasks.run_pending()
        assert (jobs[0].state(), jobs[0].retry_info().attempts) == ("ready", 0)
        jobs += [await plain.aenqueue(1), await fail.aenqueue()]
        assert await tasks.arun_pending(limit=2) == 2
        assert await tasks.arun_pending() == 1
        return jobs

    found = asyncio.run(use())
    assert (found[0].result(), found[1].result(), found[2].state()) == (42, 2, "dead")
