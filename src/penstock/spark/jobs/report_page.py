"""The report as one HTML page, without scripts or external files."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.jobs.report import QueueReport

_Row = Mapping[str, Any]
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 880, 220, 64, 28, 12

_STYLE = """
:root { --ink: #1c2430; --soft: #5d6b7c; --line: #dfe5ec; --card: #ffffff; --back: #f4f6f9;
  --one: #2f6fdd; --two: #e08a1e; --three: #c2374f; --good: #2c8c5a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ecf3; --soft: #9aa8b8; --line: #2c3644;
  --card: #18202b; --back: #10161f; --one: #6ea2ff; --two: #f0ab4f; --three: #f07188;
  --good: #58c48c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 36px 24px 60px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 44px 0 4px; }
h3 { font-size: 15px; margin: 0 0 10px; }
p.lead { color: var(--soft); margin: 4px 0 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr)); gap: 10px;
  margin: 18px 0; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 22px; font-weight: 650; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.tile.bad b { color: var(--three); }
.tile.good b { color: var(--good); }
.card { padding: 18px 20px; margin: 14px 0; overflow-x: auto; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(400px, 1fr)); gap: 14px; }
.two .card { margin: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; font-size: 13px; }
th, td { padding: 6px 18px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; white-space: nowrap; }
td.t { word-break: break-word; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 11px; }
svg line { stroke: var(--line); }
.key { color: var(--soft); font-size: 13px; display: flex; gap: 16px; flex-wrap: wrap; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
footer { color: var(--soft); font-size: 13px; margin-top: 40px; }
"""


def page(reports: Sequence["QueueReport"], made_at: datetime) -> str:
    """Return the whole page."""
    sections = "".join(_section(one) for one in reports)
    names = ", ".join(escape(one.queue) for one in reports)
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>Queue report: {names}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>Queue report</h1><p class=lead>{names} · {made_at:%d %B %Y, %H:%M} UTC</p>"
        f"{sections}<footer>Times are UTC. “Wait” is the time from when a message was due to its "
        "first delivery; “work” is the time from delivery to the end of an attempt.</footer>"
        "</main></body></html>\n"
    )


def _section(one: "QueueReport") -> str:
    if not one.totals.get("published"):
        return f"<h2>{escape(one.queue)}</h2><p class=lead>No messages were published.</p>"
    return (
        f"<h2>{escape(one.queue)}</h2>"
        f"<p class=lead>{_verdict(one)} Consumer group “{escape(one.group)}”, {_period(one)}.</p>"
        + _tiles(one)
        + _throughput(one.by_hour)
        + _waits(one.by_hour)
        + "<div class=two>"
        + _card("By priority", _priorities(one.by_priority))
        + _card("Attempts per message", _attempts(one.attempts))
        + "</div>"
        + _card("Why attempts failed", _reasons(one.reasons))
        + _card("Messages that keep failing", _poison(one.poison))
    )


def _verdict(one: "QueueReport") -> str:
    totals = one.totals
    dead, late = totals["dead"], totals["sla_breaches"]
    if dead or late:
        parts = []
        if late:
            parts.append(f"{late:,} waited longer than {_seconds(one.sla_s)}")
        if dead:
            parts.append(f"{dead:,} became dead letters")
        return f"Needs attention: {' and '.join(parts)}."
    return f"No dead letters, and no message waited longer than {_seconds(one.sla_s)}."


def _period(one: "QueueReport") -> str:
    hours = [hour["hour"] for hour in one.by_hour if hour["hour"] is not None]
    if not hours:
        return "no events yet"
    return f"{hours[0]:%d %b %Y %H:00} to {hours[-1]:%d %b %Y %H:59}"


def _tiles(one: "QueueReport") -> str:
    totals = one.totals
    tiles = [
        ("published", f"{totals['published']:,}", ""),
        ("done", f"{totals['acked']:,}", ""),
        ("wait, median", _seconds(one.wait_s["p50"]), ""),
        ("wait, p95", _seconds(one.wait_s["p95"]), ""),
        ("work, p95", _seconds(one.work_s["p95"]), ""),
        (
            f"waited over {_seconds(one.sla_s)}",
            f"{totals['sla_breaches']:,}",
            "bad" if totals["sla_breaches"] else "good",
        ),
        ("dead letters", f"{totals['dead']:,}", "bad" if totals["dead"] else "good"),
    ]
    made = "".join(f"<div class='tile {c}'><b>{v}</b><span>{n}</span></div>" for n, v, c in tiles)
    return f"<div class=tiles>{made}</div>"


# -- charts ----------------------------------------------------------------------------------------


def _throughput(hours: Sequence[_Row]) -> str:
    series = [
        ("published", "var(--one)", [hour["published"] or 0 for hour in hours]),
        ("done", "var(--good)", [hour["done"] or 0 for hour in hours]),
        ("failed attempts", "var(--two)", [hour["failed"] or 0 for hour in hours]),
        ("dead letters", "var(--three)", [hour["dead"] or 0 for hour in hours]),
    ]
    series = [one for one in series if any(one[2])]
    return _card("Messages per hour", _key(series) + _bars(hours, series))


def _waits(hours: Sequence[_Row]) -> str:
    series = [
        ("median", "var(--one)", [hour["wait_p50"] for hour in hours]),
        ("p95", "var(--two)", [hour["wait_p95"] for hour in hours]),
        ("longest", "var(--three)", [hour["longest_wait"] for hour in hours]),
    ]
    if not any(value is not None for one in series for value in one[2]):
        return ""
    return _card("Wait before the first delivery", _key(series) + _lines(hours, series))


_Series = tuple[str, str, Sequence[float | None]]


def _key(series: Sequence[_Series]) -> str:
    made = "".join(f"<span><i style='background:{c}'></i>{escape(n)}</span>" for n, c, _ in series)
    return f"<div class=key>{made}</div>"


def _bars(hours: Sequence[_Row], series: Sequence[_Series]) -> str:
    top = _round_up(max((v or 0 for _, _, values in series for v in values), default=1))
    slot = (_WIDTH - _LEFT) / max(len(hours), 1)
    width = min(slot * 0.8 / max(len(series), 1), 26)
    made = _frame(hours, top, lambda value: f"{value:,.0f}")
    for number, (name, colour, values) in enumerate(series):
        for at, value in enumerate(values):
            if value:
                x = _LEFT + at * slot + slot / 2 + (number - len(series) / 2) * width
                y = _y(value, top)
                height = _HEIGHT - _BOTTOM - y
                title = f"{_hour(hours[at])}: {value:,} {name}"
                made += (
                    f"<rect x={x:.1f} y={y:.1f} width={max(width - 1, 1):.1f} height={height:.1f} "
                    f"rx=1.5 fill='{colour}'><title>{escape(title)}</title></rect>"
                )
    return f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img>{made}</svg>"


def _lines(hours: Sequence[_Row], series: Sequence[_Series]) -> str:
    top = _round_up_time(max((v or 0.0 for _, _, values in series for v in values), default=1.0))
    slot = (_WIDTH - _LEFT) / max(len(hours), 1)
    made = _frame(hours, top, _seconds)
    for name, colour, values in series:
        points = [
            (_LEFT + at * slot + slot / 2, _y(value, top), at, value)
            for at, value in enumerate(values)
            if value is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
        made += f"<polyline points='{path}' fill=none stroke='{colour}' stroke-width=2 />"
        for x, y, at, value in points:
            title = f"{_hour(hours[at])}: {name} {_seconds(value)}"
            made += (
                f"<circle cx={x:.1f} cy={y:.1f} r=3 fill='{colour}'>"
                f"<title>{escape(title)}</title></circle>"
            )
    return f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img>{made}</svg>"


def _frame(hours: Sequence[_Row], top: float, label: Callable[[float], str]) -> str:
    """Return the grid lines and labels of a chart."""
    made = ""
    for part in (0, 0.25, 0.5, 0.75, 1):
        y = _y(top * part, top)
        made += f"<line x1={_LEFT} x2={_WIDTH} y1={y:.1f} y2={y:.1f} />"
        made += f"<text x={_LEFT - 8} y={y + 4:.1f} text-anchor=end>{label(top * part)}</text>"
    slot = (_WIDTH - _LEFT) / max(len(hours), 1)
    step = max(-(-len(hours) // 9), 1)
    for at in range(0, len(hours), step):
        x = _LEFT + at * slot + slot / 2
        anchor = "end" if x > _WIDTH - 40 else "middle"  # keep the last label inside
        x = min(x, _WIDTH - 2)
        made += f"<text x={x:.1f} y={_HEIGHT - 8} text-anchor={anchor}>{_hour(hours[at])}</text>"
    return made


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / (top or 1)


def _round_up(value: float) -> float:
    """Return the next round number, for an axis of four parts."""
    size = 1.0
    while size * 10 < value:
        size *= 10
    return next((size * n for n in (1, 2, 3, 4, 5, 6, 8, 10) if size * n >= value), value)


def _round_up_time(value: float) -> float:
    """Return a round time whose quarters are whole milliseconds, seconds, minutes or hours."""
    for unit, most in ((0.001, 1), (1, 60), (60, 3600), (3600, 1e12)):
        if value <= most:
            quarter = next(n for n in _QUARTERS if n * unit * 4 >= value)
            return quarter * unit * 4
    return value


_QUARTERS = (1, 2, 3, 5, 10, 15, 20, 25, 30, 50, 100, 150, 200, 250, 500, 1000, 5000, 1e9)


def _hour(hour: _Row) -> str:
    return f"{hour['hour']:%d %b %H:00}" if hour["hour"] is not None else "?"


# -- tables ----------------------------------------------------------------------------------------

_ENDINGS = {"nacked": "retried", "dead": "dead letter", "timed_out": "lease timed out"}


def _card(title: str, body: str) -> str:
    return f"<div class=card><h3>{escape(title)}</h3>{body}</div>" if body else ""


def _table(
    rows: Sequence[_Row], columns: Mapping[str, Callable[[_Row], str]], *, none: str = ""
) -> str:
    """Return a table. A column whose title ends with `:` is text, others are numbers."""
    if not rows and none:
        return f"<p class=lead>{none}</p>"
    kinds = ["t" if title.endswith(":") else "n" for title in columns]
    heads = [escape(title.rstrip(":")) for title in columns]
    lines = [[escape(value(row)) for value in columns.values()] for row in rows]

    def line(tag: str, cells: Sequence[str]) -> str:
        made = [f"<{tag} class={k}>{cell}</{tag}>" for k, cell in zip(kinds, cells, strict=True)]
        return f"<tr>{''.join(made)}</tr>"

    return f"<table>{line('th', heads)}{''.join(line('td', cells) for cells in lines)}</table>"


def _priorities(rows: Sequence[_Row]) -> str:
    return _table(
        rows,
        {
            "priority": lambda row: str(row["priority"]),
            "messages": lambda row: f"{row['messages']:,}",
            "median": lambda row: _seconds(row["wait_p50"]),
            "p95": lambda row: _seconds(row["wait_p95"]),
            "late": lambda row: f"{row['late'] or 0:,}",
        },
    )


def _attempts(rows: Sequence[_Row]) -> str:
    total = sum(row["messages"] for row in rows) or 1
    return _table(
        rows[:12],
        {
            "attempts": lambda row: str(row["attempts"]),
            "messages": lambda row: f"{row['messages']:,}",
            "share": lambda row: f"{row['messages'] / total:.1%}",
        },
    )


def _reasons(rows: Sequence[_Row]) -> str:
    return _table(
        rows,
        {
            "reason:": lambda row: row["reason"] or "none given",
            "then:": lambda row: _ENDINGS[row["outcome"]],
            "times": lambda row: f"{row['times']:,}",
            "messages": lambda row: f"{row['messages']:,}",
        },
        none="No attempt failed.",
    )


def _poison(rows: Sequence[_Row]) -> str:
    return _table(
        rows,
        {
            "message": lambda row: f"{row['seq']:,}",
            "attempts": lambda row: str(row["attempts"]),
            "last outcome:": lambda row: str(row["outcome"]).replace("_", " "),
            "last reason:": lambda row: row["reason"] or "",
        },
        none="None.",
    )


def _seconds(value: float | None) -> str:
    """Return a time with a readable unit."""
    if value is None:
        return "–"
    if value < 0.0995:
        return f"{value * 1000:.0f} ms" if value >= 0.001 or not value else "<1 ms"
    if value < 99.5:
        return f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s"
    if value < 5940:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h" if value < 172800 else f"{value / 86400:.1f} days"
