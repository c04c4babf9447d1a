"""Every `>>>` example in the source and in the test helpers prints what it says."""

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

PACKAGES = (Path(penstock.__file__).parent, Path(__file__).resolve().parents[1])


def modules_with_examples() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            if not path.name.startswith("test_") and ">>>" in path.read_text():
                parts = path.relative_to(package.parent).with_suffix("").parts
                yield ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_examples_in(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
