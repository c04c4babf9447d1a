"""What every test shares: the hypothesis profiles, the `root` marker, and a PostgreSQL server."""

import os
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from hypothesis import settings

from tests.harness.postgres_server import PostgresServer
from tests.pictures import PICTURES

# The default profile is the same run every time, on every machine; the long one goes looking.
settings.register_profile(
    "default", deadline=None, derandomize=True, print_blob=True, max_examples=200
)
settings.register_profile(
    "long", deadline=None, derandomize=False, print_blob=True, max_examples=10_000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# gRPC starts its threads again in a forked child, which can abort before the child becomes the
# program that a test starts as another user. Read when gRPC is first used.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    skip = pytest.mark.skip(reason="needs root: run the tests as root to include it")
    for item in items:
        if item.get_closest_marker("root") is not None:
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the pictures of the dashboard are, if this run took some."""
    passed = terminalreporter.stats.get("passed", ())
    if any("dashboard/test_pages" in report.nodeid for report in passed):
        where = os.path.relpath(PICTURES)
        terminalreporter.write_line(f"Pictures of the dashboard, light and dark: {where}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the tests of this process, started when first needed."""
    server = PostgresServer()
    try:
        yield server.create().start()
    finally:
        server.remove()


_schemas = count(1)


@pytest.fixture
def new_schema() -> Callable[[], str]:
    """Names of schemas that no other test uses."""
    return lambda: f"penstock_{next(_schemas)}"
