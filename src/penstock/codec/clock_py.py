"""The time that entries are stamped with: the wall clock's, but it never goes back.

Wall clocks step. This one runs with the monotonic clock, so a lease or a backoff lasts as long as
it says; a step forward of the wall clock (a suspended machine, a correction) is followed, so that
what is due at nine is delivered at nine. Every append asks for it: that is why it has a compiled
twin.
"""

from collections.abc import Callable

_LOOK_EVERY_NS = 1_000_000
_STEP_NS = 1_000_000_000  # smaller differences are drift, not steps


class SteadyClock:
    """Unix time that never goes back, over two clocks of which one may."""

    def __init__(self, monotonic_ns: Callable[[], int], wall_ns: Callable[[], int]) -> None:
        self._mono_ns, self._wall_ns = monotonic_ns, wall_ns
        self._offset_ns = wall_ns() - monotonic_ns()
        self._look_at_ns = 0  # when the wall clock is next compared, on the monotonic clock

    def start_after(self, timestamp_ns: int) -> None:
        """Go on from the newest time on record, should the wall clock be behind it."""
        behind_ns = timestamp_ns - self.now_ns()
        if behind_ns > 0:
            self._offset_ns += behind_ns

    def now_ns(self) -> int:
        """This time. May follow a step a little later than `read` does; never before it."""
        clock_ns = self._mono_ns  # a local: a callable in an attribute is slow to call
        mono_ns = clock_ns()
        if mono_ns >= self._look_at_ns:
            self._look_at_ns = mono_ns + _LOOK_EVERY_NS
            return self.read()[0]
        return mono_ns + self._offset_ns

    def read(self) -> tuple[int, int]:
        """This time, and that of the monotonic clock, of the same moment."""
        clock_ns, wall_clock_ns = self._mono_ns, self._wall_ns
        mono_ns, wall_ns = clock_ns(), wall_clock_ns()
        now_ns = mono_ns + self._offset_ns
        if wall_ns - now_ns > _STEP_NS:
            self._offset_ns += wall_ns - now_ns
            now_ns = wall_ns
        return now_ns, mono_ns
