"""Commands of pages run as a reader would type them, and examples with a broker run at one."""

import ast
import re
from pathlib import Path

import pytest

import penstock
from tests.docs.pages import DOCS
from tests.docs.sessions import Session
from tests.server.running import RunningServer

MOVING = [
    page for page in sorted((DOCS / "moving").glob("*.md")) if "```console" in page.read_text()
]
PROGRAMS = [
    pytest.param(program, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    for number, program in enumerate(
        re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize("page", MOVING, ids=lambda page: page.stem)
def test_moving_from_another_queue_works_as_shown(page: Path, tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        session = Session(tmp_path, {"http://127.0.0.1:8080": server.url})
        assert session.run_blocks(page.read_text())


@pytest.mark.parametrize("page", ["guarantees.md", "how-to/securing.md"])
def test_commands_without_a_broker_run(page: str, tmp_path: Path) -> None:
    assert Session(tmp_path).run_blocks((DOCS / page).read_text())


def test_a_backup_is_made_and_restored_as_shown(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data" / "shop" / "orders") as queue:
        queue.enqueue("order 7")
    page = (DOCS / "how-to/backup.md").read_text()
    (first, *_) = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    *commands, serve = first.splitlines()
    assert serve == "$ penstock serve ./data-restored"
    typed = "".join(f"{command}\n…\n" for command in commands)
    session = Session(tmp_path, {"/mnt/backups": "./backups"})
    assert session.run_blocks(f"```console\n{typed}```\n") == 3
    with penstock.open(tmp_path / "data-restored" / "shop" / "orders") as restored:
        assert restored.stats().ready == 1


def test_every_queue_to_move_from_has_a_page() -> None:
    assert {page.stem for page in (DOCS / "moving").glob("*.md")} == {
        *("index", "celery", "rq", "huey", "persist-queue", "beanstalkd", "sqs"),
        *("ledgerq", "rivetq", "epochqueue"),
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_that_other_tests_run_are_python(program: str) -> None:
    ast.parse(program)
