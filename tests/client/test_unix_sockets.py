"""The clients, the worker and the command line over a Unix socket."""

import asyncio
import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
import penstock.aio
from penstock.cli.app import app
from penstock.client import connect_broker
from penstock.client.address import broker_address, queue_address
from penstock.errors import InvalidInput, Unreachable
from penstock.worker import Worker, WorkerOptions
from tests.server.running import RunningServer


@pytest.fixture
def base(tmp_path: Path) -> Iterator[str]:
    with RunningServer(tmp_path / "data", unix=str(tmp_path / "P.sock"), tcp=False) as server:
        yield server.server.urls[0]


def test_a_queue_for_threads(base: str) -> None:
    with penstock.open(f"{base}/shop/orders") as queue:
        queue.enqueue(b"x")
        message = queue.dequeue()
        assert message is not None and message.payload == b"x"
    with penstock.connect(base, queue="shop/orders") as remote:
        assert remote.url == f"{base}/shop/orders"
    broker = connect_broker(base)
    assert list(broker.queues()) == ["shop/orders"]
    broker.close()


def test_a_queue_for_tasks(base: str) -> None:
    async def use() -> None:
        async with await penstock.aio.open(f"{base}/shop/orders") as queue:
            await queue.enqueue(b"x")
            message = await queue.dequeue()
            assert message is not None and message.payload == b"x"

    asyncio.run(use())


def test_a_worker(base: str) -> None:
    seen: list[bytes] = []
    with penstock.open(f"{base}/shop/orders") as queue:
        queue.enqueue(b"x")
    options = WorkerOptions(idle_s=0)
    Worker(f"{base}/shop/orders", lambda job: seen.append(job.payload), options=options).run()
    assert seen == [b"x"]


def test_the_command_line(base: str) -> None:
    run = CliRunner()
    assert run.invoke(app, ["enqueue", f"{base}/shop/orders", "hello"]).exit_code == 0
    found = run.invoke(app, ["stats", f"{base}/shop/orders", "--json"])
    assert found.exit_code == 0 and '"ready"' in found.output
    assert "shop/orders" in run.invoke(app, ["queues", base]).output


def test_a_socket_that_does_not_exist_is_unreachable(tmp_path: Path) -> None:
    url = f"http+unix://{str(tmp_path / 'no.sock').replace('/', '%2F')}/default/q"
    with (
        penstock.open(url, retry_s=0) as queue,
        pytest.raises(Unreachable, match="nothing was changed"),
    ):
        queue.enqueue(b"x")
    with warnings.catch_warnings():
        # httpcore2 leaves a socket that could not connect to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_a_url_names_the_socket_and_the_queue() -> None:
    address = queue_address("http+unix://%2Frun%2FA.sock/under/shop/orders")
    assert address.base == "http+unix://%2Frun%2FA.sock/under"
    assert str(address.queue) == "shop/orders"


@pytest.mark.parametrize(
    "url", ["http+unix:///run/p.sock/q", "http+unix://run/q", "http+unix://%2Frun%2Fp@x/q"]
)
def test_a_url_without_an_absolute_path_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        broker_address(url)
