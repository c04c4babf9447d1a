"""Both bodies of the clock: never back, a step forward followed, alike on any two clocks."""

import time

import hypothesis.strategies as st
from hypothesis import given

from penstock.clock import SteadyClock, clock_py
from tests.clock.bodies import Body, compiled, each_body, needs_compiled

MS, S = 1_000_000, 1_000_000_000
MOVES = st.tuples(
    st.sampled_from([0, 1, MS - 1, MS, 3 * S]),
    st.integers(-5 * S, 5 * S) | st.sampled_from([0, 1, S, S + 1]),
    st.sampled_from(["now_ns", "read", "start_after"]),
    st.integers(0, 2000 * S),
)


class Machine:
    """Two clocks that are set by hand."""

    def __init__(self) -> None:
        self.mono_ns, self.wall_ns = 5, 1000 * S

    def clock(self, body: Body) -> SteadyClock:
        made: SteadyClock = body.SteadyClock(lambda: self.mono_ns, lambda: self.wall_ns)
        return made


@needs_compiled
@given(st.lists(MOVES, max_size=30))
def test_the_bodies_agree_and_never_go_back(moves: list[tuple[int, int, str, int]]) -> None:
    machine = Machine()
    clocks = machine.clock(clock_py), machine.clock(compiled)
    last_ns = 0
    for passed_ns, stepped_ns, call, argument in moves:
        machine.mono_ns += passed_ns
        machine.wall_ns = max(machine.wall_ns + passed_ns + stepped_ns, 0)
        arguments = (argument,) if call == "start_after" else ()
        first, second = [getattr(clock, call)(*arguments) for clock in clocks]
        assert first == second
        told, again = [clock.read() for clock in clocks]
        assert told == again
        now_ns = told[0]
        assert now_ns >= last_ns
        assert machine.wall_ns - now_ns <= S
        last_ns = now_ns


@each_body
def test_the_clocks_of_the_machine_are_read(body: Body) -> None:
    clock = body.SteadyClock(time.monotonic_ns, time.time_ns)
    before_mono, before_wall = time.monotonic_ns(), time.time_ns()
    now_ns, mono_ns = clock.read()
    later_ns = clock.now_ns()
    assert before_mono <= mono_ns <= time.monotonic_ns()
    assert now_ns <= later_ns
    assert abs(now_ns - before_wall) < 3600 * S
    clock.start_after(now_ns + 7200 * S)
    assert clock.now_ns() >= now_ns + 7200 * S
