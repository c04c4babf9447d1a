"""The sdist and the wheels are built, installed in fresh environments, and used."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from scripts.make_wheels import build_sdist, build_wheel, check_wheel, make_pure

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600), pytest.mark.xdist_group("wheels")]

ROOT = Path(__file__).resolve().parents[2]
SMOKE = ROOT / "scripts" / "smoke.py"


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [str(one) for one in command],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        cwd=ROOT.parent,  # not in the tree: what is installed is used
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist and both wheels."""
    pytest.importorskip("build")
    pytest.importorskip("auditwheel")
    out = tmp_path_factory.mktemp("dist")
    make_pure(build_wheel(build_sdist(ROOT, out), out), out)
    return out


def environment(place: Path, wheel: Path, extras: str = "") -> Path:
    run(sys.executable, "-m", "venv", place)
    python = place / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}{extras}")
    return python


def test_the_sdist_has_no_results_of_the_compiler_and_no_tests(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"} <= set(names)
    assert [name for name in names if name.endswith((".c", ".so"))] == []
    assert [name for name in names if name.startswith("tests")] == []
    assert {"src/penstock/codec/_codec.pyx", "src/penstock/codec/crc32c.h"} <= set(names)


def test_the_wheel_from_the_sdist_is_a_manylinux_wheel_and_works(
    dist: Path, tmp_path: Path
) -> None:
    (wheel,) = dist.glob("*-cp*.whl")
    check_wheel(wheel, compiled=True)
    assert re.search(r"-manylinux_2_\d+_x86_64|-manylinux_2_\d+_aarch64", wheel.name), wheel.name
    python = environment(tmp_path / "base", wheel)
    assert "works (compiled)" in run(python, SMOKE, "--base")
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[cli,server]")
    assert "works (compiled)" in run(python, SMOKE)


def test_the_wheel_without_compiled_modules_works(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*-py3-none-any.whl")
    check_wheel(wheel, compiled=False)
    python = environment(tmp_path / "pure", wheel, "[cli,server]")
    assert "works (python)" in run(python, SMOKE)


def test_pipx_runs_the_command(dist: Path, tmp_path: Path) -> None:
    pytest.importorskip("pipx")
    (wheel,) = dist.glob("*-cp*.whl")
    home = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    command = (sys.executable, "-m", "pipx", "run", "--spec", f"{wheel}[cli]", "penstock")
    assert run(*command, "--version", **home).startswith("penstock ")
    # By the name of the distribution as well: an entry point of the group `pipx.run`.
    assert run(*command[:-1], "penstock-queue", "--version", **home).startswith("penstock ")


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_cibuildwheel_reads_its_configuration(arch: str) -> None:
    pytest.importorskip("cibuildwheel")
    command = (sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--archs", arch)
    found = run(*command, "--print-build-identifiers", ROOT).split()
    assert found == [f"cp3{minor}-manylinux_{arch}" for minor in (11, 12, 13, 14)]
