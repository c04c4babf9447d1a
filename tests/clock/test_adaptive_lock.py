"""An adaptive lock excludes other threads. An interrupted wait acquires nothing. Both bodies."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import FrameType

import pytest

from tests.clock.bodies import Body, each_body

DEADLINE_S = 30
SIGNAL_AFTER_S = 0.05
THREADS, TURNS = 16, 200
pytestmark = each_body


class Interrupted(Exception):
    pass


@pytest.fixture
def _alarm_raises() -> Iterator[None]:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


def test_one_thread_at_a_time_is_inside(body: Body) -> None:
    lock, inside, most = body.AdaptiveLock(), [0], [0]
    start = Barrier(THREADS, timeout=DEADLINE_S)

    def work() -> None:
        start.wait()
        for _ in range(TURNS):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    with ThreadPoolExecutor(THREADS) as threads:
        for done in [threads.submit(work) for _ in range(THREADS)]:
            done.result(DEADLINE_S)
    assert (most, inside) == ([1], [0])


@pytest.mark.usefixtures("_alarm_raises")
def test_a_signal_handler_that_raises_ends_the_wait_without_the_lock(body: Body) -> None:
    lock = body.AdaptiveLock()
    entered = False
    with ThreadPoolExecutor(1) as threads, lock:
        with pytest.raises(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, SIGNAL_AFTER_S)
            with lock:
                entered = True
        assert not entered
        waiting = threads.submit(lock.__enter__)
        assert not waiting.done()
        lock.__exit__(None, None, None)
        waiting.result(DEADLINE_S)  # `with` below releases what this thread acquired


def test_an_error_in_the_block_releases_the_lock(body: Body) -> None:
    lock = body.AdaptiveLock()
    for _ in range(2):
        with pytest.raises(ValueError, match="inside"), lock:
            raise ValueError("inside")
