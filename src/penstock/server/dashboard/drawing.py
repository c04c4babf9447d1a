"""Small pictures as SVG: sparklines, and the timeline of a message. Without any style attribute."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

_WIDTH, _HEIGHT = 120, 24


def sparkline(values: Sequence[float | None], label: str = "") -> Markup:
    """Return a line with an area below it. Gaps (None) stay gaps."""
    known = [value for value in values if value is not None]
    most = max(known, default=0.0) or 1.0
    step = _WIDTH / max(len(values) - 1, 1)
    lines: list[list[str]] = [[]]
    for at, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            y = _HEIGHT - 1.5 - (value / most) * (_HEIGHT - 3)
            lines[-1].append(f"{at * step:.1f},{y:.1f}")
    paths = []
    for line in lines:
        if not line:
            continue
        first, last = line[0].split(",")[0], line[-1].split(",")[0]
        points = " ".join(line)
        paths.append(
            f'<polygon points="{first},{_HEIGHT} {points} {last},{_HEIGHT}"/>'
            f'<polyline points="{points}"/>'
        )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"'
        ' aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, label, Markup("".join(paths)))


class Stretch(NamedTuple):
    """A part of a message's life, from one event to the next."""

    state: str  # waiting, leased …
    start_ns: int
    end_ns: int
    title: str


def timeline(stretches: Sequence[Stretch], label: str) -> Markup:
    """Return the stretches as bars on one line, to scale, none narrower than can be seen."""
    if not stretches:
        return Markup()
    start, end = stretches[0].start_ns, stretches[-1].end_ns
    whole = max(end - start, 1)
    least = 6.0
    widths = [max((one.end_ns - one.start_ns) / whole * 1000, least) for one in stretches]
    scale = 1000 / sum(widths)
    bars, x = [], 0.0
    for one, width in zip(stretches, widths, strict=True):
        shown = width * scale
        bars.append(
            Markup(
                '<rect class="state-{}" x="{:.2f}" y="4" width="{:.2f}" height="20" rx="2">'
                "<title>{}</title></rect>"
            ).format(one.state, x, max(shown - 1.5, 1.0), one.title)
        )
        x += shown
    return Markup(
        '<svg class="timeline" viewBox="0 0 1000 28" preserveAspectRatio="none" role="img"'
        ' aria-label="{}">{}</svg>'
    ).format(label, Markup("").join(bars))
