"""A client in TypeScript, generated from the document of a running broker, and used with it."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.generated.node_project import EXAMPLE, node_project, run
from tests.server.running import RunningServer

pytestmark = pytest.mark.xdist_group("node")  # installing takes seconds: once for all


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


def test_a_generated_client_is_typed_and_works(server: RunningServer) -> None:
    key = server.new_key("publish", "consume", "manage", "read")
    environment = {
        "PENSTOCK_URL": server.url,
        "PENSTOCK_KEY": key,
        "PENSTOCK_READ_KEY": server.new_key("read"),
    }
    project = node_project()
    calls = Path(__file__).with_name("calls.ts")
    shutil.copy(calls, project)
    document = f"{server.url}/openapi.json"
    run(["npx", "openapi-typescript", document, "--output", "penstock.ts"], project)
    run(["npx", "tsc"], project)
    printed = run(["node", "calls.js"], project, **environment)
    last = calls.read_text().partition("for (const step of [")[2].partition("]")[0]
    assert printed.split() == re.findall(r"\w+", last)


def test_the_lock_file_names_no_registry() -> None:
    """The packages are known by their checksums, so that any registry may serve them."""
    lock = (EXAMPLE / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    packages = lock.count('"node_modules/')
    assert packages == lock.count('"integrity"') > 10
