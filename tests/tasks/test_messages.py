"""What is said about wrong use: what happened with the value, why, and what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.tasks import Discard, NoResult, Tasks


def plain(x: int = 0) -> int:
    return x


class _Methods:
    @classmethod
    def made(cls) -> None: ...

    def method(self, x: int) -> int:
        return x


def _says(call: Callable[[], object], *texts: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        call()
    for text in texts:
        assert text in str(refused.value)


def test_what_cannot_be_a_task(tasks: Tasks) -> None:
    add: Any = tasks.task
    _says(lambda: add("mail"), "'mail', which is no function", "@tasks.task(name='mail')")
    _says(lambda: add(_Methods.__dict__["made"]), "is a method", "Make a function a task")
    _says(lambda: add(_Methods.method), "is a method", "Make a function a task")
    _says(lambda: add(7), "7 is no function")
    for name in ("größe", ".", "a b", ""):
        _says(lambda name=name: tasks.add(plain, name=name), "A-Z, a-z, 0-9", "start with")  # type: ignore[misc]
    assert list(tasks) == []


def test_options_of_a_call(tasks: Tasks) -> None:
    task = tasks.add(plain, name="p")
    for seconds in (-1, 0):
        _says(lambda s=seconds: task.with_options(unique_for_s=s), f"unique_for_s is {seconds}")  # type: ignore[misc]
    _says(lambda: task.with_options(delay=1e12).enqueue(), "to 3153600000")
    text: Any = "2030-01-01"
    _says(lambda: task.with_options(deliver_at=text).enqueue(), "'2030-01-01'", "fromisoformat")


def test_places(tmp_path: Path) -> None:
    def enqueue(place: str) -> object:
        return Tasks(place).add(plain, name="a").enqueue()

    _says(lambda: enqueue("http://"), "'http://', which names no host")
    _says(lambda: enqueue("redis://localhost"), "'redis://localhost' is a URL", "a broker")
    with Tasks(tmp_path, shared=False) as tasks:
        tasks.add(plain, name="a").enqueue()
    inside = str(tmp_path / "tasks")
    _says(lambda: enqueue(inside), repr(inside), "a queue itself", repr(str(tmp_path)))
    assert not (tmp_path / "tasks" / "tasks").exists()


def test_no_result_after_a_discard(tasks: Tasks) -> None:
    @tasks.task(keep_result_s=60)
    def gone() -> int:
        raise Discard("gone")

    job = gone.enqueue()
    tasks.run_pending()
    with pytest.raises(NoResult, match="raised Discard"):
        job.result()


def test_a_coroutine_that_a_decorator_hides_is_a_dead_letter_at_once(tasks: Tasks) -> None:
    async def work() -> None: ...

    def decorated() -> object:
        return work()

    job = tasks.add(decorated, name="decorated").enqueue()
    tasks.run_pending()
    assert job.state() == "dead"
    assert "'decorated' returned a coroutine" in job.retry_info().reason


def test_why_is_a_sentence_without_the_traceback(tasks: Tasks) -> None:
    @tasks.task(max_attempts=2, backoff_s=10)
    def fail() -> None:
        raise ValueError("no")

    job = fail.enqueue()
    tasks.run_pending()
    assert "\n" not in job.why().sentence
    assert "in fail" in str(job.why().details["reason"])
