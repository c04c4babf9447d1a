"""Calls that create the same queue, or use it before it is whole."""

import asyncio
from asyncio import Future
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from penstock.broker import Broker
from penstock.broker.access import INSIDE
from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.postgres.tables import Tables
from penstock.errors import Unavailable
from penstock.names import QueueName
from tests.harness.postgres_server import PostgresServer

ORDERS = QueueName("shop", "orders")
NewSchema = Callable[[], str]
PATIENCE_S = 60


class Told:
    """A publish of a transport, as a future."""

    def __init__(self, broker: Broker, payload: bytes) -> None:
        self.answer: Future[Any] = asyncio.get_running_loop().create_future()
        found = broker.publish(INSIDE, ORDERS, [payload], self)
        if isinstance(found, Future):
            self.answer = found
        elif found is not None:
            self.succeed(found)

    def succeed(self, result: Any) -> None:
        self.answer.set_result(result)

    def fail(self, error: BaseException) -> None:
        self.answer.set_exception(error)


class Stop:
    """Stops the first creation of a queue just before the other brokers see it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        """`error`: how the creation ends then; None: it succeeds."""
        self.is_there, self._go_on = Event(), Event()
        made = Tables.made

        def stop(tables: Tables, queue: QueueName) -> None:
            if not self.is_there.is_set():
                self.is_there.set()
                assert self._go_on.wait(PATIENCE_S)
                if error is not None:
                    raise error
            made(tables, queue)

        monkeypatch.setattr(Tables, "made", stop)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.is_there.wait, PATIENCE_S)

    def go_on(self) -> None:
        self._go_on.set()


def run(story: Callable[[Broker], Coroutine[Any, Any, None]], url: str, schema: str) -> None:
    options = ClusterOptions(schema=schema, beat_s=1e9, outbox_s=1e9, rebalance_s=1e9)

    async def limited() -> None:
        # One thread for the creation that is stopped, one for all other calls, in their order.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        broker = Broker(PostgresStore(url, options))
        async with asyncio.timeout(PATIENCE_S):
            await broker.start()
            try:
                await story(broker)
            finally:
                await broker.stop()

    asyncio.run(limited())


async def until_threads_are_idle() -> None:
    """Let the calls under way go on as far as they can."""
    for _ in range(20):
        for _ in range(20):
            await asyncio.sleep(0)
        await asyncio.to_thread(int)


def payloads(url: str, schema: str) -> list[bytes]:
    """Return the messages of the queue, as the next broker finds them."""
    found: list[bytes] = []

    async def lease(broker: Broker) -> None:
        found.extend(one.payload for one in await broker.lease(INSIDE, ORDERS, n=100))

    run(lease, url, schema)
    return found


def test_a_queue_is_created_once_though_the_first_caller_has_left(
    postgres_server: PostgresServer, new_schema: NewSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second creation took the row of the first for one that a dead broker had left."""
    schema = new_schema()
    stop = Stop(monkeypatch)

    async def story(broker: Broker) -> None:
        first = asyncio.ensure_future(broker.create_queue(INSIDE, ORDERS, {"lease_s": 8}))
        await stop.reached()
        first.cancel()
        second: Future[Any] = broker.publish(INSIDE, ORDERS, [b"x"])
        await until_threads_are_idle()
        stop.go_on()
        await second
        assert (await broker.queue_info(INSIDE, ORDERS)).settings.lease_s == 8
        await broker.publish(INSIDE, ORDERS, [b"y"])

    run(story, postgres_server.url, schema)
    assert payloads(postgres_server.url, schema) == [b"x", b"y"]


def test_no_message_is_taken_before_other_brokers_see_the_queue(
    postgres_server: PostgresServer, new_schema: NewSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the broker dies, or the creation fails, the message would go with the queue."""
    schema = new_schema()
    stop = Stop(monkeypatch, Unavailable("the connection broke"))

    async def story(broker: Broker) -> None:
        first = asyncio.ensure_future(broker.create_queue(INSIDE, ORDERS, {}))
        await stop.reached()
        publishing = Told(broker, b"x").answer
        await until_threads_are_idle()
        assert not publishing.done()
        stop.go_on()
        with pytest.raises(Unavailable, match="the connection broke"):
            await first
        await publishing
        assert broker.queues(INSIDE) == [ORDERS]

    run(story, postgres_server.url, schema)
    assert payloads(postgres_server.url, schema) == [b"x"]


def test_a_creation_that_fails_deletes_only_its_own_row(
    postgres_server: PostgresServer, new_schema: NewSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of its last step may be unknown: other brokers may use the queue already."""
    schema = new_schema()
    made = Tables.made

    def made_without_answer(tables: Tables, queue: QueueName) -> None:
        made(tables, queue)
        raise Unavailable("the connection broke")

    monkeypatch.setattr(Tables, "made", made_without_answer)

    async def story(broker: Broker) -> None:
        with pytest.raises(Unavailable):
            await broker.create_queue(INSIDE, ORDERS, {})
        await broker.publish(INSIDE, ORDERS, [b"x"])

    run(story, postgres_server.url, schema)
    assert payloads(postgres_server.url, schema) == [b"x"]
