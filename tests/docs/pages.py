"""Read the tables and quantities of the Markdown pages."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"

Row = dict[str, str]  # by column

_UNITS = {
    "s": 1,
    "days": 86400,
    "bytes": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "PiB": 1 << 50,
}


def tables(page: str) -> list[list[Row]]:
    """Return the tables of a page, each as a list of its rows."""
    found: list[list[Row]] = []
    columns: list[str] = []
    for line in (DOCS / page).read_text().splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns = cells
            found.append([])
        elif set(line) - set("|-"):
            found[-1].append(dict(zip(columns, cells, strict=True)))
    return found


def rows_with(page: str, *columns: str) -> list[Row]:
    """Return all rows of the tables that have these columns."""
    return [row for table in tables(page) for row in table if set(columns) <= set(row)]


def unquoted(cell: str) -> str:
    """Return a name without its backticks."""
    return cell.replace("`", "")


def quantity(text: str) -> float:
    """Return a number that is written as on the pages.

    >>> [quantity(text) for text in ("64 KiB", "0x40", "0o600", "2^63 - 1", "0.5 s", "10,000")]
    [65536, 64, 384, 9223372036854775807, 0.5, 10000]
    """
    text = text.replace(",", "")
    if power := re.fullmatch(r"2\^(\d+)( - 1)?", text):
        return (1 << int(power[1])) - (1 if power[2] else 0)
    number, _, unit = text.partition(" ")
    value = float(number) if re.fullmatch(r"\d+\.\d+", number) else int(number, 0)
    return value * _UNITS[unit] if unit else value
