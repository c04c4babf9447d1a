"""Handlers: a message is acked only if the handler's work has run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock.aio
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage
from penstock.queue import Queue

ran: list[bytes] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


async def coroutine(job: LeasedMessage) -> None:
    ran.append(job.payload)


async def coroutine_of_two(_extra: int, job: LeasedMessage) -> None:
    ran.append(job.payload)


def generator(job: LeasedMessage) -> Iterator[None]:
    ran.append(job.payload)
    yield


async def async_generator(job: LeasedMessage) -> AsyncIterator[None]:
    ran.append(job.payload)
    yield


def plain(job: LeasedMessage) -> None:
    ran.append(job.payload)


class Callee:
    async def __call__(self, job: LeasedMessage) -> None:
        ran.append(job.payload)


class WithAwaitable:
    """Neither a coroutine nor a future."""

    def __init__(self, job: LeasedMessage) -> None:
        self._job = job

    def __await__(self) -> Iterator[None]:
        return coroutine(self._job).__await__()


async def forgotten_await(job: LeasedMessage) -> object:
    return coroutine(job)


COROUTINES: dict[str, Callable[..., Any]] = {
    "function": coroutine,
    "partial": partial(coroutine_of_two, 1),
    "object": Callee(),
    "partial of an object": partial(Callee()),
    "method": Callee().__call__,
}
GENERATORS: dict[str, Callable[..., Any]] = {
    "generator": generator,
    "partial": partial(generator),
    "async": async_generator,
}
RETURNS_AWAITABLE: dict[str, Callable[..., Any]] = {
    "coroutine": lambda job: coroutine(job),
    "object": WithAwaitable,
}
RETURNS_GENERATOR: dict[str, Callable[..., Any]] = {
    "generator": lambda job: generator(job),
    "async": lambda job: async_generator(job),
}


def each(handlers: dict[str, Callable[..., Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("handler", handlers.values(), ids=handlers.keys())


@each(COROUTINES | GENERATORS)
def test_a_handler_that_a_plain_call_does_not_run_is_refused_before_anything_is_leased(
    queue: Queue, handler: Callable[..., Any]
) -> None:
    queue.enqueue(b"a")
    with pytest.raises(InvalidInput, match=r"penstock\.aio|generator"):
        queue.stream(handler, idle_s=0)
    assert queue.stats().ready == 1


@each(RETURNS_AWAITABLE | RETURNS_GENERATOR)
def test_a_call_that_returned_work_to_be_done_has_failed(
    queue: Queue, handler: Callable[..., Any]
) -> None:
    queue.enqueue(b"a", max_attempts=1)
    assert queue.stream(handler, idle_s=0) == 0
    (letter,) = queue.dead()
    assert "the handler returned" in letter.reason
    assert queue.stats().acked == 0
    assert ran == []


@pytest.mark.parametrize("handler", [5, "print", [print]], ids=["number", "text", "list"])
def test_a_handler_that_cannot_be_called_is_refused(
    queue: Queue, tmp_path: Path, handler: Any
) -> None:
    with pytest.raises(InvalidInput, match="handler is"):
        queue.stream(handler)

    async def main() -> None:
        async with await penstock.aio.open(tmp_path / "async") as other:
            with pytest.raises(InvalidInput, match="handler is"):
                other.stream(handler)

    asyncio.run(main())


def in_a_task(
    path: Path, handler: Callable[[LeasedMessage], Awaitable[object]]
) -> tuple[int, int, list[str]]:
    """How many calls succeeded, how many messages were acked, and why others died."""

    async def main() -> tuple[int, int, list[str]]:
        settings: dict[str, Any] = {"max_attempts": 1, "min_free_bytes": 0}
        async with await penstock.aio.open(path / "queue", **settings) as queue:
            await queue.enqueue(b"a")
            succeeded = await queue.stream(handler, idle_s=0)
            reasons = [letter.reason async for letter in queue.dead()]
            return succeeded, (await queue.stats()).acked, reasons

    return asyncio.run(main())


@each(COROUTINES | RETURNS_AWAITABLE | {"plain": plain, "forgotten await": forgotten_await})
def test_a_task_runs_what_a_handler_returned_before_it_acks(
    tmp_path: Path, handler: Callable[..., Any]
) -> None:
    assert in_a_task(tmp_path, handler) == (1, 1, [])
    assert ran == [b"a"]


@each(RETURNS_GENERATOR)
def test_a_generator_that_a_handler_returned_to_a_task_is_a_failure(
    tmp_path: Path, handler: Callable[..., Any]
) -> None:
    succeeded, acked, (reason,) = in_a_task(tmp_path, handler)
    assert (succeeded, acked) == (0, 0)
    assert "the handler returned" in reason


@each(GENERATORS)
def test_a_generator_function_is_refused_by_a_task(
    tmp_path: Path, handler: Callable[..., Any]
) -> None:
    with pytest.raises(InvalidInput, match="generator"):
        in_a_task(tmp_path, handler)
