"""A manual clock that knows who waits, so that tests with threads need not sleep."""

from threading import Condition

from penstock.clock import ManualClock


class SteppedClock(ManualClock):
    """Tells how many waits have begun; the test goes on when the thread is really waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0
        self._began = Condition()

    def wait(self, condition: Condition, timeout_s: float | None) -> None:
        with self._began:
            self.waits += 1
            self._began.notify_all()
        super().wait(condition, timeout_s)

    def until_waiting(self, waits: int) -> None:
        """Return when so many waits have begun in all.

        Whoever waits holds its condition until it really does, and `advance` and every publish
        take that condition: what the test does next is seen.
        """
        with self._began:
            assert self._began.wait_for(lambda: self.waits >= waits, timeout=60)
