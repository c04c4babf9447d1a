"""`penstock demo` makes something of everything, and stops cleanly."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from penstock.client import connect_broker
from penstock.demo import QUEUES, Counts, run_demo
from tests.cli.command_line import CommandLine
from tests.server.running import RunningServer

NAMESPACE = "demo"
LONG_S = 600.0


async def run_until_all_was_seen(url: str) -> Counts:
    """Cancel the demo as soon as each count is positive, as Ctrl-C does."""
    counts = Counts()
    running = asyncio.create_task(run_demo(url, namespace=NAMESPACE, seconds=LONG_S, counts=counts))
    while not running.done():
        await asyncio.wait([running], timeout=0.2)
        if all(value for name, value in asdict(counts).items() if name != "notes"):
            running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return counts


def test_every_page_has_something_to_show(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", broker={"webhook_allow_private": True}) as server:
        counts = asyncio.run(run_until_all_was_seen(server.url))
        assert counts.notes == []
        with connect_broker(server.url) as broker:
            names = {f"{NAMESPACE}/{name}" for name in (*QUEUES, "pictures")}
            assert set(broker.queues(NAMESPACE)) == names
            stats = {name: broker.stats(f"{NAMESPACE}/{name}") for name in QUEUES}
            assert all(one.published for one in stats.values())
            assert stats["payments"].dead_lettered
            assert stats["emails"].scheduled
            assert stats["newsletter"].paused
            assert stats["search-index"].ready
            assert len(stats["orders"].groups) == 2
            (webhook,) = broker.webhooks(f"{NAMESPACE}/invoices")
            assert broker.webhook_deliveries(webhook.id)


def test_a_broker_that_refuses_the_webhook_gets_all_the_rest(tmp_path: Path) -> None:
    counts = Counts()
    with RunningServer(tmp_path / "data") as server:
        asyncio.run(run_demo(server.url, namespace="x", seconds=1, counts=counts))
    assert counts.published > 0
    (note,) = counts.notes
    assert "webhook_allow_private" in note


def test_a_namespace_with_queues_is_left_alone(command: CommandLine, tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        with connect_broker(server.url) as broker:
            broker.create_queue("demo/mine")
        answer = command("demo", server.url, "--seconds", 1)
        assert answer.code == 2
        assert "namespace 'demo'" in answer.err
        with connect_broker(server.url) as broker:
            assert broker.queues() == ["demo/mine"]
    assert command("demo", tmp_path).code == 2


@pytest.mark.parametrize(
    ("number", "setup"),
    [
        pytest.param(signal.SIGINT, "", id="SIGINT"),
        pytest.param(signal.SIGTERM, "", id="SIGTERM"),
        pytest.param(signal.SIGHUP, "", id="SIGHUP"),
        pytest.param(signal.SIGTERM, 'trap "" INT; ', id="background"),  # as a shell starts it
    ],
)
def test_a_signal_stops_the_broker_that_was_started_and_removes_its_files(
    number: signal.Signals, setup: str, tmp_path: Path
) -> None:
    with subprocess.Popen(
        ["sh", "-c", f'{setup}exec "$0" -m penstock demo', sys.executable],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),  # nohup ignores it
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "open http://127.0.0.1:" in line
        assert list(tmp_path.iterdir()) != []
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "messages published" in out
    assert list(tmp_path.iterdir()) == []
