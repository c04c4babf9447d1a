"""Write the figures of docs/measured.md and draw docs/measured.svg from the recorded benchmarks.

They come from benchmarks/results/*.json. Run it again after a benchmark:

    python scripts/write_measured.py
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "measured.md"
PICTURE = ROOT / "docs" / "measured.svg"
RESULTS = ROOT / "benchmarks" / "results"
START, END = (
    "<!-- figures: written by scripts/write_measured.py -->",
    "<!-- end of figures -->",
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One row of a benchmark that is shown.

    Args:
        result: Name of the file of results.
        row: Name of the row in it.
        figure: Which figure of the row.
        title: What was done.
        is_drawn: Whether it is in the picture too.
        left_out: Contenders that are not shown.
        counts: What is counted by the second.
    """

    result: str
    row: str
    figure: str
    title: str
    is_drawn: bool = False
    left_out: tuple[str, ...] = ()
    counts: str = "messages"


_ON_FILES = ("penstock, files",)
PANELS = (
    Panel("embedded", "enqueue", "rate", "In one process: enqueue, one at a time, no fsync"),
    Panel("embedded", "lease", "rate", "In one process: lease and ack, no fsync", is_drawn=True),
    Panel("embedded", "enqueue_batch", "rate", "In one process: enqueue in batches of 100"),
    Panel(
        *("tasks", "durable", "rate", "Tasks: enqueue and run, durable, by one core"),
        is_drawn=True,
        counts="jobs",
    ),
    Panel(
        *("tasks", "default", "rate", "Tasks: enqueue and run, no fsync a call, by one core"),
        counts="jobs",
    ),
    Panel("server", "publish", "rate", "Broker: durable publish, 64 connections", is_drawn=True),
    Panel("server", "lease", "rate", "Broker: durable lease and ack, 64 connections"),
    Panel(
        *("postgres", "singles", "lease_per_s"),
        "On PostgreSQL: lease and ack, durable",
        is_drawn=True,
        left_out=_ON_FILES,
    ),
    Panel(
        *("postgres", "batches", "publish_per_s"),
        "On PostgreSQL: publish in batches of 100",
        left_out=_ON_FILES,
    ),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One contender of a panel."""

    name: str
    does: str
    rate: float

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("penstock")


def bars_of(panel: Panel) -> list[Bar]:
    """Return the contenders of a panel, the fastest first."""
    rows = {row["name"]: row for row in results(panel.result)["rows"]}
    found = [
        Bar(one["name"], one["does"], one["median"][panel.figure])
        for one in rows[panel.row]["contenders"]
        if one["name"] not in panel.left_out and panel.figure in (one["median"] or {})
    ]
    return sorted(found, key=lambda bar: -bar.rate)


def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


# -- the page --------------------------------------------------------------------------------------


def section() -> str:
    """Return the generated text."""
    lines = [START, ""]
    for panel in PANELS:
        lines += [f"### {panel.title}", "", f"| | {panel.counts}/s | what it does |"]
        lines += ["|---|---|---|"]
        for bar in bars_of(panel):
            name = f"**{bar.name}**" if bar.is_ours else bar.name
            lines.append(f"| {name} | {rounded(bar.rate)} | {bar.does} |")
        lines += ["", *_remarks(panel), ""]
    return "\n".join([*lines, END])


def _remarks(panel: Panel) -> Iterator[str]:
    """Say how disturbed the row was, and link everything that was measured with it."""
    result = results(panel.result)
    (others,) = [row["others"] for row in result["rows"] if row["name"] == panel.row]
    yield (
        f"Medians of {result['rounds']} rounds; other programs took {others:.0%} of the machine. "
        f"[All of it](../benchmarks/results/{panel.result}.md)."
    )


def page(text: str) -> str:
    """Return a page with its generated part replaced."""
    before, _, rest = text.partition(START)
    return before + section() + rest.partition(END)[2]


def rounded(rate: float) -> str:
    """Return a rate with two or three digits that count.

    >>> [rounded(rate) for rate in (1_781_234, 193_440, 13_397, 471.9)]
    ['1,780,000', '193,000', '13,400', '472']
    """
    digits = len(str(int(rate)))
    return f"{round(rate, 3 - digits) if digits > 3 else round(rate):,.0f}"


# -- the picture -----------------------------------------------------------------------------------

STYLE = """
.page{fill:#ffffff}.ours{fill:#1f6f8b}.peer{fill:#b8c4c9}
.head{fill:#12313d;font-weight:bold}.text{fill:#3b4a50}
@media (prefers-color-scheme: dark){
.page{fill:#10181c}.ours{fill:#5fb3ce}.peer{fill:#4d5f67}.head{fill:#e8f3f7}.text{fill:#b9c8ce}}
"""
WIDTH, LEFT, LONGEST, ROW = 880, 180, 560, 24


def picture() -> str:
    """Return the whole SVG: the panels to draw, each with a linear scale of its own."""
    parts: list[str] = []
    top = 12
    for panel in PANELS:
        if not panel.is_drawn:
            continue
        top += 28
        parts.append(_text(16, top, f"{panel.title}, {panel.counts} a second", "head"))
        top += 8
        bars = bars_of(panel)
        for bar in bars:
            length = max(2, round(bar.rate / bars[0].rate * LONGEST))
            style = "ours" if bar.is_ours else "peer"
            parts.append(_text(LEFT - 8, top + 17, bar.name, "text", "end"))
            parts.append(
                f'<rect class="{style}" x="{LEFT}" y="{top + 4}" width="{length}" height="16"/>'
            )
            parts.append(_text(LEFT + length + 8, top + 17, rounded(bar.rate), "text"))
            top += ROW
    height = top + 16
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"',
            'font-family="Helvetica, Arial, sans-serif" font-size="14">',
            "<title>Rates of Penstock and of other queues on one machine</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _text(x: int, y: int, text: str, style: str, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    PICTURE.write_text(picture())
