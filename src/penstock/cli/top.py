"""`penstock top`: the busiest queues, in a table that is updated."""

from collections.abc import Sequence
from threading import Event
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.admin import queue_cells, queue_json, queue_table
from penstock.cli.formatting import local_time, number, printable
from penstock.cli.options import AsJson, argument, duration_option, option
from penstock.cli.targets import QueueRow, is_queue_directory, queue_row, queue_rows
from penstock.cli.terminal import out, print_json_line
from penstock.client import ClientOptions, is_url
from penstock.clock import Clock, SystemClock
from penstock.errors import NotALedger, PenstockError
from penstock.model import NS, Stats


def top(
    target: Annotated[
        str, argument("TARGET", "URL or data directory of a broker, or one queue's.")
    ],
    interval: Annotated[float, duration_option("Time between two updates.")] = 2.0,
    rows: Annotated[int, option("Maximum number of queues.", "--rows", "-n", min=1)] = 30,
    once: Annotated[bool, option("Show the queues once, then exit.", "--once")] = False,
    json: AsJson = False,
) -> None:
    """Show the busiest queues with their rates of publishing and acking, until Ctrl-C."""
    rates = Rates(SystemClock())
    try:
        if json or once:
            while True:
                found = rates.update(_rows(target))[:rows]
                if json:
                    for one in found:
                        published, acked = one.published_per_s, one.acked_per_s
                        per_s = {"published_per_s": published, "acked_per_s": acked}
                        print_json_line(queue_json(one.row) | per_s)
                    out.file.flush()
                else:
                    out.print(_table(found))
                if once:
                    return
                Event().wait(interval)
        with Live(console=out, auto_refresh=False, screen=out.is_terminal) as live:
            while True:
                live.update(screen(target, rates, rows), refresh=True)
                Event().wait(interval)
    except KeyboardInterrupt:
        return


def screen(target: str, rates: "Rates", rows: int) -> Group:
    """Return what is shown until the next update: the table, or why a broker does not answer."""
    now = local_time(SystemClock().now_ns() / NS)
    try:
        found = rates.update(_rows(target))
    except NotALedger:
        raise  # probably a misspelt directory: do not wait for it
    except PenstockError as error:
        return Group(Text(f"{target}   {now}"), Text(printable(str(error)), style="red"))
    shown = f", the busiest {rows} shown" if len(found) > rows else ""
    head = Text(f"{target}   {now}   {number(len(found), 'queue')}{shown}")
    return Group(head, _table(found[:rows]))


def _rows(target: str) -> list[QueueRow]:
    """Return one queue, or all queues of a broker."""
    one_queue = urlsplit(target).path.strip("/") if is_url(target) else is_queue_directory(target)
    if one_queue:
        return [queue_row(target, target)]
    return queue_rows(target, options=ClientOptions(retry_s=0))  # the next update is the retry


class RowWithRates(NamedTuple):
    """A queue and its rates since the last update; None at the first."""

    row: QueueRow
    published_per_s: float | None
    acked_per_s: float | None


class Rates:
    """The rates of queues between two updates."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[str, tuple[int, Stats]] = {}

    def update(self, rows: Sequence[QueueRow]) -> list[RowWithRates]:
        """Return the rows with their rates since the last update, busiest first."""
        now_ns = self._clock.monotonic_ns()
        found = [self._with_rates(row, now_ns) for row in rows]
        self._last = {row.queue: (now_ns, row.stats) for row in rows if row.stats is not None}
        return sorted(found, key=_busyness)

    def _with_rates(self, row: QueueRow, now_ns: int) -> RowWithRates:
        before = self._last.get(row.queue)
        if before is None or row.stats is None or now_ns == before[0]:
            return RowWithRates(row, None, None)
        seconds, stats = (now_ns - before[0]) / NS, before[1]
        return RowWithRates(
            row,
            max(row.stats.published - stats.published, 0) / seconds,
            max(row.stats.acked - stats.acked, 0) / seconds,
        )


def _busyness(one: RowWithRates) -> tuple[float, int, str]:
    stats = one.row.stats
    waiting = 0 if stats is None else stats.ready + stats.leased
    return -((one.published_per_s or 0) + (one.acked_per_s or 0)), -waiting, one.row.queue


def _table(rows: list[RowWithRates]) -> Table:
    made = queue_table("in/s", "done/s")
    for one in rows:
        rates = _rate(one.published_per_s), _rate(one.acked_per_s)
        made.add_row(*queue_cells(one.row, *rates))
    return made


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"
