"""Calls between brokers over a real connection: cancelled, late, many at a time, refused."""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.broker.postgres.channel import Caller, ChannelLost, Door, NotSent, Peer
from penstock.errors import NoSuchQueue

KEY = b"k" * 32


class Answers:
    """A service whose calls are answered when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Future[Any]]] = []
        self.undone: list[Any] = []
        self.came = asyncio.Event()

    def answer(self, caller: Caller, method: str, arguments: Any) -> "Future[Any]":
        if method == "refused":
            raise NoSuchQueue("there is none")
        future: Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((method, arguments, future))
        self.came.set()
        return future

    def undelivered(self, method: str, arguments: Any, result: Any) -> None:
        self.undone.append(result)

    def caller_lost(self, caller: Caller) -> None: ...

    async def call(self) -> "Future[Any]":
        """Wait for the next call."""
        while not self.calls:
            self.came.clear()
            await self.came.wait()
        return self.calls.pop(0)[2]


@asynccontextmanager
async def connected(key: bytes = KEY) -> AsyncIterator[tuple[Peer, Answers]]:
    service = Answers()
    door = Door(service, KEY)
    port = await door.open("127.0.0.1", 0)
    peer = Peer(f"127.0.0.1:{port}", key, lambda notice: None, lambda lost: None)
    try:
        await peer.connect()
        yield peer, service
    finally:
        peer.close()
        door.close()
        await asyncio.sleep(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await story

    asyncio.run(limited())


def nothing_late(result: Any) -> None:
    raise AssertionError(f"{result} is not late")


def test_answers_find_their_calls_in_any_order() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            first = peer.call("publish", (1,), nothing_late)
            second = peer.call("publish", (2,), nothing_late)
            answers = [await service.call(), await service.call()]
            answers[1].set_result("b")
            assert await second == "b"
            answers[0].set_exception(NoSuchQueue("gone"))
            with pytest.raises(NoSuchQueue, match="gone"):
                await first
            with pytest.raises(NoSuchQueue, match="there is none"):
                await peer.call("refused", (), nothing_late)

    run(story())


def test_a_cancelled_call_is_cancelled_at_the_other_broker() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            late: list[Any] = []
            call = peer.call("lease", (), late.append)
            answer = await service.call()
            call.cancel()
            await asyncio.wait([answer])
            assert answer.cancelled()
            await _round_trip(peer, service)
            assert late == [None]

    run(story())


def test_an_answer_that_was_on_its_way_when_the_call_was_cancelled_is_late() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            late: list[Any] = []
            call = peer.call("lease", (), late.append)
            answer = await service.call()
            answer.set_result(["message"])
            await asyncio.sleep(0)  # it is sent
            call.cancel()
            await _round_trip(peer, service)
            assert late == [["message"]]

    run(story())


def test_a_call_cancelled_in_the_same_turn_as_its_answer_arrives_breaks_no_other() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            late: list[Any] = []

            def cancel_the_other(*failed: object) -> None:
                second.cancel()

            first = peer.call("lease", (), nothing_late, cancel_the_other)
            second = peer.call("lease", (), late.append)
            answers = [await service.call(), await service.call()]
            answers[0].set_exception(NoSuchQueue("gone"))  # both travel in one frame
            answers[1].set_result(["message"])
            await _round_trip(peer, service)
            assert late == [["message"]]
            assert peer.is_connected
            first.cancel()

    run(story())


def test_a_result_whose_caller_is_gone_is_given_back() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            call = peer.call("lease", (), nothing_late)
            answer = await service.call()
            peer.close()
            with pytest.raises(ChannelLost, match="broke"):
                await call
            answer.set_result(["message"])
            await asyncio.sleep(0)
            assert service.undone == [["message"]] or answer.cancelled()
            with pytest.raises(NotSent):
                peer.call("lease", (), nothing_late)

    run(story())


def test_a_broker_without_the_key_is_refused() -> None:
    async def story() -> None:
        with pytest.raises(NotSent, match="cannot be reached"):
            async with connected(b"x" * 32):
                raise AssertionError("it is connected")

    run(story())


async def _round_trip(peer: Peer, service: Answers) -> None:
    """Return when everything that was sent before has arrived, in both directions."""
    call = peer.call("find", (), nothing_late)
    (await service.call()).set_result(None)
    await call
