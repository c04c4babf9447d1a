"""Counting the batches and rows of a streaming query, of which Spark keeps the last 100 reports."""

from collections import deque
from typing import Any

import pytest

from penstock.cli.spark_run import count_batches


class FakeQuery:
    """A query that runs some batches between two calls, and reports on them as Spark does."""

    def __init__(self, batches: int, *, interrupt_at: int | None = None) -> None:
        self.left = batches
        self.interrupt_at = interrupt_at
        self.next_id = 0
        self.is_stopped = False
        self.recentProgress: deque[dict[str, Any]] = deque(maxlen=100)

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        while self.left:
            for _ in range(min(self.left, 30)):
                self._run_batch()
            if self.next_id == self.interrupt_at:
                raise KeyboardInterrupt
            self._report(0)  # idle: the batch that has this id runs later
            if timeout is not None:
                return False
        return True

    def stop(self) -> None:
        self.is_stopped = True

    def _run_batch(self) -> None:
        self._report(self.next_id + 1)
        self.left -= 1
        self.next_id += 1

    def _report(self, rows: int) -> None:
        self.recentProgress.append({"batchId": self.next_id, "numInputRows": rows})


@pytest.mark.parametrize("batches", [0, 1, 100, 1000])
def test_all_batches_of_a_long_stream_are_counted(batches: int) -> None:
    counted = count_batches(FakeQuery(batches))
    assert counted == {"batches": batches, "rows": batches * (batches + 1) // 2}


def test_ctrl_c_stops_the_query_and_counts_the_batches_until_then() -> None:
    query = FakeQuery(1000, interrupt_at=300)
    assert count_batches(query) == {"batches": 300, "rows": 300 * 301 // 2}
    assert query.is_stopped
