"""The command as a whole: its help, its version, and what it says where it cannot run."""

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.cli.app import app
from tests.cli.command_line import CommandLine

NAMES = sorted(
    info.name or info.callback.__name__ for info in app.registered_commands if info.callback
)


def test_all_commands_are_there() -> None:
    wanted = (
        "stats inspect peek enqueue dequeue tail seek compact verify redrive why retries history "
        "consumers reasons"
    )
    beside_a_broker = "publish lease ack nack top worker bench serve migrate migrate-store demo"
    operating = "pause resume purge cancel discard backup restore doctor torture"
    assert sorted(f"{wanted} {beside_a_broker} {operating}".split()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_and_json(command: CommandLine, name: str) -> None:
    answer = command(name, "--help")
    assert answer.code == 0
    assert "--json" in answer.text


def test_help_and_version(command: CommandLine) -> None:
    assert all(name in command("--help").text for name in NAMES)
    assert command("--version").text == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize("name", NAMES)
def test_further_paragraphs_of_a_help_text_fit_80_columns(name: str) -> None:
    """Typer keeps their line breaks: a longer line would be broken a second time."""
    (command,) = [
        info.callback
        for info in app.registered_commands
        if info.callback and name == (info.name or info.callback.__name__)
    ]
    _, *further = (command.__doc__ or "").split("\n\n", 1)
    assert [line for line in "".join(further).splitlines() if len(line.strip()) > 78] == []


def test_what_the_client_tells_while_it_tries_again_is_shown() -> None:
    story = (
        "import logging; from penstock.cli.app import run; run(['--version']); run(['--version']);"
        "logging.getLogger('penstock.client').info('nobody is there')"
    )
    ran = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, check=True)
    assert ran.stderr == "penstock: nobody is there\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("nonsense", "no such command 'nonsense' (see penstock --help)"),
        ("stast", "no such command 'stast'. Did you mean 'stats'? (see penstock --help)"),
        ("stats", "missing argument 'PATH' (see penstock stats --help)"),
        ("stats . --nonsense", "no such option: --nonsense (see penstock stats --help)"),
        ("stats . more", "got unexpected extra argument"),
        ("peek . -n x", "invalid value for '--count' / '-n': "),
        ("peek . --state redy", "'redy' is not one of"),
        ("queues change http://h a", "give what is to change: --set NAME=VALUE (see"),
        ("workflow ./q", "'./q' is no command; give show (see penstock workflow --help)"),
        ("enqueue . x --file y", "given twice, as an argument and by --file: leave one out (see"),
        ("enqueue .", "give the payload as an argument, as - (standard input) or by --file (see"),
        ("worker nonsense -q .", "'nonsense' is not MODULE:NAME, such as tasks:handle (see"),
        ("worker shutil:copyfil -q .", "'shutil' has no 'copyfil'; did you mean copyfile? (see"),
        ("worker math:pi.nonsense -q .", "'math' has no 'pi.nonsense' (see"),
    ],
)
def test_wrong_usage_is_one_sentence(command: CommandLine, line: str, sentence: str) -> None:
    answer = command(*line.split())
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, b"", 1)
    assert answer.err.startswith("penstock: ")
    assert sentence in answer.err


def test_command_without_arguments_shows_its_help(command: CommandLine) -> None:
    answer = command("queues")
    assert (answer.code, answer.err) == (2, "")
    assert "Usage: penstock queues" in answer.text


def test_not_a_queue_is_one_sentence(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a queue")
    answer = command("stats", tmp_path)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "is not a queue" in answer.err


@pytest.mark.parametrize(
    ("content", "line", "wrong"),
    [
        ("x = 1\n\ndef handle(:\n", 3, "SyntaxError"),
        ("\nimport not_there_at_all\n", 2, "ModuleNotFoundError: No module named"),
        ("def f():\n    return 1 / 0\n\nf()\n", 2, "ZeroDivisionError"),
        ("raise RuntimeError('a\\nb')\n", 1, "RuntimeError: a b"),
    ],
    ids=["syntax", "import", "nested", "lines"],
)
def test_worker_says_why_a_module_cannot_be_imported(
    command: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    content: str,
    line: int,
    wrong: str,
) -> None:
    monkeypatch.chdir(path.parent)
    monkeypatch.syspath_prepend(str(path.parent))
    (path.parent / "broken_module.py").write_text(content)
    answer = command("worker", "broken_module:handle", "-q", path, "--idle", 0)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "broken_module" in answer.err
    assert wrong in answer.err
    assert f"broken_module.py, line {line}" in answer.err
    assert "Traceback" in command("worker", "broken_module:handle", "-q", path, "-v").err


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_package_is_named_with_the_way_to_get_it(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from penstock.cli import main\n"
        "main(['stats', '.'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "pip install '.[cli]'" in result.stderr
    assert result.stderr.count("\n") == 1


_INTERRUPTS = """
import sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
sys.argv = ["penstock", "--version"]
from penstock_command import main
main()
"""


@pytest.mark.parametrize("name", ["penstock", "penstock.model", "penstock.cli", "penstock.cli.app"])
def test_an_interrupt_while_modules_are_imported_is_an_exit_code(name: str) -> None:
    program = _INTERRUPTS.format(name=name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_library_itself_needs_neither() -> None:
    program = (
        "import sys, penstock, penstock.aio, penstock.cli\n"
        "assert not {'typer', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
