"""`penstock top`: queues as they change, in a table that stays."""

from threading import Event
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.parameters import AsJson
from penstock.cli.queues import COUNTS, queue_json
from penstock.cli.rates import Rates, RowWithRates
from penstock.cli.terminal import out, table, write_json_line
from penstock.cli.watching import rows_of
from penstock.cli.words import moment, number, plain, seconds_of, span
from penstock.clock import SystemClock
from penstock.errors import NotALedger, PenstockError
from penstock.model import NS


def top(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="The URL or data directory of a broker, or a queue.",
            show_default=False,
        ),
    ],
    interval: Annotated[
        float, typer.Option(metavar="DURATION", parser=seconds_of, help="How often to look.")
    ] = 2.0,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="At most so many queues.")] = 30,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    json: AsJson = False,
) -> None:
    """Show the busiest queues, with what is published and acked a second, until Ctrl-C."""
    rates = Rates(SystemClock())
    try:
        if json or once:
            while True:
                found = rates.of(rows_of(place))
                if json:
                    for row in found[:rows]:
                        write_json_line(
                            {
                                **queue_json(row.row),
                                "published_per_s": row.published_per_s,
                                "acked_per_s": row.acked_per_s,
                            }
                        )
                    out.file.flush()
                else:
                    out.print(_table(found[:rows]))
                if once:
                    return
                Event().wait(interval)
        with Live(console=out, auto_refresh=False, screen=out.is_terminal) as live:
            while True:
                live.update(_screen(place, rates, rows), refresh=True)
                Event().wait(interval)
    except KeyboardInterrupt:
        return


def _screen(place: str, rates: Rates, rows: int) -> Group:
    """What stands there until the next look; a broker that is away is waited for."""
    now = moment(SystemClock().now_ns() / NS)
    try:
        found = rates.of(rows_of(place))
    except NotALedger:
        raise  # a directory that was misspelt: there is nothing to wait for
    except PenstockError as error:
        return Group(Text(f"{place}   {now}"), Text(plain(str(error)), style="red"))
    shown = f", the busiest {rows} shown" if len(found) > rows else ""
    return Group(
        Text(f"{place}   {now}   {number(len(found), 'queue')}{shown}"), _table(found[:rows])
    )


def _table(rows: list[RowWithRates]) -> Table:
    heads = ["in/s", "done/s", *COUNTS, "oldest ready"]
    made = table("queue", *heads, right=heads, rest="queue")
    for one in rows:
        stats = one.row.stats
        if stats is None:
            made.add_row(Text(plain(f"{one.row.queue}: {one.row.problem}"), style="red"))
            continue
        counts = [number(getattr(stats, count)) for count in COUNTS]
        oldest = span(stats.oldest_ready_age_s) if stats.ready else ""
        made.add_row(
            one.row.queue, _rate(one.published_per_s), _rate(one.acked_per_s), *counts, oldest
        )
    return made


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"
