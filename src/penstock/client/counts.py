"""What one client did since it was opened."""

from threading import Lock

from penstock.queue.metrics import Histogram


class Counts:
    """Requests that were answered, those that had to be sent again, and how long answers took."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._answered = 0
        self._retried = 0
        self._took = Histogram()

    def answered(self, duration_ns: int) -> None:
        with self._lock:
            self._answered += 1
            self._took.add(duration_ns)

    def retried(self) -> None:
        with self._lock:
            self._retried += 1

    def snapshot(self) -> dict[str, object]:
        """All of it as plain values."""
        with self._lock:
            return {
                "answered": self._answered,
                "retried": self._retried,
                "answer_s": self._took.percentiles()._asdict(),
            }
