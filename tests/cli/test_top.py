"""What `penstock top` works out between two looks, and what stands there while a broker is away."""

import io
import socket

import pytest
from rich.console import Console

import penstock
from penstock.cli.targets import QueueRow
from penstock.cli.top import Rates, screen
from penstock.clock import ManualClock
from penstock.model import Stats


@pytest.fixture
def empty(tmp_path_factory: pytest.TempPathFactory) -> Stats:
    with penstock.open(tmp_path_factory.mktemp("queue")) as queue:
        return queue.stats()


def test_rates_are_what_changed_in_the_time_between(empty: Stats) -> None:
    clock = ManualClock()
    rates = Rates(clock)
    (first,) = rates.update([QueueRow("a/b", empty._replace(published=100, acked=10))])
    assert (first.published_per_s, first.acked_per_s) == (None, None)
    clock.advance(2)
    (second,) = rates.update([QueueRow("a/b", empty._replace(published=120, acked=11))])
    assert (second.published_per_s, second.acked_per_s) == (10, 0.5)


def test_a_queue_that_was_made_anew_has_no_negative_rate(empty: Stats) -> None:
    clock = ManualClock()
    rates = Rates(clock)
    rates.update([QueueRow("a/b", empty._replace(published=100))])
    clock.advance(1)
    (row,) = rates.update([QueueRow("a/b", empty)])
    assert row.published_per_s == 0


def test_the_busiest_come_first_and_those_that_cannot_be_read_last(empty: Stats) -> None:
    clock = ManualClock()
    rates = Rates(clock)
    names = ["idle", "deep", "fast", "broken"]
    rates.update([QueueRow(name, empty) for name in names])
    clock.advance(1)
    rows = [
        QueueRow("idle", empty),
        QueueRow("deep", empty._replace(ready=1000)),
        QueueRow("fast", empty._replace(published=50)),
        QueueRow("broken", None, "no"),
    ]
    assert [row.row.queue for row in rates.update(rows)] == ["fast", "deep", "broken", "idle"]


def test_a_broker_that_is_away_is_told_and_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    shown = Console(file=io.StringIO(), width=200)
    shown.print(screen(url, Rates(ManualClock()), 10))
    assert "no connection to" in shown.file.getvalue()  # type: ignore[attr-defined]
