"""A gate lets one thread through for each opening, and Ctrl-C ends the waiting: both bodies."""

import signal
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from types import FrameType

import pytest

from penstock.clock.clock_py import Gate
from tests.clock.bodies import Body, each_body

DEADLINE_S = 30
SIGNAL_AFTER_S = 0.05
pytestmark = each_body


class Interrupted(Exception):
    pass


@pytest.fixture(autouse=True)
def _alarm_raises() -> Iterator[None]:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


def assert_closed(gate: Gate) -> None:
    """Wait at the gate until a signal handler raises. An open gate lets us through before that."""
    with pytest.raises(Interrupted):
        signal.setitimer(signal.ITIMER_REAL, SIGNAL_AFTER_S)
        try:
            gate.wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def test_a_new_gate_is_closed(body: Body) -> None:
    assert_closed(body.Gate())


def test_an_opening_lets_one_through_and_it_closes_behind(body: Body) -> None:
    gate = body.Gate()
    gate.open()
    gate.wait()
    assert_closed(gate)


def test_opening_an_open_gate_lets_no_second_one_through(body: Body) -> None:
    gate = body.Gate()
    gate.open()
    gate.open()
    gate.wait()
    assert_closed(gate)


def test_those_who_wait_go_through_one_for_each_opening(body: Body) -> None:
    gate = body.Gate()
    with ThreadPoolExecutor(20) as threads:
        waiting = {threads.submit(gate.wait) for _ in range(20)}
        while waiting:
            gate.open()
            done, waiting = wait(waiting, DEADLINE_S, FIRST_COMPLETED)
            assert len(done) == 1
    assert_closed(gate)


def test_a_signal_handler_that_raises_ends_the_waiting_and_the_gate_still_works(
    body: Body,
) -> None:
    gate = body.Gate()
    assert_closed(gate)
    gate.open()
    gate.wait()
