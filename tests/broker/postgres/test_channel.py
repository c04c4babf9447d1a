"""Calls between brokers over a real connection: cancelled, late, many at a time, refused."""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.broker.postgres.channel import Caller, ChannelLost, Door, NotSent, Peer
from penstock.broker.postgres.together import ACK, LEASE, OPTIONS, PLAIN, Together
from penstock.broker.store import Outcome
from penstock.errors import BrokerError, NoSuchQueue, QueueFull
from penstock.model import LeasedMessage, Message, NewMessage, Published, Ticket, TypedPayload
from penstock.names import QueueName

KEY = b"k" * 32
ORDERS, BILLS = QueueName("shop", "orders"), QueueName("shop", "bills")


class Answers:
    """A service whose calls are answered when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Future[Any]]] = []
        self.received: list[Together] = []
        self.undone: list[Any] = []
        self.came = asyncio.Event()
        self.lost = asyncio.Event()

    def answer(self, caller: Caller, method: str, arguments: Any) -> "Future[Any]":
        if method == "refused":
            raise NoSuchQueue("there is none")
        future: Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((method, arguments, future))
        self.came.set()
        return future

    def carry_out(self, received: Together) -> None:
        self.received.append(received)
        self.came.set()

    def undelivered(self, method: str, arguments: Any, result: Any) -> None:
        self.undone.append(result)

    def caller_lost(self, caller: Caller) -> None:
        self.lost.set()

    async def is_alone(self) -> None:
        await self.lost.wait()

    async def together(self) -> Together:
        """Wait for the next calls that travel together."""
        while not self.received:
            self.came.clear()
            await self.came.wait()
        return self.received.pop(0)

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


class Told:
    """Receives the answers of calls that travel together, or why they were refused."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def succeed(self, result: Any) -> None:
        self.all += result

    def fail(self, error: BaseException) -> None: ...

    def refused(self, kind: Any, argument: Any, pending: Any, error: Exception) -> None:
        self.all.append((argument, type(error)))


def test_calls_of_one_turn_arrive_together_by_queue_and_before_a_later_call() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            told = Told()
            for queue, kind, payload in (
                (ORDERS, PLAIN, b"1"),
                (BILLS, PLAIN, b"2"),
                (ORDERS, "text/json", b"{}"),
            ):
                peer.gather(queue, kind, payload, told, told.refused)
            call = peer.call("find", (), nothing_late)
            peer.gather(ORDERS, PLAIN, b"3", told, told.refused)
            arrived: list[Any] = []

            def answer(method: str, arguments: Any) -> Any:
                assert method == "publish"
                ((message,),) = arguments
                arrived.append(message)
                if message == b"2":
                    raise QueueFull("full")
                return [Published(f"id of {message!r}")]

            for queue in (ORDERS, BILLS):
                together = await service.together()
                assert together.queue == queue
                together.carry_out_slowly(answer)
            assert not call.done()
            (await service.call()).set_result(None)
            await call
            typed = TypedPayload(b"{}", "text/json")
            assert arrived == [b"1", typed, b"2"]
            ids = [Published("id of b'1'"), Published(f"id of {typed!r}")]
            assert told.all == [*ids, (b"2", QueueFull)]
            (await service.together()).carry_out_slowly(answer)
            await _round_trip(peer, service)
            assert told.all[3:] == [Published("id of b'3'")]

    run(story())


def test_a_call_that_takes_longer_holds_up_no_other_of_its_turn() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            told, slow = Told(), asyncio.get_running_loop().create_future()
            for payload in (b"1", b"slow", b"3"):
                peer.gather(ORDERS, PLAIN, payload, told, told.refused)

            def answer(method: str, arguments: Any) -> Any:
                (message,) = arguments[0]
                return slow if message == b"slow" else [Published(message.decode())]

            (await service.together()).carry_out_slowly(answer)
            await _round_trip(peer, service)
            assert told.all == [Published("1"), Published("3")]
            slow.set_result([Published("slow", True)])
            await _round_trip(peer, service)
            assert told.all[2:] == [Published("slow", True)]

    run(story())


def test_outcomes_of_acks_and_empty_leases_arrive_as_they_are() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            told = Told()
            for receipt in ("done", "gone", "repeated"):
                peer.gather(ORDERS, ACK, receipt, told, told.refused)
            peer.gather(ORDERS, LEASE, 1000, told, told.refused)

            def answer(method: str, arguments: Any) -> Any:
                if method == "lease":
                    assert arguments[-1]() == 1000
                    return []
                ((settlement,),) = arguments
                assert settlement.verdict == "ack"
                return [Outcome(settlement.receipt, settlement.receipt, "why")]

            (await service.together()).carry_out_slowly(answer)
            await _round_trip(peer, service)
            assert told.all == [
                Outcome("done", "done"),
                Outcome("gone", "gone", "why"),
                Outcome("repeated", "repeated", "why"),
            ]

    run(story())


def test_messages_leased_for_a_broker_that_is_gone_are_given_back() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            told, leasing = Told(), asyncio.get_running_loop().create_future()
            peer.gather(ORDERS, LEASE, 1000, told, told.refused)
            together = await service.together()
            together.carry_out_slowly(lambda method, arguments: leasing)
            peer.close()
            while peer.is_connected:
                await asyncio.sleep(0)
            assert told.all == [(1000, ChannelLost)]
            leased = LeasedMessage(
                Message("id", 1, b"x", 5, 0, 0, 0, None, {}, None, 0),
                Ticket(1, 0, "main", 1, 1, 0, None),  # type: ignore[arg-type]
            )
            await service.is_alone()
            leasing.set_result([leased])
            await asyncio.sleep(0)
            assert service.undone == [[leased]]

    run(story())


def test_a_message_that_cannot_travel_is_refused_alone() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            told = Told()
            peer.gather(ORDERS, PLAIN, b"1", told, told.refused)
            with pytest.raises(TypeError, match="object cannot be sent"):
                peer.gather(BILLS, OPTIONS, NewMessage(payload=object()), told, told.refused)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="object cannot be sent"):
                peer.gather(ORDERS, OPTIONS, NewMessage(payload=object()), told, told.refused)  # type: ignore[arg-type]
            peer.gather(ORDERS, PLAIN, b"2", told, told.refused)

            def answer(method: str, arguments: Any) -> Any:
                return [Published(arguments[0][0].decode())]

            (await service.together()).carry_out_slowly(answer)
            await _round_trip(peer, service)
            assert told.all == [Published("1"), Published("2")]
            assert service.received == []

    run(story())


def test_calls_of_one_turn_that_are_too_large_for_a_frame_travel_in_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.broker.postgres.channel.MAX_FRAME_BYTES", 1000)

    async def story() -> None:
        async with connected() as (peer, service):
            calls = [peer.call("publish", (b"x" * 300,), nothing_late) for _ in range(20)]
            for number in range(20):
                (await service.call()).set_result(b"y" * number * 20)
            assert [len(one) for one in await asyncio.gather(*calls)] == list(range(0, 400, 20))

    run(story())


def test_calls_that_were_not_sent_when_the_connection_broke_say_so() -> None:
    async def story() -> None:
        async with connected() as (peer, service):
            told = Told()
            peer.gather(ORDERS, PLAIN, b"sent", told, told.refused)
            await service.together()
            peer.gather(ORDERS, PLAIN, b"not sent", told, told.refused)
            peer.close()
            while peer.is_connected:
                await asyncio.sleep(0)
            assert told.all in (
                [(b"sent", ChannelLost), (b"not sent", NotSent)],
                [(b"sent", ChannelLost), (b"not sent", ChannelLost)],  # the turn had ended
            )
            with pytest.raises(NotSent):
                peer.gather(ORDERS, PLAIN, b"later", told, told.refused)

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


@pytest.mark.parametrize("host", ["192.0.2.7", "no.such.host.invalid"])
def test_an_address_that_is_not_of_this_machine_is_refused_with_what_to_set(host: str) -> None:
    async def story() -> None:
        with pytest.raises(
            BrokerError, match=rf"{host}:any port .* set cluster_host to an address"
        ):
            await Door(Answers(), KEY).open(host, 0)

    run(story())
