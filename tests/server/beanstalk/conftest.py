"""A server that speaks beanstalk, for the tests of a module, and a tube for each test."""

import re
from collections.abc import Iterator

import pytest

from tests.server.beanstalk.wire import Talk, beanstalk_server, talk_to
from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with beanstalk_server(tmp_path_factory.mktemp("beanstalk") / "data") as running:
        yield running


@pytest.fixture
def tube(request: pytest.FixtureRequest) -> bytes:
    """The name of a tube that no other test uses."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[-60:].strip("-")
    return str(name).encode()


@pytest.fixture
def talk(server: RunningServer, tube: bytes) -> Iterator[Talk]:
    """A connection that uses and watches only the tube of the test."""
    with talk_to(server) as one:
        assert one.ask(b"use " + tube, b"watch " + tube, b"ignore default") == [
            b"USING " + tube,
            b"WATCHING 2",
            b"WATCHING 1",
        ]
        yield one
