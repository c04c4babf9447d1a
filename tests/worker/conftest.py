from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.queue.queue import Queue, open_queue


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Iterator[Queue]:
    settings = {"backoff_base_s": 0, "max_attempts": 2, "sync": "never"}
    with open_queue(str(tmp_path / "queue"), settings, clock=clock) as queue:
        yield queue
