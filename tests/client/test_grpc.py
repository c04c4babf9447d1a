"""A queue over gRPC: what differs from HTTP, retries, keys, and a broker that is gone."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

import penstock
import penstock.aio
from penstock.client import ClientOptions, RemoteQueue, connect_broker
from penstock.client.address import QueueAddress
from penstock.client.callers import Threads
from penstock.client.rpc_exchange import RpcExchange
from penstock.clock import SystemClock
from penstock.errors import (
    BrokerError,
    InvalidInput,
    KeyRefused,
    LedgerClosed,
    NotAllowed,
    TooLarge,
    Unavailable,
    Unreachable,
)
from penstock.names import QueueName
from tests.server.running import RunningServer


def url_of(server: RunningServer) -> str:
    return server.server.urls[-1]


@pytest.mark.parametrize("url", ["grpc://127.0.0.1/a/b", "grpc://:90/a/b", "grpc://127.0.0.1:1"])
def test_a_url_names_a_port_and_a_queue(url: str) -> None:
    with pytest.raises(InvalidInput):
        penstock.open(url)


def test_a_broker_as_a_whole_is_managed_over_http(server: RunningServer) -> None:
    with pytest.raises(InvalidInput, match="over HTTP"):
        connect_broker(url_of(server))


def test_certificates_are_those_of_the_system() -> None:
    with pytest.raises(InvalidInput, match="GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        penstock.open("grpcs://127.0.0.1:1/a/b", verify=False)


def test_a_broker_that_is_not_there_is_unreachable_and_nothing_was_changed() -> None:
    with (
        penstock.open("grpc://127.0.0.1:1/a/b", retry_s=0) as queue,
        pytest.raises(Unreachable, match="nothing was changed"),
    ):
        queue.enqueue(b"x")


def test_a_server_of_http_is_not_one_of_grpc(server: RunningServer) -> None:
    with (
        penstock.open(f"grpc://127.0.0.1:{server.port}/a/b", retry_s=0) as queue,
        pytest.raises((Unavailable, BrokerError)),
    ):
        queue.enqueue(b"x")


def test_keys_are_sent_and_their_errors_are_those_of_http(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", grpc="127.0.0.1:0") as server:
        key = server.new_key("publish")
        url = f"{url_of(server)}/shop/orders"
        with penstock.open(url, key=key) as queue:
            assert queue.enqueue(b"x")
            with pytest.raises(NotAllowed):
                queue.stats()
        with penstock.open(url, key="psk_wrong") as queue, pytest.raises(KeyRefused):
            queue.enqueue(b"x")


def test_a_message_that_is_too_large_for_a_call(server: RunningServer) -> None:
    with (
        penstock.open(f"{url_of(server)}/a/large", retry_s=0) as queue,
        pytest.raises(TooLarge, match="gRPC refused"),
    ):
        queue.enqueue(b"x" * (5 << 20))


def test_a_closed_queue_says_so(server: RunningServer) -> None:
    queue = penstock.open(f"{url_of(server)}/a/closed")
    queue.enqueue(b"x")
    queue.close()
    with pytest.raises(LedgerClosed):
        queue.enqueue(b"y")


class Broken(grpc.RpcError):  # type: ignore[misc]
    """A call whose answer was lost."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "Socket closed"

    def trailing_metadata(self) -> tuple[()]:
        return ()


class LosesAnswers:
    """A channel that carries out each call, and loses the first answer."""

    def __init__(self, exchange: RpcExchange) -> None:
        self._real = exchange.channel
        self.sent = 0

    async def send(self, *arguments: Any) -> Any:
        self.sent += 1
        answer = await self._real.send(*arguments)
        if self.sent == 1:
            raise Broken
        return answer

    async def close(self) -> None:
        await self._real.close()


class Impatient(Threads):
    """Threads that retry at once."""

    async def pause(self, seconds: float) -> None: ...


def losing(server: RunningServer, name: str) -> tuple[Any, LosesAnswers]:
    clock = SystemClock()
    exchange = RpcExchange(url_of(server), ClientOptions(), Impatient(clock), clock)
    exchange.channel = channel = LosesAnswers(exchange)  # type: ignore[assignment]
    return RemoteQueue(QueueAddress(exchange.base, QueueName("lost", name)), exchange), channel


def test_a_publish_whose_answer_was_lost_is_repeated_without_a_duplicate(
    server: RunningServer,
) -> None:
    queue, channel = losing(server, "publish")
    with queue:
        queue.enqueue_batch([b"a", b"b"])
        assert channel.sent == 2
        assert queue.stats().ready == 2


def test_a_lease_whose_answer_was_lost_is_not_repeated(server: RunningServer) -> None:
    queue, channel = losing(server, "lease")
    with queue:
        with pytest.raises(Unreachable, match="whether it was carried out is not known"):
            queue.lease()
        assert channel.sent == 1


def test_a_settlement_whose_answer_was_lost_is_repeated(server: RunningServer) -> None:
    with penstock.open(f"{url_of(server)}/lost/settle") as plain:
        plain.enqueue(b"x")
        (job,) = plain.lease()
    queue, channel = losing(server, "settle")
    with queue:
        queue.nack(job, "no")
        assert channel.sent == 2
        assert queue.stats().nacked == 1


def test_tasks_share_one_channel(server: RunningServer) -> None:
    async def work() -> set[bytes]:
        async with penstock.aio.connect(f"{url_of(server)}/a/tasks") as queue:
            await asyncio.gather(*(queue.enqueue(b"%d" % n) for n in range(20)))
            jobs = await queue.lease(20)
            await queue.ack(jobs)
            return {job.payload for job in jobs}

    assert asyncio.run(work()) == {b"%d" % n for n in range(20)}
