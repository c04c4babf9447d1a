"""The benchmark of interfaces runs, and its clients lose nothing. No test decides on speed."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import RunningServer, queue_path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
OF_TASKS = (
    *("own_http", "own_grpc", "native_http", "rivetq", "epochqueue", "web_socket"),
    *("grpc_unary", "grpc_stream", "pipelined"),
)
OF_THREADS = ("greenstalk", "boto3")
CANNOT_WAIT = ("rivetq", "epochqueue")
COUNT = 7


@pytest.fixture(scope="module")
def clients() -> Iterator[Any]:
    """The module with the clients. The scripts import each other by their bare names."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield import_module("interfaces_clients")
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
                del sys.modules[name]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    free = "127.0.0.1:0"
    with RunningServer(tmp_path / "data", grpc=free, beanstalk=free) as running:
        with running.client() as http:
            http.put(queue_path("bench"))
        yield running


def addresses(clients: Any, server: RunningServer) -> Any:
    by_scheme = dict(url.split("://") for url in server.server.urls)
    return clients.Addresses(server.url, by_scheme["grpc"], by_scheme["beanstalk"])


@pytest.mark.parametrize("interface", OF_TASKS)
def test_a_client_of_tasks_settles_what_it_published(
    clients: Any, server: RunningServer, interface: str
) -> None:
    async def run() -> int:
        async with clients.OF_TASKS[interface](addresses(clients, server), 2) as (one, other):
            await other.prepare()
            received = 0
            if interface not in CANNOT_WAIT:
                await one.publish(clients.orders(1))
                await other.receive()
                received = 1
            await one.publish(clients.orders(COUNT))
            for single in clients.orders(COUNT):
                await one.publish([single])
            settled = 0
            while settled < 2 * COUNT:
                settled += await other.consume(COUNT)
            if received:  # the message that it holds is settled with the next one
                await one.publish(clients.orders(1))
                await other.receive()
            return received

    received = asyncio.run(run())
    with server.client() as http:
        stats = http.get(queue_path("bench")).json()["stats"]
    assert stats["published"] == 2 * COUNT + 2 * received
    # A stream is pushed the last message perhaps before the ack that was sent is read, and ends.
    unread = (0, 1) if interface == "grpc_stream" else (0,)
    assert 2 * COUNT + received - stats["acked"] in unread


@pytest.mark.parametrize("interface", OF_THREADS)
def test_a_client_of_threads_settles_what_it_published(
    clients: Any, server: RunningServer, interface: str
) -> None:
    with clients.OF_THREADS[interface](addresses(clients, server), 2) as (one, other):
        one.publish(clients.orders(1))
        other.receive()
        one.publish(clients.orders(COUNT))
        settled = 0
        while settled < COUNT:
            settled += other.consume(COUNT)
        one.publish(clients.orders(1))
        other.receive()
    with server.client() as http:
        stats = http.get(queue_path("bench")).json()["stats"]
    assert (stats["published"], stats["acked"]) == (COUNT + 2, COUNT + 1)


def test_every_interface_is_tested_here(clients: Any) -> None:
    assert set(clients.OF_TASKS) == set(OF_TASKS)
    assert set(clients.OF_THREADS) == set(OF_THREADS)


def test_the_embedded_client_settles_what_it_published(clients: Any, tmp_path: Path) -> None:
    with clients.embedded(str(tmp_path), 2) as (one, other):
        one.publish(clients.orders(COUNT))
        one.publish(clients.orders(1))
        assert other.consume(100) == COUNT + 1
        one.publish(clients.orders(1))
        other.receive()


def test_a_run_writes_the_figures_of_each_interface(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    command = [sys.executable, str(BENCHMARKS / "interfaces.py"), "--quick", "--rounds", "1"]
    command += ["--only", "batches", "--dir", str(tmp_path / "work")]
    run = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=110
    )
    assert run.returncode == 0, run.stderr
    (row,) = json.loads((tmp_path / "out" / "interfaces.json").read_text())["rows"]
    assert {"embedded", "HTTP", "gRPC", "beanstalk"} <= {one["name"] for one in row["contenders"]}
    for one in row["contenders"]:
        assert one["median"]["publish_per_s"] > 0, one["name"]
    assert list((tmp_path / "work").iterdir()) == []  # it cleans up
