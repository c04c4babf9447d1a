"""Work beside the loop: all of it is done, side by side up to a number, and the loop is told."""

import asyncio
from functools import partial
from threading import Barrier, Event, current_thread, main_thread

from penstock.broker.embedded.sync_threads import MOST_THREADS, SyncThreads


def test_what_work_returned_comes_back_in_the_loop() -> None:
    async def story() -> None:
        threads = SyncThreads(asyncio.get_running_loop())
        failure = OSError("broken")
        outcomes: asyncio.Queue[Exception | None] = asyncio.Queue()

        def work(outcome: Exception | None) -> Exception | None:
            assert current_thread() is not main_thread()
            return outcome

        def done(outcome: Exception | None) -> None:
            assert current_thread() is main_thread()
            outcomes.put_nowait(outcome)

        for expected in (None, failure, None):  # the same thread, again and again
            threads.run(partial(work, expected), done)
            assert await outcomes.get() is expected
        threads.close()

    asyncio.run(story())


def test_as_many_run_side_by_side_as_may() -> None:
    async def story() -> None:
        threads = SyncThreads(asyncio.get_running_loop())
        all_at_once = Barrier(MOST_THREADS)
        ended: asyncio.Queue[Exception | None] = asyncio.Queue()

        def work() -> None:
            all_at_once.wait(30)

        for _ in range(MOST_THREADS):
            threads.run(work, ended.put_nowait)
        for _ in range(MOST_THREADS):
            await ended.get()
        threads.close()

    asyncio.run(story())


def test_what_is_more_than_may_run_at_once_waits_for_its_turn() -> None:
    async def story() -> None:
        threads = SyncThreads(asyncio.get_running_loop())
        may_end = Event()
        begun: list[int] = []
        ended: asyncio.Queue[Exception | None] = asyncio.Queue()

        def work(number: int) -> None:
            begun.append(number)
            may_end.wait(30)

        for number in range(3 * MOST_THREADS):
            threads.run(partial(work, number), ended.put_nowait)
        while len(begun) < MOST_THREADS:
            await asyncio.sleep(0)
        assert sorted(begun) == list(range(MOST_THREADS))
        may_end.set()
        for _ in range(3 * MOST_THREADS):
            await ended.get()
        assert sorted(begun) == list(range(3 * MOST_THREADS))
        threads.close()

    asyncio.run(story())
