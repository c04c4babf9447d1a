"""The commands of the pages about moving, and of others with sessions, run as shown."""

from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.docs.sessions import Session
from tests.server.running import RunningServer

MOVING = [
    page for page in sorted((DOCS / "moving").glob("*.md")) if "```console" in page.read_text()
]


@pytest.mark.parametrize("page", MOVING, ids=lambda page: page.stem)
def test_its_commands_run(page: Path, tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        session = Session(tmp_path, {"http://127.0.0.1:8080": server.url})
        assert session.run_blocks(page.read_text())


@pytest.mark.parametrize("page", ["guarantees.md", "how-to/securing.md"])
def test_commands_without_a_broker_run(page: str, tmp_path: Path) -> None:
    assert Session(tmp_path).run_blocks((DOCS / page).read_text())


def test_every_source_of_an_import_has_a_page() -> None:
    assert {page.stem for page in (DOCS / "moving").glob("*.md")} == {
        *("index", "celery", "rq", "huey", "persist-queue", "beanstalkd", "sqs"),
        *("ledgerq", "rivetq", "epochqueue"),
    }
