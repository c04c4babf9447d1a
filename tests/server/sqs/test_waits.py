"""A receive that waits in several queues loses no message, whatever ends it."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NoSuchQueue, QueueFull
from penstock.server.sqs.dead_letters import first_of, taken
from tests.server.running import RunningServer
from tests.server.sqs.clients import refused, sqs_client
from tests.server.sqs.dead_pairs import arn_of, policy

Wait = asyncio.Future[list[Any]]


def run(test: Callable[[list[Wait], list[Any]], Coroutine[Any, Any, None]]) -> list[Any]:
    """Run a test with three waits. Return what was given back."""
    given_back: list[Any] = []

    async def main() -> None:
        await test([asyncio.get_running_loop().create_future() for _ in range(3)], given_back)

    asyncio.run(main())
    return given_back


def test_what_comes_first_is_returned_and_the_others_end() -> None:
    async def test(waits: list[Wait], given_back: list[Any]) -> None:
        call: asyncio.Future[Any] = asyncio.ensure_future(first_of(waits, 2, given_back.extend))
        await asyncio.sleep(0)
        waits[0].set_result([])
        await asyncio.sleep(0)
        waits[1].set_result(["a"])
        waits[2].set_result(["b", "c"])
        assert await call == ["a", "b"]

    assert run(test) == ["c"]


def test_a_queue_that_is_gone_ends_no_wait() -> None:
    async def test(waits: list[Wait], given_back: list[Any]) -> None:
        call: asyncio.Future[Any] = asyncio.ensure_future(first_of(waits, 1, given_back.extend))
        await asyncio.sleep(0)
        waits[0].set_exception(NoSuchQueue("gone"))
        await asyncio.sleep(0)
        waits[1].set_result(["a"])
        assert await call == ["a"]
        assert waits[2].cancelled()

    assert run(test) == []


def test_an_error_gives_back_what_came_at_the_same_time() -> None:
    async def test(waits: list[Wait], given_back: list[Any]) -> None:
        call: asyncio.Future[Any] = asyncio.ensure_future(first_of(waits, 1, given_back.extend))
        await asyncio.sleep(0)
        waits[0].set_exception(QueueFull("full"))
        waits[1].set_result(["a"])
        with pytest.raises(QueueFull):
            await call
        assert waits[2].cancelled()

    assert run(test) == ["a"]


def test_a_client_that_leaves_as_a_message_comes_gets_none() -> None:
    async def test(waits: list[Wait], given_back: list[Any]) -> None:
        call: asyncio.Future[Any] = asyncio.ensure_future(first_of(waits, 1, given_back.extend))
        single: asyncio.Future[Any] = asyncio.ensure_future(taken(waits[0], given_back.extend))
        await asyncio.sleep(0)
        waits[1].set_result(["a"])
        waits[0].set_result(["b"])
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert waits[2].cancelled()
        assert await single == ["b"]
        assert given_back.count("b") == 1
        last: Wait = asyncio.get_running_loop().create_future()
        single = asyncio.ensure_future(taken(last, given_back.extend))
        await asyncio.sleep(0)
        last.set_result(["c"])
        single.cancel()
        with pytest.raises(asyncio.CancelledError):
            await single

    assert sorted(run(test)) == ["a", "b", "c"]


def test_a_wait_that_is_refused_leaves_no_other_behind(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", broker={"max_waiters": 1}) as server:
        sqs = sqs_client(server.url)
        dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
        sqs.create_queue(QueueName="orders", Attributes=policy(arn_of(sqs, dead), 1))
        with refused("RequestThrottled"):
            sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=20)
        assert len(server.server.broker.waiting) == 0
        sqs.send_message(QueueUrl=dead, MessageBody="x")
        (got,) = sqs.receive_message(QueueUrl=dead, AttributeNames=["All"])["Messages"]
        assert got["Attributes"]["ApproximateReceiveCount"] == "1"
        sqs.close()
