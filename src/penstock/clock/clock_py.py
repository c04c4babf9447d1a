"""The clock, the lock and the gate in plain Python: reference and fallback of `_clock.pyx`."""

from collections.abc import Callable

from penstock.locks import Lock

_COMPARE_EVERY_NS = 1_000_000
_STEP_NS = 1_000_000_000  # smaller differences are drift, not steps


class SteadyClock:
    """Unix time that never goes back. Entries are stamped with it.

    Wall clocks step. This one runs with the monotonic clock, so a lease or a backoff lasts as long
    as it says. It follows a step forward of the wall clock (a suspended machine, a correction), so
    that a message due at nine is delivered at nine.

    It has a compiled twin because every append asks for the time.
    """

    def __init__(self, monotonic_ns: Callable[[], int], wall_ns: Callable[[], int]) -> None:
        self._mono_ns, self._wall_ns = monotonic_ns, wall_ns
        self._offset_ns = wall_ns() - monotonic_ns()
        self._compare_at_ns = 0  # when the wall clock is next compared, on the monotonic clock

    def start_after(self, timestamp_ns: int) -> None:
        """Continue from the newest recorded time, if the wall clock is behind it."""
        behind_ns = timestamp_ns - self.now_ns()
        if behind_ns > 0:
            self._offset_ns += behind_ns

    def now_ns(self) -> int:
        """Return the time. It may follow a step a little later than `read` does, never earlier."""
        clock_ns = self._mono_ns  # a local: calling an attribute that is a callable is slower
        mono_ns = clock_ns()
        if mono_ns >= self._compare_at_ns:
            self._compare_at_ns = mono_ns + _COMPARE_EVERY_NS
            return self.read()[0]
        return mono_ns + self._offset_ns

    def read(self) -> tuple[int, int]:
        """Return the time and the monotonic time of the same moment."""
        clock_ns, wall_clock_ns = self._mono_ns, self._wall_ns
        mono_ns, wall_ns = clock_ns(), wall_clock_ns()
        now_ns = mono_ns + self._offset_ns
        if wall_ns - now_ns > _STEP_NS:
            self._offset_ns += wall_ns - now_ns
            now_ns = wall_ns
        return now_ns, mono_ns


# For `with` only. The compiled one spins for a moment before it sleeps.
AdaptiveLock = Lock


class Gate:
    """A gate between threads, closed at first. Each `open` lets one thread through."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let one thread through: a waiting one, or the next. No effect if it is open."""
        try:
            self._lock.release()  # one call, so that no interrupt leaves it half done
        except RuntimeError:
            pass  # it is open

    def wait(self) -> None:
        """Go through, now or when the gate is opened. Ctrl-C ends the wait."""
        self._lock.acquire()
