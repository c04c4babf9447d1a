"""Interrupting a handler: never inside a queue, and never the next call."""

import asyncio
import threading
import traceback
from typing import Any

import pytest

from penstock.queue.queue import Queue
from penstock.worker.calling import caller_of


class Interrupt(BaseException):
    pass


def test_a_thread_is_not_interrupted_inside_a_queue(queue: Queue) -> None:
    """The handler waits in a queue when its time is over. It comes out of it as usual, and is
    interrupted then."""
    leased: list[Any] = []
    tick = threading.Event()

    def handle(_: object) -> None:
        leased.extend(queue.lease(1, wait_s=100))
        while True:
            tick.wait(0.001)

    async def main() -> BaseException | None:
        caller = caller_of(handle, 1)
        ended: asyncio.Future[BaseException | None] = asyncio.Future()
        running = caller.start(None, ended.set_result)
        while not queue.core.waiting_threads:
            await asyncio.sleep(0)
        running.interrupt(Interrupt)
        await asyncio.sleep(0.05)  # it may be tried some times
        assert not ended.done()
        queue.enqueue(b"x")
        await ended
        caller.close()
        return ended.result()

    error = asyncio.run(main())
    assert isinstance(error, Interrupt)
    assert len(leased) == 1
    where = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert not any("penstock/queue" in name or "penstock/ledger" in name for name in where)


@pytest.mark.parametrize("work", [0, 3, 30], ids=["none", "little", "some"])
def test_an_interrupt_never_comes_to_the_next_call(work: int) -> None:
    """Calls end by themselves when they are interrupted, or just before, or just after."""
    kinds = [type(f"Interrupt{number}", (BaseException,), {}) for number in range(300)]

    returned: list[object] = []

    def handle(number: object) -> None:
        for _ in range(work):
            threading.get_ident()
        returned.append(number)

    async def main() -> None:
        caller = caller_of(handle, 1)
        for number, kind in enumerate(kinds):
            ended: asyncio.Future[BaseException | None] = asyncio.Future()
            running = caller.start(number, ended.set_result)
            for _ in range(number % 4):
                await asyncio.sleep(0)
            running.interrupt(kind)
            error = await ended
            assert error is None or type(error) is kind
            assert error is not None or returned[-1] == number
        caller.close()

    asyncio.run(main())
