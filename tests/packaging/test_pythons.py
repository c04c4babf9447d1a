"""Penstock is built for every Python it supports; the quick tests and the interrupts run there.

An interpreter is looked for in `PENSTOCK_PYTHONS` (paths, separated by colons), in PATH, and among
the versions of pyenv. Django 6, which needs Python 3.12, is run for real here.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.make_wheels import NOT_COPIED

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = "cli,postgres,tasks"
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pyyaml")


def interpreter(version: str) -> str:
    """Return the path of an interpreter; skip the test if this machine has none."""
    candidates = [
        *filter(None, os.environ.get("PENSTOCK_PYTHONS", "").split(os.pathsep)),
        shutil.which(f"python{version}") or "",
        *map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))),
    ]
    ask = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        found = subprocess.run([candidate, "-c", ask], capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip() == version:
            return candidate
    pytest.skip(f"no Python {version} here: install it, or name its path in PENSTOCK_PYTHONS")


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(one) for one in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def quick_tests() -> list[str]:
    """Return the paths that `make quick` runs."""
    show = "show-quick: ; @echo $(QUICK)"
    return run("make", "--silent", "--eval", show, "show-quick", cwd=ROOT).split()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_quick_tests_and_django_pass(version: str, tmp_path: Path) -> None:
    made_by = interpreter(version)
    tree, env = tmp_path / "tree", tmp_path / "env"
    shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
    run(made_by, "-m", "venv", env, cwd=tmp_path)
    python = env / "bin" / "python"
    django = ("django>=5.2,<6", "django-tasks") if version == "3.11" else ("django>=6",)
    run(python, "-m", "pip", "install", "--quiet", f".[{EXTRAS}]", *TOOLS, *django, cwd=tree)
    shutil.rmtree(tree / "src")  # what is installed is tested
    compiled = "import penstock.codec; print(penstock.codec.IMPLEMENTATION)"
    assert run(python, "-c", compiled, cwd=tree).strip() == "compiled"
    chosen = ("-m", "not long and not hypothesis", "-k", "not [python-", "--timeout=600")
    shown = run(python, "-m", "pytest", "-q", *chosen, *quick_tests(), cwd=tree)
    assert " passed" in shown
    # Where an interrupt can come differs by version; and what shows it is code of the version.
    others = (
        "tests/integrations/test_django.py",
        *("tests/test_locks.py", "tests/harness_tests", "tests/rings/test_interrupts.py"),
    )
    shown = run(python, "-m", "pytest", "-q", "--timeout=600", *others, cwd=tree)
    assert " passed" in shown
