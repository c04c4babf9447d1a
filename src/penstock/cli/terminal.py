"""Printing: tables for people, JSON for programs, errors and progress on stderr; confirmation."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.errors import InvalidInput

T = TypeVar("T")

# Without markup: text from messages must not be taken for it.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)


# -- text and JSON ---------------------------------------------------------------------------------


def print_text(sentence: str) -> None:
    """Print a sentence for people on stdout."""
    out.print(sentence, soft_wrap=not out.is_terminal)


def print_stderr(sentence: str) -> None:
    """Print a sentence on stderr, with the name of the program before it."""
    err.print(f"penstock: {sentence}", soft_wrap=not err.is_terminal)


def print_line(text: str) -> None:
    """Print one line for people and programs, never wrapped."""
    sys.stdout.write(text + "\n")


def print_json(document: Any) -> None:
    """Print one JSON document, indented. Times become text."""
    sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")


def print_json_line(value: Any) -> None:
    """Print one JSON value on a line of its own."""
    sys.stdout.write(json.dumps(value) + "\n")


def print_result(as_json: bool, document: Mapping[str, Any], sentence: str) -> None:
    """Print the result of a command: as a JSON document, or as a sentence."""
    if as_json:
        print_json(document)
    else:
        print_text(sentence)


def exit_no(sentence: str) -> NoReturn:
    """Print a sentence on stderr and exit with code 1: nothing found, or nothing to do."""
    print_stderr(sentence)
    raise typer.Exit(1)


# -- tables ----------------------------------------------------------------------------------------


def table(
    *columns: str, right: Iterable[str] = (), rest: str = "", wrap_rest: bool = False
) -> Table:
    """Return an empty table.

    Columns in `right` are aligned right and never cut. The column `rest` gets the width that the
    others leave; without `rest`, long words of the other columns are broken.
    """
    made = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
        expand=bool(rest),
    )
    aligned_right = frozenset(right)
    for name in columns:
        breaks = (wrap_rest and name == rest) or not (rest or name in aligned_right)
        made.add_column(
            name,
            justify="right" if name in aligned_right else "left",
            no_wrap=not breaks,
            overflow="fold" if breaks or wrap_rest else "ellipsis",
            ratio=1 if name == rest else None,
        )
    return made


def print_list(
    items: Sequence[T],
    as_json: bool,
    document: Callable[[T], Any],
    made: Table,
    row: Callable[[T], Iterable[RenderableType]],
) -> None:
    """Print items: as lines of JSON, or as rows of a table. Print nothing if there are none."""
    if as_json:
        for item in items:
            print_json_line(document(item))
    elif items:
        for item in items:
            made.add_row(*row(item))
        out.print(made)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, value)
    out.print(grid)


# -- progress and confirmation ---------------------------------------------------------------------


def progress_bar(*, in_bytes: bool = False, beside_output: bool = False) -> Progress:
    """Return a progress bar on stderr; it is hidden if stderr is not a terminal.

    `beside_output`: the command prints lines meanwhile. On the same terminal those are enough.
    """
    shown = err.is_terminal and not (beside_output and out.is_terminal)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *([DownloadColumn(binary_units=True)] if in_bytes else []),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not shown,
        redirect_stdout=False,  # rich would send stdout to stderr
        redirect_stderr=False,
    )


def can_ask() -> bool:
    """Return whether the user can answer a question."""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agrees; exit if not. `yes`: do not ask."""
    if yes:
        return
    if not can_ask():
        raise InvalidInput(f"{question} There is no terminal to ask at: give --yes")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
