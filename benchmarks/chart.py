"""Draw rates as bars, one panel per row, as SVG without dependencies."""

import math
from collections.abc import Sequence
from html import escape

from measure import Outcome

_WIDTH, _LEFT, _RIGHT, _BAR, _TITLE = 930, 220, 90, 20, 34
_DECADES = (2, 7)  # from a hundred a second to ten million
_OURS, _PEER = "#1f6f8b", "#b8c4c9"


def as_svg(title: str, outcomes: Sequence[Outcome]) -> str:
    """Every row that has rates, on one logarithmic scale."""
    parts: list[str] = []
    top = 50
    for outcome in outcomes:
        bars = [
            (one.name + _what(figure), rate)
            for one in outcome.row.contenders
            for figure, rate in (outcome.median(one) or {}).items()
            if figure == "rate" or figure.endswith("_per_s")
        ]
        if not bars or not outcome.row.unit.endswith("/s"):
            continue
        parts.append(_text(10, top + 18, f"{outcome.row.title}, {outcome.row.unit}", "bold"))
        top += _TITLE
        bars.sort(key=lambda bar: -bar[1])
        parts += _scale(top, top + _BAR * len(bars))
        for name, rate in bars:
            parts += _bar(top, name, rate)
            top += _BAR
        top += 10
    heading = _text(10, 28, title, "bold", size=18)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 10}" '
        f'font-family="sans-serif" font-size="13">\n'
        f'<rect width="{_WIDTH}" height="{top + 10}" fill="white"/>\n'
        + "\n".join([heading, *parts])
        + "\n</svg>\n"
    )


def _what(figure: str) -> str:
    """Return what a rate is of, if a contender has several."""
    return "" if figure == "rate" else f": {figure.removesuffix('_per_s')}"


def _bar(top: int, name: str, rate: float) -> list[str]:
    # Not a peer: Penstock, or one of the ways to use it.
    colour = _OURS if name.startswith("penstock") or name[0].isdigit() else _PEER
    end = _x(rate)
    return [
        f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>',
        f'<rect x="{_LEFT}" y="{top + 3}" width="{max(end - _LEFT, 1):.1f}" '
        f'height="{_BAR - 6}" fill="{colour}"/>',
        _text(round(end) + 6, top + 15, _short(rate)),
    ]


def _scale(top: int, bottom: int) -> list[str]:
    lines = []
    for decade in range(_DECADES[0], _DECADES[1] + 1):
        x = _x(10.0**decade)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="#e3e8ea"/>')
        lines.append(
            f'<text x="{x:.1f}" y="{top - 3}" text-anchor="middle" font-size="10" '
            f'fill="#78868c">{_short(10.0**decade)}</text>'
        )
    return lines


def _x(rate: float) -> float:
    low, high = _DECADES
    part = (math.log10(max(rate, 10.0**low)) - low) / (high - low)
    return _LEFT + min(part, 1.0) * (_WIDTH - _LEFT - _RIGHT)


def _text(x: int, y: int, text: str, weight: str = "normal", size: int = 13) -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}" font-size="{size}">{escape(text)}</text>'


def _short(value: float) -> str:
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
