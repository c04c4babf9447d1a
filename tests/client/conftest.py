"""A broker for the tests of a module."""

from collections.abc import Iterator

import pytest

from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("server") / "data"
    with RunningServer(data, grpc="127.0.0.1:0") as running:
        yield running
