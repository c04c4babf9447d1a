"""What a worker takes for a handler, and what it does with what a call returned."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.queue.queue import Queue
from penstock.worker import Worker, WorkerOptions
from penstock.worker.calling import caller_of

ONCE = WorkerOptions(idle_s=0)


def generator(job: Any) -> Iterator[None]:
    yield


async def async_generator(job: Any) -> Any:
    yield


def run(queue: Queue, handler: Callable[[Any], object]) -> int:
    return Worker(queue, handler, options=ONCE).run().done


def test_a_coroutine_that_a_plain_function_returns_is_run_in_the_loop(queue: Queue) -> None:
    queue.enqueue(b"a")
    ran: list[bytes] = []

    async def work(job: Any) -> None:
        await asyncio.sleep(0)
        ran.append(job.payload)

    assert run(queue, lambda job: work(job)) == 1
    assert ran == [b"a"]
    queue.enqueue(b"b")

    async def forgotten_await(job: Any) -> object:
        return work(job)

    assert run(queue, forgotten_await) == 1
    assert ran == [b"a", b"b"]


def test_a_coroutine_that_a_plain_function_returns_fails_the_call_if_it_raises(
    queue: Queue,
) -> None:
    queue.enqueue(b"a", max_attempts=1)

    async def work(job: Any) -> None:
        raise RuntimeError("out of paper")

    assert run(queue, lambda job: work(job)) == 0
    assert [letter.reason for letter in queue.dead()] == ["RuntimeError: out of paper"]


def test_a_coroutine_that_a_plain_function_returns_can_be_interrupted() -> None:
    class Interrupt(BaseException):
        pass

    async def main() -> None:
        began = asyncio.Event()

        async def work() -> None:
            began.set()
            await asyncio.Event().wait()

        caller = caller_of(lambda _: work(), 1)
        ended: asyncio.Future[BaseException | None] = asyncio.Future()
        running = caller.start(None, ended.set_result)
        await began.wait()
        running.interrupt(Interrupt)
        assert isinstance(await ended, Interrupt)
        caller.close()

    asyncio.run(main())


@pytest.mark.parametrize("made_by", [generator, async_generator])
def test_a_generator_is_not_a_handler_and_not_work_that_was_done(
    queue: Queue, made_by: Callable[[Any], Any]
) -> None:
    with pytest.raises(InvalidInput, match="generator"):
        Worker(queue, made_by)
    queue.enqueue(b"a", max_attempts=1)
    assert run(queue, lambda job: made_by(job)) == 0
    (letter,) = queue.dead()
    assert "the handler returned" in letter.reason


@pytest.mark.parametrize("handler", [None, 5], ids=["nothing", "number"])
def test_a_handler_that_cannot_be_called_is_refused(queue: Queue, handler: Any) -> None:
    with pytest.raises(InvalidInput, match="handler is"):
        Worker(queue, handler)
