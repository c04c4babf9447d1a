"""The report: one HTML page with plots, without scripts or external files."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from examples.pipeline import tables
from examples.pipeline.layout import BRONZE, GOLD, Layout

if TYPE_CHECKING:
    from examples.pipeline.reconcile import Reconciliation

BARS_MAX = 240  # of one plot; the newest are shown
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 860, 200, 60, 26
_COLOURS = ("#2f6fdd", "#e08a1e", "#2c8c5a", "#c2374f", "#7a5cc4", "#5d6b7c")
_STYLE = """
body { margin: 0 auto; max-width: 940px; padding: 32px 24px; color: #1c2430; background: #f4f6f9;
  font: 15px/1.5 system-ui, sans-serif; }
section { background: #fff; border: 1px solid #dfe5ec; border-radius: 10px; padding: 16px 20px;
  margin: 16px 0; }
h1 { font-size: 24px; } h2 { font-size: 16px; margin: 0 0 8px; }
.verdict { font-size: 18px; font-weight: 600; } .good { color: #2c8c5a; } .bad { color: #c2374f; }
table { border-collapse: collapse; } td { padding: 3px 20px 3px 0; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { fill: #5d6b7c; font-size: 11px; }
svg line { stroke: #dfe5ec; } .key span { margin-right: 16px; font-size: 13px; }
.key i { display: inline-block; width: 10px; height: 10px; margin-right: 6px; }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a plot: parts on top of each other, by name."""

    label: str
    parts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Figures:
    """What the page shows."""

    sales: Sequence[Bar]  # cents by window and product
    messages: Sequence[Bar]  # by window of their publish time: accepted, rejected
    reasons: Sequence[Bar]


def figures(spark: SparkSession, layout: Layout) -> Figures:
    """Compute what the page shows: the newest BARS_MAX windows."""
    gold = layout.read(spark, "gold", f"{GOLD}, batch INT").drop("batch")
    sold = gold.groupBy("window_start").agg(
        f.map_from_entries(f.collect_list(f.struct("product", "cents"))).alias("parts")
    )
    judged = tables.judged(layout.read(spark, "bronze", BRONZE), layout)
    window = f.window("timestamp", f"{layout.window_s} seconds").start.alias("window_start")
    came = judged.groupBy(window).agg(
        f.expr("count_if(reason IS NULL)").alias("accepted"),
        f.expr("count_if(reason = 'late')").alias("late"),
        f.expr("count_if(reason IS NOT NULL AND reason <> 'late')").alias("bad"),
    )
    reasons = judged.where("reason IS NOT NULL").groupBy("reason").count().orderBy("reason")
    newest = f.col("window_start").desc()
    kinds = ("accepted", "late", "bad")
    return Figures(
        [
            Bar(f"{row.window_start:%H:%M:%S}", dict(sorted(row.parts.items())))
            for row in reversed(sold.orderBy(newest).limit(BARS_MAX).collect())
        ],
        [
            Bar(f"{row.window_start:%H:%M:%S}", {kind: row[kind] for kind in kinds})
            for row in reversed(came.orderBy(newest).limit(BARS_MAX).collect())
        ],
        [Bar(row["reason"], {"messages": row["count"]}) for row in reasons.limit(20).collect()],
    )


def page(figures: Figures, result: "Reconciliation") -> str:
    """Return the whole page."""
    verdict = (
        '<p class="verdict good">Nothing is missing, and nothing is double.</p>'
        if result.is_exact
        else '<p class="verdict bad">The tables do not agree.</p>'
    )
    counts = "".join(
        f"<tr><td>{escape(name)}</td><td class=n>{count:,}</td></tr>"
        for name, count in (*result.counts.items(), *result.problems.items())
    )
    until = "" if result.until is None else f"<p>Published before {escape(result.until)}.</p>"
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Orders</title>"
        f"<style>{_STYLE}</style></head><body><h1>Orders</h1>{verdict}{until}"
        f"<section><h2>Sales by window (cents)</h2>{_plot(figures.sales)}</section>"
        f"<section><h2>Messages by window</h2>{_plot(figures.messages)}</section>"
        f"<section><h2>Rejected, by reason</h2>{_plot(figures.reasons)}</section>"
        f"<section><h2>Reconciliation</h2><table>{counts}</table></section></body></html>\n"
    )


def _plot(bars: Sequence[Bar]) -> str:
    """Return stacked bars as SVG, with a legend."""
    if not bars:
        return "<p>There are none.</p>"
    names = sorted({name for bar in bars for name in bar.parts})
    top = max(max(sum(bar.parts.values()) for bar in bars), 1)
    step = (_WIDTH - _LEFT) / len(bars)
    scale = (_HEIGHT - _BOTTOM - 10) / top
    shapes = []
    for share in (0, 0.5, 1):
        y = _HEIGHT - _BOTTOM - share * top * scale
        shapes.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH}" y2="{y:.1f}"/>')
        label = f"{round(share * top):,}"
        shapes.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    every = max(len(bars) // 8, 1)  # labels that fit
    for number, bar in enumerate(bars):
        x, y = _LEFT + number * step, float(_HEIGHT - _BOTTOM)
        title = f"{bar.label}: " + ", ".join(f"{name} {n:,}" for name, n in bar.parts.items())
        shapes.append(f"<g><title>{escape(title)}</title>")
        for name in names:
            height = bar.parts.get(name, 0) * scale
            y -= height
            shapes.append(
                f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" '
                f'height="{height:.1f}" fill="{_COLOURS[names.index(name) % len(_COLOURS)]}"/>'
            )
        shapes.append("</g>")
        if number % every == 0:
            shapes.append(f'<text x="{x:.1f}" y="{_HEIGHT - 8}">{escape(bar.label[:24])}</text>')
    legend = "".join(
        f'<span><i style="background:{_COLOURS[at % len(_COLOURS)]}"></i>{escape(name)}</span>'
        for at, name in enumerate(names)
    )
    picture = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(shapes)}</svg>'
    return f'{picture}<p class="key">{legend}</p>'
