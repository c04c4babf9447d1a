"""Group commit: whoever waits for the disk shares one sync, and its failure."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread

import pytest

from penstock.errors import LedgerClosed, LedgerError, LedgerStopped
from penstock.ledger.commit import GroupCommit
from tests.ledger.store import MODES, SMALL, Store, seqs
from tests.ledger.watched_files import WatchedFiles

DEADLINE_S = 30
WAITERS = 50


class Countdown:
    """An event that is set when so many have come."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = Lock()
        self.event = Event()

    def come(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.event.set()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Store, WatchedFiles]]:
    """A ledger with "always", and the files that its syncs go to."""
    files = WatchedFiles()
    store = Store(
        tmp_path / "queue", replace(SMALL, sync="always", segment_bytes=1 << 20), files=files
    )
    store.fill(1)
    files.calls.clear()
    yield store, files
    store.close()


def run_threads(do: Callable[[int], None], count: int) -> None:
    threads = [Thread(target=do, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "it hangs"


# -- sharing ---------------------------------------------------------------------------------------


def test_threads_that_wait_share_a_sync(slow: tuple[Store, WatchedFiles]) -> None:
    """The first syncs for itself; meanwhile all others have come, and the second sync is theirs."""
    store, files = slow
    all_have_appended = Countdown(WAITERS)
    files.before_fdatasync = lambda: all_have_appended.event.wait(DEADLINE_S) and None

    def append(number: int) -> None:
        store.messages.append(b"%d" % number)
        all_have_appended.come()
        store.ledger.commit()

    run_threads(append, WAITERS)
    assert files.calls["fdatasync"] == 2
    assert len(seqs(store.messages)) == WAITERS + 1


def test_tasks_that_wait_share_a_sync(slow: tuple[Store, WatchedFiles]) -> None:
    store, files = slow
    all_have_appended = Countdown(WAITERS)
    files.before_fdatasync = lambda: all_have_appended.event.wait(DEADLINE_S) and None

    async def append(number: int) -> None:
        store.messages.append(b"%d" % number)
        all_have_appended.come()
        answer = store.ledger.commit_async()
        assert answer is not None
        await answer

    async def main() -> None:
        await asyncio.gather(*(append(number) for number in range(WAITERS)))

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
    assert files.calls["fdatasync"] <= 2
    assert len(seqs(store.messages)) == WAITERS + 1


def test_threads_and_tasks_of_several_loops_share_a_sync(
    slow: tuple[Store, WatchedFiles],
) -> None:
    store, files = slow
    all_have_appended = Countdown(30)
    files.before_fdatasync = lambda: all_have_appended.event.wait(DEADLINE_S) and None

    def append_and_wait(number: int) -> None:
        async def append() -> None:
            store.messages.append(b"%d" % number)
            all_have_appended.come()
            await (store.ledger.commit_async() or asyncio.sleep(0))

        async def main() -> None:
            await asyncio.gather(*(append() for _ in range(5)))

        if number % 2:
            asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
        else:
            for _ in range(5):
                store.messages.append(b"%d" % number)
                all_have_appended.come()
            store.ledger.commit()

    run_threads(append_and_wait, 6)
    assert files.calls["fdatasync"] == 2
    assert len(seqs(store.messages)) == 31


def test_an_answer_comes_only_after_a_sync_that_began_after_the_append(
    slow: tuple[Store, WatchedFiles],
) -> None:
    """Who comes during a sync waits for the next."""
    store, files = slow
    syncing, go_on, answered = Event(), Event(), Event()

    def be_slow() -> None:
        syncing.set()
        go_on.wait(DEADLINE_S)

    files.before_fdatasync = be_slow
    first = Thread(target=store.fill, args=(1,), daemon=True)
    first.start()
    assert syncing.wait(DEADLINE_S)
    files.before_fdatasync = lambda: None

    def late() -> None:
        store.messages.append(b"late")
        store.ledger.commit()
        answered.set()

    second = Thread(target=late, daemon=True)
    second.start()
    assert not answered.wait(0.05)
    assert seqs(store.messages) == [1], "what is not durable is not shown"
    go_on.set()
    assert answered.wait(DEADLINE_S)
    assert files.calls["fdatasync"] == 2
    assert seqs(store.messages) == [1, 2, 3]
    first.join(DEADLINE_S)
    second.join(DEADLINE_S)


def test_nothing_to_sync_costs_no_sync(slow: tuple[Store, WatchedFiles]) -> None:
    store, files = slow
    for _ in range(5):
        store.ledger.commit()
        store.ledger.sync()
    assert files.calls["fdatasync"] == 0


def test_syncs_side_by_side_leave_nothing_to_sync(slow: tuple[Store, WatchedFiles]) -> None:
    """One call for each log that has something to sync, messages first."""
    store, files = slow
    store.ledger.events.append(b"0")
    store.ledger.sync()
    files.calls.clear()
    store.messages.append(b"a")
    (only,) = store.ledger.syncs()
    only()
    assert files.calls["fdatasync"] == 1
    store.messages.append(b"b")
    store.ledger.events.append(b"c")
    both = store.ledger.syncs()
    assert len(both) == 2
    both[0]()
    assert (store.messages.needs_sync, store.ledger.events.needs_sync) == (False, True)
    both[1]()
    assert files.calls["fdatasync"] == 3
    assert not store.messages.needs_sync
    assert not store.ledger.events.needs_sync


def test_a_stopped_ledger_says_so_though_there_is_nothing_to_sync(
    slow: tuple[Store, WatchedFiles],
) -> None:
    store, files = slow

    files.before_fdatasync = fail
    store.messages.append(b"a")
    for _ in range(2):
        with pytest.raises(LedgerStopped):
            for sync in store.ledger.syncs():
                sync()


def test_one_thread_alone_syncs_once_an_append(slow: tuple[Store, WatchedFiles]) -> None:
    store, files = slow
    for _ in range(20):
        store.fill(1)
    assert files.calls["fdatasync"] == 20


# -- failing ---------------------------------------------------------------------------------------


def fail() -> None:
    raise OSError(5, "Input/output error")


def test_a_failed_sync_fails_every_waiter_and_everything_after(
    slow: tuple[Store, WatchedFiles],
) -> None:
    store, files = slow
    all_have_appended = Countdown(WAITERS)

    def wait_and_fail() -> None:
        all_have_appended.event.wait(DEADLINE_S)
        fail()

    files.before_fdatasync = wait_and_fail
    errors: list[BaseException] = []

    def append(number: int) -> None:
        store.messages.append(b"%d" % number)
        all_have_appended.come()
        try:
            store.ledger.commit()
        except LedgerStopped as error:
            errors.append(error)

    run_threads(append, WAITERS)
    assert len(errors) == WAITERS
    assert "Input/output error" in str(errors[0])
    assert "close and reopen" in str(errors[0])
    files.before_fdatasync = lambda: None
    for use in (
        lambda: store.messages.append(b"after"),
        lambda: store.events.append(b"after"),
        store.ledger.commit,
        store.ledger.sync,
        store.ledger.rest,
        lambda: store.ledger.save_snapshot(1, b""),
        lambda: store.ledger.save_queue_settings({}),
    ):
        with pytest.raises(LedgerStopped):
            use()
    assert files.calls["fdatasync"] == 1, "it is not tried again"
    assert seqs(store.messages) == [1], "what was durable can still be read"


class SpiedLock:
    """Tells when someone finds it taken."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.found_taken = Event()

    def acquire(self, blocking: bool = True) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self.found_taken.set()
        return blocking and self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()


@pytest.mark.parametrize("mode", MODES)
def test_no_segment_is_sealed_beside_a_sync_that_fails(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells a failure once per open file: of two syncs at a time, the other succeeds."""
    files = WatchedFiles()
    spied = SpiedLock()
    locks: list[object] = [spied]
    monkeypatch.setattr(
        "penstock.ledger.log.new_sync_lock", lambda: locks.pop() if locks else Lock()
    )
    store = Store(tmp_path / "queue", MODES[mode], files=files)
    store.fill(10)
    store.ledger.sync()
    log = store.messages
    syncing = Event()

    def first_waits_and_fails() -> None:
        if not syncing.is_set():
            syncing.set()
            assert spied.found_taken.wait(DEADLINE_S)
            fail()

    files.before_fdatasync = first_waits_and_fails
    log.append(b"in doubt")
    outcomes: list[object] = []

    def sync() -> None:
        try:
            log.sync()
        except LedgerStopped as error:
            outcomes.append(error)

    def append_behind_the_end_of_the_segment() -> None:
        try:
            outcomes.append(log.append(b"x" * 3000))
        except LedgerStopped as error:
            outcomes.append(error)

    first = Thread(target=sync, daemon=True)
    first.start()
    assert syncing.wait(DEADLINE_S)
    second = Thread(target=append_behind_the_end_of_the_segment, daemon=True)
    second.start()
    for thread in (first, second):
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "it hangs"
    assert [type(outcome) for outcome in outcomes] == [LedgerStopped, LedgerStopped]
    assert len(store.segments()) == 1
    assert log.durable_next_seq == 11
    files.before_fdatasync = lambda: None
    store.close()


def test_a_failed_sync_fails_every_task(slow: tuple[Store, WatchedFiles]) -> None:
    store, files = slow
    files.before_fdatasync = fail

    async def append() -> str:
        store.messages.append(b"")
        try:
            await (store.ledger.commit_async() or asyncio.sleep(0))
        except LedgerStopped:
            return "stopped"
        return "durable"

    async def main() -> list[str]:
        return await asyncio.gather(*(append() for _ in range(10)), return_exceptions=False)

    assert asyncio.run(asyncio.wait_for(main(), DEADLINE_S)) == ["stopped"] * 10


def test_after_a_failed_sync_reopening_shows_what_is_there(
    slow: tuple[Store, WatchedFiles],
) -> None:
    store, files = slow
    files.before_fdatasync = fail
    with pytest.raises(LedgerStopped):
        store.fill(1)
    files.before_fdatasync = lambda: None
    store.reopen()
    next_seq = store.messages.next_seq
    store.fill(1)
    assert seqs(store.messages) == list(range(1, next_seq + 1))


def test_a_refusal_during_a_sync_stays(slow: tuple[Store, WatchedFiles]) -> None:
    """The other log failed meanwhile: the end of this sync must not open the gate again."""
    store, files = slow
    files.before_fdatasync = lambda: store.messages.refuse(LedgerStopped("the other log"))
    store.messages.append(b"")
    store.ledger.commit()
    files.before_fdatasync = lambda: None
    with pytest.raises(LedgerStopped):
        store.messages.append(b"")


# -- giving up -------------------------------------------------------------------------------------


def test_cancelling_one_task_does_not_disturb_the_others(
    slow: tuple[Store, WatchedFiles],
) -> None:
    store, files = slow
    go_on = Event()
    files.before_fdatasync = lambda: go_on.wait(DEADLINE_S) and None

    async def append() -> str:
        store.messages.append(b"")
        await (store.ledger.commit_async() or asyncio.sleep(0))
        return "durable"

    async def main() -> list[object]:
        tasks = [asyncio.create_task(append()) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[3].cancel()
        await asyncio.sleep(0)
        go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
    cancelled = [isinstance(answer, asyncio.CancelledError) for answer in answers]
    assert cancelled == [True, False, False, True, False]
    assert answers.count("durable") == 3
    assert len(seqs(store.messages)) == 6


def test_a_loop_that_ended_does_not_disturb_the_others(slow: tuple[Store, WatchedFiles]) -> None:
    store, files = slow
    syncing, go_on = Event(), Event()

    def be_slow() -> None:
        syncing.set()
        go_on.wait(DEADLINE_S)

    files.before_fdatasync = be_slow
    loop = asyncio.new_event_loop()

    async def ask() -> None:
        store.messages.append(b"")
        store.ledger.commit_async()

    loop.run_until_complete(ask())
    loop.close()
    assert syncing.wait(DEADLINE_S)
    files.before_fdatasync = lambda: None
    go_on.set()
    store.fill(1)
    assert len(seqs(store.messages)) == 3


class Broken(BaseException):
    """What a signal handler may raise anywhere, like KeyboardInterrupt."""


def test_an_interrupted_leader_leaves_nobody_waiting() -> None:
    """Ctrl-C reaches the thread that syncs for all."""
    come = Countdown(3)
    calls: list[int] = []

    def sync() -> None:
        calls.append(1)
        if len(calls) == 1:
            come.event.wait(DEADLINE_S)
            raise Broken

    group = GroupCommit(sync)
    answers: list[str] = []

    def lead() -> None:
        try:
            group.wait()
        except Broken:
            answers.append("interrupted")

    leader = Thread(target=lead, daemon=True)
    leader.start()

    def follow(number: int) -> None:
        come.come()
        try:
            group.wait()
            answers.append("durable")
        except LedgerError:
            answers.append("not known")

    run_threads(follow, 3)
    leader.join(DEADLINE_S)
    assert answers.count("interrupted") == 1
    assert len(answers) == 4
    group.wait()
    group.close()


def test_tasks_of_the_round_after_the_close_are_answered() -> None:
    syncing, go_on = Event(), Event()

    def sync() -> None:
        syncing.set()
        go_on.wait(DEADLINE_S)

    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        group = GroupCommit(sync)
        first = group.wait_async()
        await loop.run_in_executor(None, syncing.wait, DEADLINE_S)
        second = group.wait_async()
        closing = loop.run_in_executor(None, group.close)
        while not group.is_closed:
            await asyncio.sleep(0)
        go_on.set()
        answers = await asyncio.gather(first, second, return_exceptions=True)
        await closing
        with pytest.raises(LedgerClosed):
            group.wait_async()
        return list(answers)

    first, second = asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
    assert first is None
    assert second is None or isinstance(second, LedgerError)


def test_outside_of_always_there_is_nothing_to_wait_for(any_store: Store) -> None:
    any_store.fill(1)
    if any_store.settings.sync != "always":
        assert any_store.ledger.commit_async() is None


# -- closing ---------------------------------------------------------------------------------------


def test_what_was_appended_before_a_close_is_durable_after_it(
    slow: tuple[Store, WatchedFiles],
) -> None:
    """Another thread closes the ledger between an append and its commit."""
    store, files = slow
    ledger, seq = store.ledger, store.messages.append(b"x")
    store.close()
    assert files.calls["fdatasync"] > 0
    ledger.commit()
    assert seq in seqs(store.messages)
    with pytest.raises(LedgerClosed):
        ledger.messages.append(b"y")


def test_a_commit_waits_for_a_close_that_is_under_way(slow: tuple[Store, WatchedFiles]) -> None:
    store, files = slow
    ledger = store.ledger
    ledger.messages.append(b"x")
    is_closing, committed, outcomes = Event(), Event(), list[str]()

    def commit() -> None:
        is_closing.wait(DEADLINE_S)
        ledger.commit()
        outcomes.append("durable")
        committed.set()

    def sync_slowly() -> None:
        is_closing.set()
        outcomes.append("synced")

    files.before_fdatasync = sync_slowly
    run_threads(lambda number: commit() if number else store.close(), 2)
    assert committed.is_set()
    assert outcomes[0] == "synced" and outcomes[-1] == "durable"


def test_a_commit_after_a_close_that_failed_says_so(slow: tuple[Store, WatchedFiles]) -> None:
    store, files = slow
    ledger = store.ledger
    ledger.messages.append(b"x")

    def fail() -> None:
        raise OSError(5, "broken")

    files.before_fdatasync = fail
    with pytest.raises(LedgerError):
        ledger.close()
    files.before_fdatasync = lambda: None
    with pytest.raises(LedgerStopped, match="may not be on disk"):
        ledger.commit()
