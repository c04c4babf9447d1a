"""Each public method is defined once; every queue has it with the same signature and docstring."""

import asyncio
import gc
import inspect
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, assert_type

import pytest

import penstock
import penstock.aio
from penstock.aio import AsyncQueue
from penstock.client import AsyncRemoteQueue, RemoteQueue
from penstock.model import LeasedMessage, Message, Stats
from penstock.queue.binding import (
    Definition,
    ForTasks,
    ForThreads,
    block,
    finish,
    iterate,
    listing,
    method,
)
from penstock.queue.facade import AnyAsyncQueue, AnyQueue, QueueMethods
from penstock.queue.queue import Queue
from penstock.queue.streaming import StreamMethod
from tests.harness.interrupts import Interrupter

DEFINED = {name: one for name, one in vars(QueueMethods).items() if isinstance(one, Definition)}
FOR_THREADS = (Queue, RemoteQueue)
FOR_TASKS = (AsyncQueue, AsyncRemoteQueue)


def test_the_four_queues_have_every_method_of_the_definition() -> None:
    assert len(DEFINED) > 25
    for name, definition in DEFINED.items():
        expected = list(inspect.signature(definition.function).parameters.values())
        for queue in (*FOR_THREADS, *FOR_TASKS):
            bound = getattr(queue, name)
            assert inspect.isfunction(bound), (queue, name)
            assert list(inspect.signature(bound).parameters.values()) == expected, (queue, name)
            assert bound.__name__ == name
            assert bound.__doc__ and bound.__doc__ == definition.function.__doc__


def test_methods_are_coroutine_functions_only_for_tasks() -> None:
    for name, definition in DEFINED.items():
        for queue in FOR_THREADS:
            assert not inspect.iscoroutinefunction(getattr(queue, name)), name
        if inspect.iscoroutinefunction(definition.function):
            for tasks in FOR_TASKS:
                assert inspect.iscoroutinefunction(getattr(tasks, name)), name


def test_results_of_listings_are_shown_as_what_they_are() -> None:
    assert inspect.signature(Queue.browse).return_annotation == Iterator[Message]
    assert inspect.signature(AsyncQueue.browse).return_annotation == AsyncIterator[Message]


class Numbers:
    """A definition in all three forms, and what its parts saw."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def _pause(self) -> None:
        raise NotImplementedError

    @method
    async def double(self, n: int, *, plus: int = 0) -> int:
        """Return twice the number."""
        await self._pause()
        return 2 * n + plus

    @listing
    async def count(self, n: int) -> AsyncIterator[int]:
        """Count to n."""
        try:
            for number in range(n):
                await self._pause()
                yield number
        finally:
            self.seen.append("closed")

    @block
    @asynccontextmanager
    async def inside(self) -> AsyncIterator[str]:
        """Be inside a block."""
        try:
            yield "inside"
        except ValueError as error:
            self.seen.append(str(error))
            raise

    @StreamMethod
    def stream(self, handler: Callable[[int], object] | None = None, *, n: int = 2) -> Any:
        """Count to n, or call the handler for each number."""
        return self.count_up(n) if handler is None else self._handle(handler, n)

    async def count_up(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    async def _handle(self, handler: Callable[[int], object], n: int) -> int:
        for number in range(n):
            handler(number)
        return n


class Blocking(Numbers, ForThreads):
    async def _pause(self) -> None: ...


class Suspending(Numbers, ForTasks):
    async def _pause(self) -> None:
        await asyncio.sleep(0)


class Faster(Blocking):
    def _fast_double(self, n: int, *, plus: int = 0) -> int:
        self.seen.append("fast")
        return n + n + plus


def test_a_method_for_threads_returns_the_result() -> None:
    numbers = Blocking()
    assert assert_type(numbers.double(4, plus=1), int) == 9
    assert list(numbers.count(3)) == [0, 1, 2]
    with numbers.inside() as where:
        assert assert_type(where, str) == "inside"


def test_a_method_for_tasks_is_awaited() -> None:
    async def main() -> None:
        numbers = Suspending()
        assert assert_type(await numbers.double(4, plus=1), int) == 9
        assert [n async for n in numbers.count(3)] == [0, 1, 2]
        async with numbers.inside() as where:
            assert assert_type(where, str) == "inside"

    asyncio.run(main())


def test_an_iterator_that_is_left_is_closed_at_once() -> None:
    numbers = Blocking()
    rows = numbers.count(10)
    assert next(rows) == 0
    assert numbers.seen == []
    del rows
    assert numbers.seen == ["closed"]


def test_a_block_sees_the_error_inside_it() -> None:
    numbers = Blocking()
    with pytest.raises(ValueError, match="wrong"), numbers.inside():
        raise ValueError("wrong")
    assert numbers.seen == ["wrong"]


def test_a_fast_function_takes_the_place_of_a_method() -> None:
    numbers = Faster()
    assert numbers.double(4) == 8
    assert numbers.seen == ["fast"]
    assert (Faster.double.__name__, Faster.double.__doc__) == ("double", "Return twice the number.")
    assert Blocking().double(4) == 8


def test_a_method_for_threads_must_not_wait_for_a_loop() -> None:
    class Wrong(Numbers, ForThreads):
        async def _pause(self) -> None:
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="event loop"):
        Wrong().double(1)


def test_errors_and_interrupts_come_through() -> None:
    async def fail(error: BaseException) -> None:
        raise error

    for error in (KeyError("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            finish(fail, error)

    async def rows() -> AsyncIterator[int]:
        yield 1
        raise KeyError("x")

    found = iterate(rows())
    assert next(found) == 1
    with pytest.raises(KeyError):
        next(found)


def _inside(numbers: Blocking) -> None:
    with numbers.inside():
        pass


CALLS: dict[str, Callable[[Any], object]] = {
    "method": lambda numbers: numbers.double(4, plus=1),
    "listing": lambda numbers: list(numbers.count(2)),
    "block": _inside,
    "stream": lambda numbers: list(numbers.stream()),
    "stream with a handler": lambda numbers: numbers.stream(abs, n=1),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_leaves_no_coroutine_that_was_never_awaited(name: str) -> None:
    points = Interrupter(None)
    points.run(lambda: CALLS[name](Blocking()))
    assert points.points > 2
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for at in range(1, points.points + 1):
            with pytest.raises(KeyboardInterrupt):
                Interrupter(at).run(lambda: CALLS[name](Blocking()))
            gc.collect()
    assert [str(one.message) for one in warned] == []


def what_a_type_checker_sees(path: Path, text: str) -> None:
    """Not called: mypy checks it."""
    assert_type(penstock.open(path), Queue)
    assert_type(penstock.open(path, lease_s=5), Queue)
    assert_type(penstock.open(text), AnyQueue)
    assert_type(penstock.open(text, key="k"), AnyQueue)
    assert_type(penstock.connect(text, timeout_s=5), RemoteQueue)
    assert_type(penstock.aio.connect(text), AsyncRemoteQueue)
    queue = penstock.open(text)
    assert_type(queue.stats(), Stats)
    assert_type(queue.lease(2, wait_s=1), list[LeasedMessage])
    assert_type(queue.lease_one(), AbstractContextManager[LeasedMessage | None])
    assert_type(queue.browse("ready"), Iterator[Message])
    assert_type(queue.stream(), Iterator[LeasedMessage])
    assert_type(queue.stream(print, idle_s=0), int)
    queue.lease(wait="x")  # type: ignore[call-arg]
    queue.enqueue(b"x", prioritty=3)  # type: ignore[call-arg]
    penstock.open(path, key="k")  # type: ignore[call-overload]


async def what_a_type_checker_sees_of_tasks(path: Path, text: str) -> None:
    """Not called: mypy checks it."""
    assert_type(await penstock.aio.open(path), AsyncQueue)
    queue = await penstock.aio.open(text)
    assert_type(queue, AnyAsyncQueue)
    assert_type(await queue.stats(), Stats)
    assert_type(await queue.lease(), list[LeasedMessage])
    assert_type(queue.lease_one(), AbstractAsyncContextManager[LeasedMessage | None])
    assert_type(queue.browse(), AsyncIterator[Message])
    assert_type(queue.stream(), AsyncIterator[LeasedMessage])
    assert_type(await queue.stream(print, idle_s=0), int)
