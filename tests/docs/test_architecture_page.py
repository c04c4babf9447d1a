"""The architecture page names classes that exist; its picture agrees with the import contracts."""

import re
from itertools import pairwise

import pytest

from scripts.draw_architecture import (
    PICTURE,
    PURPOSES,
    REQUEST,
    SOURCE,
    arrows,
    imports,
    layers,
    picture,
)
from tests.docs.pages import DOCS

PAGE = (DOCS / "architecture.md").read_text()
LEVELS = {name: index for index, layer in enumerate(layers()) for name in layer}


def test_the_committed_picture_is_what_the_script_draws() -> None:
    assert PICTURE.read_text() == picture(), "run: python scripts/draw_architecture.py"


def test_the_picture_names_every_module_of_the_package_and_of_the_contract() -> None:
    modules = {
        path.stem
        for path in SOURCE.iterdir()
        if (path.is_dir() or path.suffix == ".py") and path.stem not in ("__init__", "__pycache__")
    }
    named = re.findall(r'class="name" x="\d+" y="\d+" font-size="14">(\w+)</text>', picture())
    in_layers = [name for name in named if name in PURPOSES]
    assert sorted(in_layers) == sorted(LEVELS)
    assert modules == set(LEVELS)


def test_every_arrow_points_down_and_is_an_import() -> None:
    found = {(LEVELS[importer], LEVELS[imported]) for importer, imported in imports()}
    assert len(arrows()) > 10
    for upper, lower in arrows():
        assert upper < lower
        assert (upper, lower) in found


def test_every_import_is_an_arrow_or_a_path_of_arrows() -> None:
    reached = {(level, level) for level in LEVELS.values()}
    for _ in layers():
        reached |= {
            (upper, end) for upper, lower in arrows() for start, end in reached if start == lower
        }
    found = {(LEVELS[importer], LEVELS[imported]) for importer, imported in imports()}
    assert found - reached == set()


@pytest.mark.parametrize(("package", "title"), [step[:2] for step in REQUEST])
def test_every_class_on_the_path_exists_in_its_package(package: str, title: str) -> None:
    source = "".join(path.read_text() for path in sorted((SOURCE / package).rglob("*.py")))
    if named := re.fullmatch(r"([A-Z][a-z]\w+)(?:\.(\w+))?", title):
        body = source.partition(f"\nclass {named[1]}")[2]
        assert body
        assert f"    def {named[2]}(" in body if named[2] else True


def test_the_path_goes_down_to_the_disk_and_back() -> None:
    packages = [step[0] for step in REQUEST]
    down = packages[1 : packages.index("codec") + 1]
    for upper, lower in pairwise(down):
        assert upper == lower or (upper, lower) in imports()
    assert packages[-1] == "server"


def test_every_class_in_the_trees_of_the_page_exists() -> None:
    trees = "\n".join(re.findall(r"^ {4,}(?:[│ ]*[├└]─ )?([A-Z]\w+.*)$", PAGE, re.MULTILINE))
    named = set(re.findall(r"\b[A-Z][a-z]+[A-Za-z]*\b", trees))
    source = "".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")))
    assert {name for name in named if f"\nclass {name}" not in source} == set()
    assert {"Broker", "EmbeddedStore", "GroupCommit", "Packer"} <= named
