"""One round of syncs for all; an answer only when its queue is on disk."""

import asyncio
from collections.abc import Callable
from functools import partial
from threading import Barrier, Event, current_thread, main_thread

import pytest

from penstock.broker.embedded.commit_loop import MOST_THREADS, CommitLoop, SyncThreads
from penstock.clock import SystemClock
from penstock.errors import LedgerStopped


class Disk:
    """Something to sync, under the test's control."""

    def __init__(self) -> None:
        self.count = 0
        self.may_end = Event()
        self.may_end.set()
        self.error: Exception | None = None

    def syncs(self) -> list[Callable[[], None]]:
        return [self._sync]

    def _sync(self) -> None:
        self.count += 1
        self.may_end.wait(30)
        if self.error is not None:
            raise self.error


def test_those_who_come_during_a_round_share_the_next() -> None:
    rounds: list[int] = []

    async def story() -> None:
        disk = Disk()
        commits = CommitLoop(SystemClock(), lambda seconds, answers: rounds.append(answers))
        disk.may_end.clear()
        first = commits.when_durable(disk, 1)
        while not disk.count:
            await asyncio.sleep(0)
        later = [commits.when_durable(disk, number) for number in range(2, 50)]
        assert not first.done()
        disk.may_end.set()
        assert await asyncio.gather(first, *later) == list(range(1, 50))
        assert disk.count == 2
        await commits.close()

    asyncio.run(story())
    assert rounds == [1, 48]


def test_queues_of_one_round_are_synced_side_by_side() -> None:
    async def story() -> None:
        commits = CommitLoop(SystemClock(), lambda seconds, answers: None)
        disks = [Disk() for _ in range(4)]
        for disk in disks:
            disk.may_end.clear()
        answers = [commits.when_durable(disk, None) for disk in disks]
        while not all(disk.count for disk in disks):  # all are in a sync at the same time
            await asyncio.sleep(0)
        for disk in disks:
            disk.may_end.set()
        await asyncio.gather(*answers)
        await commits.close()

    asyncio.run(story())


def test_a_failed_sync_fails_its_own_waiters_only() -> None:
    async def story() -> None:
        commits = CommitLoop(SystemClock(), lambda seconds, answers: None)
        good, bad = Disk(), Disk()
        bad.error = LedgerStopped("the disk is broken")
        fine = commits.when_durable(good, "fine")
        failed = [commits.when_durable(bad, "never") for _ in range(2)]
        assert await fine == "fine"
        for one in failed:
            with pytest.raises(LedgerStopped, match="broken"):
                await one
        await commits.close()

    asyncio.run(story())


def test_the_parts_of_a_queue_are_synced_side_by_side_and_all_must_succeed() -> None:
    class Behaviours:
        """Two files; a sync of one ends when the other has begun."""

        def __init__(self) -> None:
            self.begun = [Event(), Event()]

        def syncs(self) -> list[Callable[[], None]]:
            return [self._first, self._second]

        def _first(self) -> None:
            self.begun[0].set()
            assert self.begun[1].wait(30)

        def _second(self) -> None:
            self.begun[1].set()
            assert self.begun[0].wait(30)
            raise LedgerStopped("the second is broken")

    async def story() -> None:
        commits = CommitLoop(SystemClock(), lambda seconds, answers: None)
        with pytest.raises(LedgerStopped, match="second"):
            await commits.when_durable(Behaviours(), None)
        await commits.close()

    asyncio.run(story())


def test_what_nobody_waits_for_any_more_goes_to_on_lost_once_it_is_durable() -> None:
    async def story() -> list[str]:
        lost: list[str] = []
        commits = CommitLoop(SystemClock(), lambda seconds, answers: None)
        disk = Disk()
        commits.when_durable(disk, "leased", on_lost=lost.append).cancel()
        assert lost == []
        await commits.when_durable(disk, None)
        await commits.close()
        return lost

    assert asyncio.run(story()) == ["leased"]


def test_closing_answers_all_who_wait() -> None:
    async def story() -> None:
        commits = CommitLoop(SystemClock(), lambda seconds, answers: None)
        answer = commits.when_durable(Disk(), "there")
        await commits.close()
        assert answer.done()
        assert answer.result() == "there"

    asyncio.run(story())


class Told:
    """A pending call that keeps what it is told."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.results: list[object] = []
        self.errors: list[BaseException] = []
        self._is_broken = is_broken

    def succeed(self, result: object) -> None:
        self.results.append(result)
        if self._is_broken:
            raise RuntimeError("a defect")

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)


def test_pending_calls_are_told_when_their_round_is_over_and_not_before() -> None:
    async def story() -> None:
        commits = CommitLoop(SystemClock(), lambda seconds, answers: None)
        disk, bad = Disk(), Disk()
        bad.error = LedgerStopped("the disk is broken")
        disk.may_end.clear()
        first, failed = Told(), Told()
        commits.tell_when_durable(disk, first, "first", 100)
        commits.tell_when_durable(bad, failed, "never", 10)
        while not disk.count:
            await asyncio.sleep(0)
        assert (first.results, commits.held_bytes) == ([], 110)
        disk.may_end.set()
        await commits.drained()
        assert (first.results, first.errors) == (["first"], [])
        assert failed.results == []
        assert [type(error) for error in failed.errors] == [LedgerStopped]
        assert commits.held_bytes == 0
        await commits.close()

    asyncio.run(story())


def test_a_pending_call_that_fails_keeps_nobody_from_being_told() -> None:
    async def story() -> None:
        commits = CommitLoop(SystemClock(), lambda seconds, answers: None)
        disk, broken, fine = Disk(), Told(is_broken=True), Told()
        commits.tell_when_durable(disk, broken, 1)
        commits.tell_when_durable(disk, fine, 2)
        future = commits.when_durable(disk, 3)
        assert await future == 3
        assert (broken.results, fine.results) == ([1], [2])
        await commits.close()

    asyncio.run(story())


# -- threads ---------------------------------------------------------------------------------------


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
