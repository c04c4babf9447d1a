"""A worker of a broker's queue: the same, over connections that may break."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import AnyQueue
from penstock.client import ClientOptions, connect, connect_async
from penstock.errors import KeyRefused
from penstock.model import LeasedMessage
from penstock.worker import Counts, Worker, WorkerOptions
from tests.client.cutting_proxy import Cut, CuttingProxy
from tests.server.running import RunningServer

UNTIL_EMPTY = WorkerOptions(idle_s=0, concurrency=4)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


@pytest.fixture
def queue(server: RunningServer) -> Iterator[AnyQueue]:
    with penstock.open(f"{server.url}/shop/orders") as queue:
        yield queue


def test_threads_work_on_a_url(queue: AnyQueue, server: RunningServer) -> None:
    queue.enqueue_batch([b"%d" % n for n in range(50)])
    seen: list[bytes] = []
    worker = Worker(
        f"{server.url}/shop/orders", lambda job: seen.append(job.payload), options=UNTIL_EMPTY
    )
    assert worker.run() == Counts(done=50)
    assert sorted(seen) == sorted(b"%d" % n for n in range(50))
    assert queue.stats().acked == 50


def test_tasks_work_on_a_client_that_is_open(queue: AnyQueue, server: RunningServer) -> None:
    queue.enqueue_batch([b"1", b"2"])

    async def handle(job: LeasedMessage) -> None:
        await asyncio.sleep(0)

    with connect(f"{server.url}/shop/orders") as client:
        assert Worker(client, handle, options=UNTIL_EMPTY).run() == Counts(done=2)

    async def main() -> Counts:
        async with connect_async(f"{server.url}/shop/orders") as client:
            await client.enqueue(b"3")
            return await Worker(client, handle, options=UNTIL_EMPTY).work()

    assert asyncio.run(main()) == Counts(done=1)


def test_a_stop_ends_a_long_wait_and_leaves_nothing_leased(
    queue: AnyQueue, server: RunningServer
) -> None:
    async def main() -> Counts:
        worker = Worker(f"{server.url}/shop/orders", lambda job: None)
        working = asyncio.create_task(worker.work())
        while not len(server.server.broker.waiting):
            await asyncio.sleep(0)
        worker.stop()
        return await working

    queue.groups.create("unused")
    assert asyncio.run(main()) == Counts()
    server.until(lambda: not len(server.server.broker.waiting))
    queue.enqueue(b"x")
    assert queue.lease()[0].attempt == 1


def test_what_does_not_end_is_handed_back(queue: AnyQueue, server: RunningServer) -> None:
    id_ = queue.enqueue(b"x")

    async def handle(job: LeasedMessage) -> None:
        worker.stop()
        await asyncio.Event().wait()

    options = WorkerOptions(stop_s=0)
    worker = Worker(f"{server.url}/shop/orders", handle, options=options)
    assert worker.run() == Counts(handed_back=1)
    assert queue.state(id_) == "ready"
    assert queue.lease()[0].attempt == 1


def test_a_worker_goes_on_over_broken_connections(
    queue: AnyQueue, server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="penstock.worker")
    queue.enqueue_batch([b"%d" % n for n in range(20)])
    seen: list[bytes] = []
    with CuttingProxy(server.port) as proxy:
        proxy.cut(Cut.BEFORE_REQUEST, "/lease")
        for where in Cut:
            proxy.cut(where, "/settle")
        worker = Worker(
            f"{proxy.url}/shop/orders",
            lambda job: seen.append(job.payload),
            options=WorkerOptions(idle_s=0, concurrency=2, batch=1),
        )
        counts = worker.run()
        assert proxy.cuts_left == 0
    assert counts == Counts(done=20)
    assert sorted(seen) == sorted(b"%d" % n for n in range(20))


def test_a_refused_key_ends_it_with_the_error(queue: AnyQueue, server: RunningServer) -> None:
    server.new_key("publish")
    client = connect(f"{server.url}/shop/orders", options=ClientOptions(key="psk_wrong"))
    with client, pytest.raises(KeyRefused):
        Worker(client, lambda job: None).run()
