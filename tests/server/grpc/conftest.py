"""A server with gRPC for the tests of a module, and a channel to it."""

from collections.abc import Iterator

import pytest

from tests.server.grpc.calling import Caller, address_of
from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("server") / "data"
    with RunningServer(data, grpc="127.0.0.1:0") as running:
        yield running


@pytest.fixture(scope="module")
def grpc_client(server: RunningServer) -> Iterator[Caller]:
    with Caller(address_of(server)) as caller:
        yield caller
