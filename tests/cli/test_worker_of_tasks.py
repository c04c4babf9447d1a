"""`penstock worker MODULE:TASKS`, and `--reload`."""

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from penstock.cli import reloading
from tests.cli.command_line import CommandLine

JOBS = """
from pathlib import Path
from penstock.tasks import Tasks

tasks = Tasks("./data")
other = 5

@tasks.task(queue="mail")
def welcome(user_id: int) -> None:
    with open("ran", "a") as ran:
        print(user_id, file=ran)
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with tasks in the working directory."""
    name = f"app_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def test_it_runs_the_jobs_of_tasks(app: str, command: CommandLine, tmp_path: Path) -> None:
    module = importlib.import_module(app)
    for number in range(3):
        module.welcome.enqueue(number)
    run = command("worker", f"{app}:tasks", "--idle", 0, "--json", "-v")
    assert run.json == {"done": 3, "failed": 0, "handed_back": 0, "lost": 0}
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1", "2"]
    assert "penstock.tasks: welcome 0" in run.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tasks", "--batch", "2"], "are for functions"),
        (["tasks", "--queue", "mial"], "did you mean mail"),
        (["other"], "not a function, and not a Tasks object"),
        (["print"], "no 'print'"),
        (["task"], "did you mean tasks"),
        (["welcome"], "is one task: name the Tasks object"),
        (["Path"], "needs --queue"),
        (["Path", "--queue", ".", "--processes", "2"], "--processes is for tasks"),
    ],
)
def test_wrong_use_is_one_sentence(
    app: str, command: CommandLine, arguments: list[str], says: str
) -> None:
    run = command("worker", f"{app}:{arguments[0]}", *arguments[1:])
    assert run.code != 0
    assert says in " ".join(run.err.split())


def test_files_that_changed_are_found(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", ".hidden/c.py", "venv/d.py", "package/e.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "venv/pyvenv.cfg").touch()
    before = reloading.python_files(str(tmp_path))
    assert sorted(Path(path).name for path in before) == ["a.py", "e.py"]
    assert reloading.changed(before, before) is None
    os.utime(tmp_path / "a.py", ns=(1, 1))
    after = reloading.python_files(str(tmp_path))
    assert reloading.changed(before, after) == str(tmp_path / "a.py")
    (tmp_path / "a.py").unlink()
    assert reloading.changed(after, reloading.python_files(str(tmp_path))) is not None


def test_the_command_starts_again_after_a_change_until_a_signal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The third look finds a change. The fifth is followed by a signal."""
    command = ["sleep", "100"]
    looks: list[int] = []

    def look() -> dict[str, int]:
        looks.append(1)
        if len(looks) == 5:
            Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM)).start()
        return {str(tmp_path / "a.py"): len(looks) // 3}

    before = signal.getsignal(signal.SIGTERM)
    reloading.run_and_reload(command, look)
    assert len(looks) >= 5
    assert capfd.readouterr().err.count("changed: starting again") >= 1
    assert signal.getsignal(signal.SIGTERM) is before
