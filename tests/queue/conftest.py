"""A queue for each test, in memory, with a clock that moves only when told to."""

from collections.abc import Iterator

import pytest

from penstock.clock import ManualClock
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore


@pytest.fixture
def store() -> Iterator[QueueStore]:
    store = QueueStore()
    yield store
    store.close()


@pytest.fixture
def queue(store: QueueStore) -> Queue:
    return store.queue


@pytest.fixture
def clock(store: QueueStore) -> ManualClock:
    return store.clock
