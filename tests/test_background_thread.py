"""Background threads that are started under a lock."""

from _thread import start_new_thread
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event

import pytest

from penstock import background_thread
from penstock.background_thread import BackgroundThread
from tests.harness.interrupts import Interrupter


def test_the_function_runs_once_however_often_the_thread_is_started() -> None:
    runs: SimpleQueue[int] = SimpleQueue()
    go_on = Event()

    def run() -> None:
        runs.put(1)
        go_on.wait(60)

    thread = BackgroundThread(run)
    for _ in range(5):
        thread.start()
    go_on.set()
    thread.join()
    thread.start()
    thread.join()
    assert runs.qsize() == 1


def test_a_thread_that_ended_before_it_began_is_started_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = Event()
    thread = BackgroundThread(ran.set)
    starts: list[Callable[[], None]] = []
    monkeypatch.setattr(background_thread, "start_new_thread", lambda work, _: starts.append(work))
    thread.start()  # an interrupt meant for us ends the new thread at once
    monkeypatch.setattr(background_thread, "start_new_thread", start_new_thread)
    thread.start()
    assert ran.wait(60)
    assert starts


def test_what_no_thread_began_is_done_by_who_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Event()
    thread = BackgroundThread(ran.set)
    monkeypatch.setattr(background_thread, "start_new_thread", lambda *_: None)
    thread.start()
    thread.join()
    assert ran.is_set()


@pytest.mark.timeout(30)
def test_a_join_that_was_interrupted_anywhere_can_be_repeated() -> None:
    """No interrupt leaves the lock of the thread taken, and what it was to do is done."""

    def joined(at: int | None) -> Interrupter:
        ran: list[int] = []
        thread = BackgroundThread(lambda: ran.append(1))
        interrupter = Interrupter(at)
        try:
            interrupter.run(thread.join)
        except KeyboardInterrupt:
            pass
        thread.join()
        assert ran, interrupter.where
        return interrupter

    points = joined(None).points
    assert points
    assert all(joined(at).where for at in range(1, points + 1))
