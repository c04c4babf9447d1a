"""Write the figures of docs/which-interface.md from the recorded benchmark.

They come from benchmarks/results/interfaces.json. Run it again after `make bench-interfaces`:

    python scripts/write_interface_figures.py
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "which-interface.md"
RESULTS = ROOT / "benchmarks" / "results" / "interfaces.json"
START, END = (
    "<!-- figures: written by scripts/write_interface_figures.py -->",
    "<!-- end of figures -->",
)
NONE = "–"
BUSY = "The machine was busy: these figures show an order at best. Measure again where it matters."
_MUCH = 0.2  # a share of others that changes figures a lot

Medians = dict[str, dict[str, float]]  # by contender


def section(results: dict[str, Any]) -> str:
    """Return the generated text."""
    rows = {row["name"]: row for row in results["rows"]}
    latency, singles, batches = (_medians(rows[name]) for name in ("latency", "singles", "batches"))
    others = [row["others"] for row in results["rows"]]
    lines = [
        START,
        "",
        f"[Measured](../benchmarks/results/interfaces.md) in one run, medians of "
        f"{results['rounds']} rounds, on {results['facts']['cpu_count']} cores that run broker and",
        f"clients, and of which other programs took {min(others):.0%} to {max(others):.0%}. Every "
        f"publish and ack is durable when it is answered.",
        *([BUSY] if max(others) > _MUCH else []),
        "",
        "| interface | publish, p50 | p99 | publish to receipt, p50 | 16 clients, messages/s: "
        "publish | lease and ack | in batches: publish | lease and ack |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in latency:
        cells = [
            _time(latency[name], "publish_p50_us"),
            _time(latency[name], "publish_p99_us"),
            _time(latency[name], "delivery_p50_us"),
            _rate(singles.get(name), "publish_per_s"),
            _rate(singles.get(name), "consume_per_s"),
            _rate(batches.get(name), "publish_per_s"),
            _rate(batches.get(name), "consume_per_s"),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", END])


def _medians(row: dict[str, Any]) -> Medians:
    return {one["name"]: one["median"] for one in row["contenders"] if one["median"] is not None}


def _time(figures: dict[str, float], name: str) -> str:
    """Return a time in milliseconds with two digits that count; a dash if it was not measured."""
    if name not in figures:
        return NONE
    milliseconds = figures[name] / 1000
    return f"{milliseconds:.2f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def _rate(figures: dict[str, float] | None, name: str) -> str:
    """Return a rate with two digits that count; a dash if it was not measured."""
    if figures is None:
        return NONE
    step = 10 ** max(len(str(int(figures[name]))) - 2, 0)
    return f"{round(figures[name] / step) * step:,}"


def page(text: str, results: dict[str, Any]) -> str:
    """Return the page with its generated section written anew."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + section(results) + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULTS.read_text())))
