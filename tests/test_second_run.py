"""The second run of continuous integration: unstable tests pass, real failures do not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import second_run

SCRIPT = Path(second_run.__file__).resolve()


@pytest.mark.parametrize(
    ("failed", "why"),
    [
        ([], "No test failed"),
        (
            ["tests/a.py::one", "tests/a.py::two", "tests/b.py::three", "tests/b.py::four"],
            "4 tests",
        ),
        (["tests/rings/test_kill.py::test_a"], "guards messages"),
        (["tests/cli/test_a.py::test_b", "tests/queue/test_model.py::test_c"], "guards messages"),
        (["tests/cli/test_a.py"], "could not be collected"),
    ],
)
def test_some_failures_get_no_second_run(failed: list[str], why: str) -> None:
    refused = second_run.refusal(failed)
    assert refused is not None and why in refused


def test_up_to_three_other_failures_get_one() -> None:
    assert second_run.refusal([f"tests/cli/test_a.py::test_{n}" for n in range(3)]) is None


@pytest.mark.parametrize(
    ("failed", "name"),
    [
        ("test_a.py::test_a", "test_a.py::test_a"),
        ("test_a.py::test_a@spark", "test_a.py::test_a"),
        ("test_a.py::test_a[x@y]", "test_a.py::test_a[x@y]"),
        ("test_a.py::test_a[x@y]@spark", "test_a.py::test_a[x@y]"),
    ],
)
def test_the_group_is_no_part_of_a_name(failed: str, name: str) -> None:
    assert second_run.name_of(failed) == name


def test_every_directory_that_never_gets_one_exists() -> None:
    root = SCRIPT.parent.parent
    assert [one for one in second_run.NEVER_AGAIN if not (root / one).is_dir()] == []


@pytest.mark.parametrize(
    ("fails_on", "code"), [([], 0), ([1], 1), ([3], 1)], ids=["never", "at once", "the third time"]
)
def test_a_test_must_pass_three_times_alone(tmp_path: Path, fails_on: list[int], code: int) -> None:
    (tmp_path / "test_a.py").write_text(
        "from pathlib import Path\n"
        "def test_a():\n"
        "    runs = Path('runs')\n"
        "    n = 1 + (int(runs.read_text()) if runs.exists() else 0)\n"
        "    runs.write_text(str(n))\n"
        f"    assert n not in {fails_on}\n"
    )
    (tmp_path / second_run.FAILED).parent.mkdir(parents=True)
    (tmp_path / second_run.FAILED).write_text(json.dumps({"test_a.py::test_a@group": True}))
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("UNSTABLE: test_a.py::test_a" in done.stdout) == (code == 0)


def test_without_a_failed_test_the_job_fails(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "No test failed" in done.stdout
