from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.queue.queue import Queue, open_queue
from tests.harness.virtual_loop import LoopClock


@pytest.fixture
def clock() -> LoopClock:
    return LoopClock()


@pytest.fixture
def queue(tmp_path: Path, clock: LoopClock) -> Iterator[Queue]:
    settings = {"backoff_base_s": 0, "max_attempts": 2, "sync": "never"}
    with open_queue(str(tmp_path / "queue"), settings, clock=clock) as queue:
        yield queue
