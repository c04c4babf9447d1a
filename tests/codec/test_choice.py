"""Which codec is used, and what is said about it."""

import os
import subprocess
import sys

from tests.codec.bodies import needs_compiled

MISSING = "import sys; sys.modules['penstock.codec._codec'] = None\n"
SAY = "import penstock.codec as codec; print(codec.IMPLEMENTATION)"


def run(code: str, choice: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PENSTOCK_CODEC"}
    if choice is not None:
        environment["PENSTOCK_CODEC"] = choice
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@needs_compiled
def test_the_compiled_codec_is_used_where_it_is() -> None:
    for choice in (None, "", "compiled"):
        done = run(SAY, choice)
        assert (done.stdout, done.stderr) == ("compiled\n", "")


def test_the_python_codec_can_be_asked_for_and_is_silent() -> None:
    done = run(SAY, "python")
    assert (done.stdout, done.stderr) == ("python\n", "")


def test_without_the_compiled_codec_the_twin_works_and_says_so_once() -> None:
    again = "\nimport importlib, penstock.codec.codec_py, penstock.codec.entry"
    done = run(MISSING + SAY + again)
    assert done.stdout == "python\n"
    assert done.stderr.count("the compiled codec cannot be used") == 1
    assert len(done.stderr.splitlines()) == 1


@needs_compiled
def test_a_compiled_codec_of_other_sources_is_not_used() -> None:
    old = (
        "import sys, types\n"
        "sys.modules['penstock.codec._codec'] = types.ModuleType('penstock.codec._codec')\n"
    )
    done = run(old + SAY)
    assert done.stdout == "python\n"
    assert "_codec was built from other sources; build it again" in done.stderr


def test_the_warning_names_what_is_missing() -> None:
    """As after an installation without a compiler: the file is not there."""
    not_built = (
        "import importlib.abc, sys\n"
        "class NotBuilt(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'penstock.codec._codec':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, NotBuilt())\n"
    )
    done = run(not_built + SAY)
    assert done.stdout == "python\n"
    assert "cannot be used (No module named 'penstock.codec._codec')" in done.stderr


def test_the_warning_goes_to_the_penstock_logger() -> None:
    handler = "import logging; logging.basicConfig(format='%(name)s %(levelname)s')\n"
    assert run(MISSING + handler + SAY).stderr == "penstock WARNING\n"


def test_a_compiled_codec_that_was_asked_for_and_is_missing_is_an_error() -> None:
    done = run(MISSING + SAY, "compiled")
    assert done.returncode != 0
    assert "ImportError: PENSTOCK_CODEC asks for the compiled codec" in done.stderr
    assert "apt install gcc" in done.stderr


def test_an_unknown_choice_is_an_error() -> None:
    done = run(SAY, "rust")
    assert "PENSTOCK_CODEC is 'rust'; it may be 'python' or 'compiled'" in done.stderr


@needs_compiled
def test_a_module_built_for_another_format_does_not_load() -> None:
    change = "from penstock.codec import layout; layout.FIRST_EVENT = 17\n"
    stale = "import os; os.environ['PENSTOCK_CODEC'] = 'python'\n" + change
    done = run(stale + "import penstock.codec._codec")
    assert (
        "ImportError: the compiled codec was built for another format (FIRST_EVENT" in done.stderr
    )
