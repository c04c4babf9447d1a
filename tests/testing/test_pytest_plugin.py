"""The plugin in a run of pytest of its own: fixtures work, and it imports nothing of Penstock."""

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

TESTS = """
import sys

def test_nothing_is_imported():
    loaded = {name for name in sys.modules if name.split(".")[0] in ("penstock", "msgspec")}
    assert loaded == set()
    assert "pytest_penstock" in sys.modules

def test_fixtures(penstock_testing, penstock_queue):
    from penstock.tasks import Tasks
    tasks = Tasks("./data")

    @tasks.task
    def one() -> None: ...

    box = penstock_testing(tasks, max_attempts=2)
    one.enqueue()
    box.assert_enqueued(one)
    assert box.run_pending() == 1
    assert penstock_queue.stats().published == 0
"""


def test_it(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    if "penstock" not in entry_points(group="pytest11").names:  # installed before there was one
        command += ["-p", "pytest_penstock"]
    run = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    assert "2 passed" in run.stdout, run.stdout + run.stderr
    assert not (tmp_path / "data").exists()


def test_pytest_finds_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"penstock": "pytest_penstock"}
    assert "pytest_penstock" in project["tool"]["setuptools"]["py-modules"]
