"""Receipts as they are given to a command: text, or what `penstock lease --json` printed."""

import json
import sys
from collections.abc import Iterable, Iterator

import typer


def receipts_in(arguments: Iterable[str]) -> list[str]:
    """Return the receipts of arguments; `-` stands for the lines of standard input.

    >>> receipts_in(["r1", '{"id": "…", "receipt": "r2"}', '["r3", {"receipt": "r4"}]'])
    ['r1', 'r2', 'r3', 'r4']
    """
    found = []
    for argument in arguments:
        text = sys.stdin.read() if argument == "-" else argument
        found += [receipt for line in text.splitlines() if line.strip() for receipt in _read(line)]
    if not found:
        raise typer.BadParameter("there is no receipt on standard input")
    return found


def _read(line: str) -> Iterator[str]:
    line = line.strip()
    if line[0] not in "{[":
        yield line
        return
    try:
        value = json.loads(line)
    except ValueError as error:
        raise typer.BadParameter(f"{line[:40]!r} is neither a receipt nor JSON: {error}") from None
    for one in value if isinstance(value, list) else [value]:
        receipt = one.get("receipt") if isinstance(one, dict) else one
        if not isinstance(receipt, str):
            raise typer.BadParameter(f"{json.dumps(one)[:40]!r} has no receipt")
        yield receipt
