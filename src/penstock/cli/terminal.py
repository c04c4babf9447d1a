"""Writing to the terminal: tables for people, JSON for programs, complaints for both."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

# What is shown comes from messages: it is never taken for markup.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)


def complain(sentence: str) -> None:
    """One sentence on stderr."""
    err.print(Text(f"penstock: {sentence}"), soft_wrap=not err.is_terminal)


def write_json(document: Any) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def write_json_line(value: Any) -> None:
    """One line of JSON lines."""
    sys.stdout.write(json.dumps(value) + "\n")


def write_line(text: str) -> None:
    """One line of plain text, never wrapped."""
    sys.stdout.write(text + "\n")


def say(sentence: str) -> None:
    """A sentence for people."""
    out.print(Text(sentence), soft_wrap=not out.is_terminal)


def table(
    *columns: str, right: Iterable[str] = (), rest: str = "", wrap_rest: bool = False
) -> Table:
    """An empty table. Columns in `right` stand right; `rest` gets what the others leave.

    Without `rest`, long names are broken where it is narrow: numbers are never cut.
    """
    made = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
        expand=bool(rest),
    )
    to_the_right = frozenset(right)
    for name in columns:
        breaks = (wrap_rest and name == rest) or not (rest or name in to_the_right)
        made.add_column(
            name,
            justify="right" if name in to_the_right else "left",
            no_wrap=not breaks,
            overflow="fold" if breaks or wrap_rest else "ellipsis",
            ratio=1 if name == rest else None,
        )
    return made


def show_table(made: Table) -> None:
    out.print(made)


def show_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names and values, below each other."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(Text(name), Text(value))
    out.print(grid)


def byte_progress() -> Progress:
    """A bar over bytes, on stderr; nothing where that is no terminal."""
    return _progress(BarColumn(), DownloadColumn(binary_units=True))


def open_progress(*, beside_output: bool = False) -> Progress:
    """A bar for work whose length is not known.

    `beside_output`: lines are written meanwhile; on the same terminal, they are enough.
    """
    return _progress(BarColumn(), shown=not (beside_output and out.is_terminal))


def _progress(*columns: ProgressColumn, shown: bool = True) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        *columns,
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not (shown and err.is_terminal),
        redirect_stdout=False,  # rich would send what is written there to stderr
        redirect_stderr=False,
    )
