"""A gate lets one thread through for each opening, and Ctrl-C ends the waiting: both bodies."""

import signal
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from threading import get_ident
from types import FrameType

import pytest

from tests.codec.bodies import Body, each_body

DEADLINE_S = 30
pytestmark = each_body


def test_a_new_gate_is_closed(body: Body) -> None:
    assert not body.Gate().pass_now()


def test_an_opening_lets_one_through_and_it_closes_behind(body: Body) -> None:
    gate = body.Gate()
    gate.open()
    assert gate.pass_now()
    assert not gate.pass_now()


def test_opening_an_open_gate_lets_no_second_one_through(body: Body) -> None:
    gate = body.Gate()
    gate.open()
    gate.open()
    gate.wait()
    assert not gate.pass_now()


def test_those_who_wait_go_through_one_for_each_opening(body: Body) -> None:
    gate = body.Gate()
    with ThreadPoolExecutor(20) as threads:
        waiting = {threads.submit(gate.wait) for _ in range(20)}
        while waiting:
            gate.open()
            done, waiting = wait(waiting, DEADLINE_S, FIRST_COMPLETED)
            assert len(done) == 1
    assert not gate.pass_now()


def test_a_signal_handler_that_raises_ends_the_waiting_and_the_gate_still_works(
    body: Body,
) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    gate = body.Gate()
    main = get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with ThreadPoolExecutor(1) as threads, pytest.raises(Interrupted):
            threads.submit(signal.pthread_kill, main, signal.SIGUSR1)
            gate.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    gate.open()
    gate.wait()
