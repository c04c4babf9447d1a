"""The time a queue lives by.

Wall clocks step. This one runs with the monotonic clock, so a lease or a backoff lasts as long as
it says, and never goes back; a step forward of the wall clock (a suspended machine, a correction)
is followed, so that what is due at nine is delivered at nine.
"""

from penstock.clock import Clock

_STEP_NS = 1_000_000_000  # smaller differences are drift, not steps


class QueueClock:
    """Unix time that never goes back, over a clock that may."""

    def __init__(self, clock: Clock) -> None:
        self._mono_ns, self._wall_ns = clock.monotonic_ns, clock.now_ns
        self._offset_ns = clock.now_ns() - clock.monotonic_ns()
        self.monotonic_ns = clock.monotonic_ns
        self.wait = clock.wait

    def start_after(self, timestamp_ns: int) -> None:
        """Go on from the newest time on record, should the wall clock be behind it."""
        behind_ns = timestamp_ns - self.now_ns()
        if behind_ns > 0:
            self._offset_ns += behind_ns

    def now_ns(self) -> int:
        return self.read()[0]

    def read(self) -> tuple[int, int]:
        """This time, and that of the monotonic clock, of the same moment."""
        mono_ns, wall_ns = self._mono_ns(), self._wall_ns()
        now_ns = mono_ns + self._offset_ns
        if wall_ns - now_ns > _STEP_NS:
            self._offset_ns += wall_ns - now_ns
            now_ns = wall_ns
        return now_ns, mono_ns
