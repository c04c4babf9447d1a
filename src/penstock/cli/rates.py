"""How fast queues move: what changed between two looks."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.cli.places import QueueRow
from penstock.clock import Clock
from penstock.model import NS, Stats


class RowWithRates(NamedTuple):
    """A queue, and what happened a second since the last look; None at the first."""

    row: QueueRow
    published_per_s: float | None
    acked_per_s: float | None


class Rates:
    """Remembers the last look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[str, tuple[int, Stats]] = {}

    def of(self, rows: Sequence[QueueRow]) -> list[RowWithRates]:
        """The rows with their rates, the busiest first."""
        now_ns = self._clock.monotonic_ns()
        found = [self._row(row, now_ns) for row in rows]
        self._last = {row.queue: (now_ns, row.stats) for row in rows if row.stats is not None}
        return sorted(found, key=_busyness)

    def _row(self, row: QueueRow, now_ns: int) -> RowWithRates:
        before = self._last.get(row.queue)
        if before is None or row.stats is None or now_ns == before[0]:
            return RowWithRates(row, None, None)
        seconds, stats = (now_ns - before[0]) / NS, before[1]
        return RowWithRates(
            row,
            max(row.stats.published - stats.published, 0) / seconds,
            max(row.stats.acked - stats.acked, 0) / seconds,
        )


def _busyness(one: RowWithRates) -> tuple[float, int, str]:
    stats = one.row.stats
    waiting = 0 if stats is None else stats.ready + stats.leased
    return -((one.published_per_s or 0) + (one.acked_per_s or 0)), -waiting, one.row.queue
