"""What is released, as far as its configuration says; and the code that builds it."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.make_wheels import COMPILED, MUST_HAVE, check_wheel, make_pure

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLASSIFIED = {
    found[1]
    for one in PROJECT["project"]["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one))
}


def workflow(name: str) -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def test_wheels_are_built_and_tests_run_for_every_python_that_is_classified() -> None:
    built = {
        f"3.{one.removeprefix('cp3').partition('-')[0]}"
        for one in PROJECT["tool"]["cibuildwheel"]["build"]
    }
    tested = set(workflow("test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"])
    assert built == tested == CLASSIFIED
    oldest = min(CLASSIFIED, key=lambda version: int(version.partition(".")[2]))
    assert PROJECT["project"]["requires-python"] == f">={oldest}"


def test_the_release_covers_both_processors_and_macos_and_publishes_only_tags() -> None:
    jobs = workflow("release.yml")["jobs"]
    archs = {one["arch"] for one in jobs["compiled"]["strategy"]["matrix"]["include"]}
    assert archs == set(PROJECT["tool"]["cibuildwheel"]["linux"]["archs"])
    assert "macos-latest" in jobs["elsewhere"]["strategy"]["matrix"]["runner"]
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert "refs/tags/v" in jobs["publish"]["if"]
    scripts = re.findall(r"scripts/\w+\.py", str(jobs) + str(PROJECT["tool"]["cibuildwheel"]))
    assert scripts
    assert [name for name in scripts if not (ROOT / name).is_file()] == []


def tiny_wheel(folder: Path) -> Path:
    """A wheel with every file that is checked, all of them small."""
    wheel = folder / "penstock_queue-1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        for name in MUST_HAVE:
            made.writestr(f"penstock/{name}", name)
        for name in COMPILED:
            made.writestr(f"penstock/{name}.cpython-311-x86_64-linux-gnu.so", "compiled")
        made.writestr(
            "penstock_queue-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
        )
        made.writestr("penstock_queue-1.0.dist-info/RECORD", "")
    return wheel


def test_the_pure_wheel_is_the_same_without_compiled_modules(tmp_path: Path) -> None:
    wheel = tiny_wheel(tmp_path)
    check_wheel(wheel, compiled=True)
    pure = make_pure(wheel, tmp_path)
    check_wheel(pure, compiled=False)
    assert pure.name == "penstock_queue-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pure) as made:
        assert "Tag: py3-none-any" in made.read("penstock_queue-1.0.dist-info/WHEEL").decode()
        recorded = {
            line.partition(",")[0]
            for line in made.read("penstock_queue-1.0.dist-info/RECORD").decode().splitlines()
        }
        assert recorded == set(made.namelist())


def test_a_wheel_that_lacks_a_file_or_has_a_foreign_one_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tiny_wheel(tmp_path), "a") as made:
        made.writestr("tests/test_x.py", "")
    with pytest.raises(SystemExit, match="tests"):
        check_wheel(tmp_path / "penstock_queue-1.0-cp311-cp311-linux_x86_64.whl", compiled=True)
    with pytest.raises(SystemExit, match="as Python only"):
        check_wheel(tiny_wheel(tmp_path), compiled=False)


def test_everything_works_without_what_only_linux_has() -> None:
    """As on macOS, as far as Linux can show it: pure Python, no fdatasync, no direct writes."""
    found = subprocess.run(
        [sys.executable, "scripts/smoke.py", "--like-macos"],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_CODEC": "python", "PENSTOCK_HTTP": "python"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert "works (python)" in found.stdout


def test_extras_refer_to_the_project_by_its_own_name() -> None:
    """`penstock` alone is another project on the package index."""
    name = PROJECT["project"]["name"]
    extras = PROJECT["project"]["optional-dependencies"]
    own = [one for extra in extras.values() for one in extra if one.startswith("penstock")]
    assert own
    assert [one for one in own if not one.startswith(f"{name}[")] == []
    assert name in PROJECT["project"]["entry-points"]["pipx.run"]
