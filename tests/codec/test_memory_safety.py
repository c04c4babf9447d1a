"""The compiled codec under memory checkers."""

import os
import shutil
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import penstock
from tests.codec.bodies import needs_compiled

ROOT = Path(__file__).resolve().parents[2]
SUITE = "tests.codec.damage_suite"

pytestmark = [pytest.mark.long, needs_compiled]


def environment(source: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(source), str(ROOT)])
    return os.environ | {"PYTHONPATH": path, "PYTHONMALLOC": "malloc"} | more


# -- valgrind --------------------------------------------------------------------------------------


def valgrind(report: Path, *arguments: str) -> list[list[str]]:
    """The stacks (function and object of each frame) of every error that was found."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed: apt install valgrind")
    source = Path(penstock.__file__).parents[1]
    command = ["valgrind", "--xml=yes", f"--xml-file={report}", "--num-callers=30"]
    command += ["--leak-check=full", "--show-leak-kinds=definite"]
    command += [sys.executable, "-m", SUITE, *arguments]
    done = subprocess.run(
        command, env=environment(source), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr
    return [
        [f"{frame.findtext('fn')} {frame.findtext('obj')}" for frame in error.iter("frame")]
        for error in ElementTree.parse(report).getroot().iter("error")
    ]


def test_valgrind_finds_no_error_in_the_codec(tmp_path: Path) -> None:
    stacks = valgrind(tmp_path / "report.xml", "3000")
    assert [stack for stack in stacks if any("_codec." in frame for frame in stack)] == []


def test_valgrind_would_find_an_over_read(tmp_path: Path) -> None:
    stacks = valgrind(tmp_path / "report.xml", "0", "--control")
    assert any("string_at" in frame or "_ctypes" in frame for stack in stacks for frame in stack)


# -- the compiler's checkers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def checked_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with its codec built to check each access."""
    pytest.importorskip("Cython", reason="Cython comes with the dev extra")
    compiler = shutil.which("gcc")
    if compiler is None or not Path(library(compiler)).is_absolute():
        pytest.skip("gcc with its address checker is not installed: apt install gcc")
    source = tmp_path_factory.mktemp("checked")
    ignored = shutil.ignore_patterns("*.so", "_codec.c", "__pycache__")
    shutil.copytree(ROOT / "src" / "penstock", source / "penstock", ignore=ignored)
    codec = source / "penstock" / "codec"
    subprocess.run([sys.executable, "-m", "cython", "-3", codec / "_codec.pyx"], check=True)
    command = [compiler, "-shared", "-fPIC", "-O1", "-g", "-fno-omit-frame-pointer"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    command += ["-I", sysconfig.get_paths()["include"], "-I", str(codec), str(codec / "_codec.c")]
    command += ["-o", str(codec / f"_codec{sysconfig.get_config_var('EXT_SUFFIX')}")]
    subprocess.run(command, check=True)
    return source


def library(compiler: str) -> str:
    command = [compiler, "-print-file-name=libasan.so"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_checked(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = environment(
        source,
        LD_PRELOAD=library("gcc"),
        ASAN_OPTIONS="detect_leaks=0:abort_on_error=0",
        UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
    )
    command = [sys.executable, "-m", SUITE, *arguments]
    return subprocess.run(
        command, env=settings, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_address_checker_finds_no_error_in_the_codec(checked_build: Path) -> None:
    done = run_checked(checked_build, "20000")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_the_address_checker_would_find_an_over_read(checked_build: Path) -> None:
    done = run_checked(checked_build, "0", "--control")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
