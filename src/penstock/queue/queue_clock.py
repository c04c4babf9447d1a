"""The time a queue lives by."""

from penstock.clock import Clock, SteadyClock


class QueueClock(SteadyClock):
    """Unix time that never goes back, over a clock that may."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock.monotonic_ns, clock.now_ns)
        self.monotonic_ns = clock.monotonic_ns
        self.wait = clock.wait
