"""A server for the tests of a module, and a queue for each test."""

import re
from collections.abc import Iterator

import httpx2
import pytest

from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue that no other test uses."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[-60:].strip("-")
