"""No module reads a private name of another one: not in the source, not in the tests."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "examples")
# Of Python, pytest and Spark, which have no public name for it.
NOT_OURS = {
    "_at_fork_reinit",  # of a lock
    "_current_frames",
    "_exit",
    "_getframe",
    "_is_owned",  # of a lock
    "_jsc",
    "_parse_exception_table",
    "_recursion_count",  # of a lock
    "_request",
}
NAMED_TUPLES = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
# Two bodies of one specification: tests compare the compiled module with its twin.
COMPILED = {"_clock", "_codec"}


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the private names that a module reads and does not define."""
    own = set(_defined(tree)) | NOT_OURS | NAMED_TUPLES | COMPILED
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if node.module is None or node.module.startswith(("penstock", "tests")):
                names = [alias.name for alias in node.names]
            else:
                continue
        elif isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            names = [] if of in ("self", "cls") else [node.attr]
        else:
            continue
        yield from ((node.lineno, name) for name in names if _is_private(name) and name not in own)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                yield node.attr
            case ast.Name(ctx=ast.Store()):
                yield node.id


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_reads_private_names_of_another(folder: str) -> None:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for line, private in private_names(ast.parse(path.read_text())):
            found.append(f"{name}:{line} reads {private}")
    assert found == []


def test_a_private_name_is_found_wherever_it_is_read() -> None:
    code = """
from penstock.queue.core import _COUNT
class One:
    def __init__(self):
        self._own = queue._core
    def same(self, other):
        return other._own, self._x, event._replace(), os._exit
"""
    assert list(private_names(ast.parse(code))) == [(2, "_COUNT"), (5, "_core")]
