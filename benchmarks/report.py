"""Format results as an aligned table, a Markdown page and JSON."""

from collections.abc import Sequence
from typing import Any

from measure import OTHERS, Contender, Figures, Outcome, Target

_UNITS = ((1e6, " M"), (1e3, " k"))


def as_dict(
    benchmark: str, facts: dict[str, Any], rounds: int, outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """Everything, for JSON."""
    return {
        "benchmark": benchmark,
        "facts": facts,
        "rounds": rounds,
        "rows": [_row_as_dict(outcome) for outcome in outcomes],
    }


def _row_as_dict(outcome: Outcome) -> dict[str, Any]:
    row = outcome.row
    return {
        "name": row.name,
        "title": row.title,
        "unit": row.unit,
        "others": round(outcome.others, 3),
        "contenders": [
            {
                "name": one.name,
                "does": one.does,
                "median": _rounded(outcome.median(one)),
                "rounds": [_rounded(r[one.name]) for r in outcome.rounds if one.name in r],
            }
            for one in row.contenders
        ],
        "targets": [
            {
                "says": verdict.target.says,
                "value": None if verdict.value is None else round(verdict.value, 3),
                "at_least": verdict.target.at_least,
                "at_most": verdict.target.at_most,
                "outcome": verdict.outcome,
            }
            for verdict in outcome.verdicts
        ],
    }


def as_table(outcomes: Sequence[Outcome]) -> str:
    """The figures of each row, then its targets; plain text."""
    lines = []
    for outcome in outcomes:
        row = outcome.row
        lines.append(f"{row.title}, {row.unit} (others took {outcome.others:.0%} of the machine)")
        width = max(len(one.name) for one in row.contenders)
        lines += [
            f"    {one.name:<{width}}  {_figures(outcome.median(one)):>12}"
            for one in row.contenders
        ]
        for verdict in outcome.verdicts:
            value = "" if verdict.value is None else _value(verdict.target, verdict.value)
            lines.append(f"  {verdict.outcome:>7}  {value:>9}   {verdict.target.says}")
        lines.append("")
    return "\n".join(lines)


def as_markdown(title: str, facts: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """A page to keep beside the JSON."""
    lines = [f"# {title}", "", "| | |", "|---|---|"]
    lines += [f"| {name.replace('_', ' ')} | {value} |" for name, value in facts.items()]
    lines += ["", "## Targets", "", "| row | target | measured | |", "|---|---|---|---|"]
    for outcome in outcomes:
        for verdict in outcome.verdicts:
            value = "" if verdict.value is None else _value(verdict.target, verdict.value)
            lines.append(
                f"| {outcome.row.title} | {verdict.target.says} | {value} | {verdict.outcome} |"
            )
    lines += ["", "## Figures", ""]
    lines += ["| row | what | median | it does |", "|---|---|---|---|"]
    for outcome in outcomes:
        for one in outcome.row.contenders:
            figures = _figures(outcome.median(one))
            lines.append(f"| {outcome.row.name}, {outcome.row.unit} | {_cells(one, figures)} |")
    lines += ["", "## Disturbance", "", "The share of the machine that other processes took.", ""]
    lines += ["| row | rounds | others |", "|---|---|---|"]
    for outcome in outcomes:
        lines.append(f"| {outcome.row.name} | {len(outcome.rounds)} | {outcome.others:.0%} |")
    return "\n".join(lines) + "\n"


def _cells(contender: Contender, figures: str) -> str:
    return f"{contender.name} | {figures} | {contender.does}"


def _figures(figures: Figures | None) -> str:
    if figures is None:
        return "not installed"
    if "rate" in figures:
        return _short(figures["rate"]) + _spent(figures)
    return ", ".join(_figure(*item) for item in figures.items() if item[0] != OTHERS)


def _figure(name: str, value: float) -> str:
    if name.endswith("_per_s"):
        return f"{name.removesuffix('_per_s')} {_short(value)}"
    return f"{name.removesuffix('_us')} {value:.1f}"


def _spent(figures: Figures) -> str:
    if "cpu_us" in figures:
        return f" ({figures['cpu_us']:.0f} µs of processors each)"
    if "cpu_s" not in figures:
        return ""
    return f" ({figures['wall_s']:.2f} s, {figures['cpu_s']:.2f} s of processors)"


def _value(target: Target, value: float) -> str:
    if target.at_most is not None and value < 1:
        return f"{value:.3f}"
    if target.at_most is not None or value >= 1000:
        return _short(value)
    return f"{value:.2f} x"


def _short(value: float) -> str:
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:.1f}"


def _rounded(figures: Figures | None) -> Figures | None:
    if figures is None:
        return None
    return {name: round(value, 3) for name, value in figures.items()}
