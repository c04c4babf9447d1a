from collections.abc import Iterator

import pytest

from penstock.clock import ManualClock
from penstock.tasks import Tasks
from penstock.tasks.places import Memory
from tests.server.running import RunningServer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tasks(clock: ManualClock) -> Iterator[Tasks]:
    made = Tasks("memory:")
    with made.at(Memory({"backoff_jitter": 0.0}, clock)):
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("server") / "data"
    with RunningServer(data, grpc="127.0.0.1:0") as running:
        yield running
