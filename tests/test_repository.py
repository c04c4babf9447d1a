"""Facts about the repository as a whole that a change can break without any other test noticing."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "penstock"

# Written so that no pattern matches its own line.
NOT_IN_THE_REPOSITORY = [
    r"/home/\w+/",
    r"/Users/\w+/",
    r"(?<![\w.])/root(?=/)",
    r"\bpypi\.org\b",
    r"\bpythonhosted\.org\b",
    r"--(extra-)?index-url",
]


def repository_files() -> list[Path]:
    """Everything that is, or with `git add --all` would be, in the repository."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def own_places() -> Iterator[str]:
    """Where this checkout and its owner's files lie, as patterns."""
    for place in (ROOT, Path.home()):
        if len(place.parts) > 1:
            yield rf"(?<![\w.]){re.escape(str(place))}(?=/)"


def calls(path: Path) -> Iterator[tuple[str, int]]:
    """The name and line of each call in a source file: `open` or `datetime.now`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def links(page: Path) -> Iterator[Path]:
    """The files that a Markdown page links to or shows."""
    for target in re.findall(r"(?:\]\(|\bsrc(?:set)?=\")([^)#\s\"]+)", page.read_text()):
        if "://" not in target:
            yield (page.parent / target).resolve()


def test_version_is_stated_once_and_has_a_section_in_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "penstock.__version__"}
    sections = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == penstock.__version__


def test_readme_shows_both_commands_first() -> None:
    before_first_section = (ROOT / "README.md").read_text().split("\n## ")[0]
    assert "make run" in before_first_section
    assert "make test" in before_first_section


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_make_command_a_page_names_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE))
    assert named - targets == set()


def test_pre_commit_runs_the_commands_of_make_lint() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"entry: (.*)", hooks) == recipe[1].replace("\t", "").splitlines()


def test_every_docs_page_can_be_reached_and_every_link_leads_somewhere() -> None:
    entrances = [page for page in (ROOT / "README.md", ROOT / "docs/index.md") if page.exists()]
    reachable = {target for page in entrances for target in links(page)}
    pages = {page.resolve() for page in (ROOT / "docs").rglob("*.md")} - set(entrances)
    assert pages - reachable == set()
    linked = {target for page in [*entrances, *pages] for target in links(page)}
    assert [target for target in linked if not target.exists()] == []


def test_no_file_names_a_machine_or_a_package_registry() -> None:
    pattern = re.compile("|".join([*NOT_IN_THE_REPOSITORY, *own_places()]))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in repository_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_only_the_files_module_opens_files_in_the_lower_layers() -> None:
    """Imports of `os` and the like are an import contract; the built-in needs no import."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for layer in ("codec", "ledger", "queue")
        for path in (SOURCE / layer).rglob("*.py")
        if path != SOURCE / "ledger" / "files.py"
        for name, line in calls(path)
        if name == "open"
    ]
    assert found == []


def test_only_the_clock_asks_what_time_it_is() -> None:
    """Imports of `time` are an import contract; `datetime` is also a plain value."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "clock.py"
        for name, line in calls(path)
        if re.search(r"\b(datetime|date)\.(now|utcnow|today)$", name)
    ]
    assert found == []
