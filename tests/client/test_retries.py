"""Connections that are cut: nothing is published twice, nothing that was answered is lost."""

import asyncio
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import penstock
import penstock.aio
from penstock import AnyQueue
from penstock.aio import AnyAsyncQueue
from penstock.client import Batching, ClientOptions
from penstock.client.publishing import DedupIds, publish
from penstock.errors import (
    BrokerError,
    KeyRefused,
    NotAllowed,
    ReceiptInvalid,
    Unavailable,
    Unreachable,
)
from penstock.model import LeasedMessage, NewMessage
from tests.client.cutting_proxy import Cut, CuttingProxy
from tests.server.running import RunningServer

_numbers = count(1)


@pytest.fixture
def proxy(server: RunningServer) -> Iterator[CuttingProxy]:
    with CuttingProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def name() -> str:
    return f"cut-{next(_numbers)}"


@pytest.fixture
def direct(server: RunningServer, name: str) -> Iterator[AnyQueue]:
    """The queue, without the proxy."""
    with penstock.open(server.url, queue=name) as queue:
        queue.groups.create("unused")  # makes the queue
        yield queue


@pytest.fixture
def queue(proxy: CuttingProxy, name: str, direct: AnyQueue) -> Iterator[AnyQueue]:
    with penstock.open(proxy.url, queue=name, retry_s=20) as queue:
        yield queue


EVERY_CUT = pytest.mark.parametrize("where", list(Cut))


@EVERY_CUT
def test_a_publish_is_published_once(
    queue: AnyQueue, direct: AnyQueue, proxy: CuttingProxy, where: Cut
) -> None:
    proxy.cut(where, "/messages")
    id_ = queue.enqueue(b"x")
    assert proxy.cuts_left == 0
    assert [message.id for message in direct.browse()] == [id_]
    assert direct.stats().published == 1


@EVERY_CUT
def test_a_large_publish_is_published_once(
    queue: AnyQueue, direct: AnyQueue, proxy: CuttingProxy, where: Cut
) -> None:
    proxy.cut(where, "/messages?", times=2)
    id_ = queue.enqueue(bytes(100_000))
    assert proxy.cuts_left == 0
    assert [message.id for message in direct.browse()] == [id_]


@EVERY_CUT
def test_a_batch_is_published_once_and_is_no_duplicate(
    queue: AnyQueue, direct: AnyQueue, proxy: CuttingProxy, where: Cut
) -> None:
    proxy.cut(where, "/messages", times=2)
    published = queue.publish([NewMessage(payload=b"%d" % n) for n in range(10)])
    assert [message.id for message in direct.browse()] == [one.id for one in published]
    assert not any(one.duplicate for one in published)


@EVERY_CUT
def test_the_users_own_dedup_id_is_kept(
    queue: AnyQueue, direct: AnyQueue, proxy: CuttingProxy, where: Cut
) -> None:
    proxy.cut(where, "/messages")
    first = queue.enqueue(b"x", dedup_id="mine")
    assert direct.enqueue(b"x", dedup_id="mine") == first


@EVERY_CUT
@pytest.mark.parametrize("verb", ["ack", "nack", "release", "extend"])
def test_settling_is_done_once_whatever_is_cut(
    queue: AnyQueue, direct: AnyQueue, proxy: CuttingProxy, where: Cut, verb: str
) -> None:
    direct.enqueue(b"x")
    (job,) = queue.lease()
    proxy.cut(where, "/settle")
    if verb == "extend":
        queue.extend(job, 100)
    else:
        getattr(queue, verb)(job)
    stats = direct.stats()
    counts = (stats.acked, stats.nacked, stats.leased)
    assert (
        counts
        == {
            "ack": (1, 0, 0),
            "nack": (0, 1, 0),
            "release": (0, 0, 0),
            "extend": (0, 0, 1),
        }[verb]
    )


def test_a_client_that_does_not_retry_sends_no_keys() -> None:
    def keys(retry_s: float) -> int:
        own = DedupIds(ClientOptions(retry_s=retry_s).dedup_window_s())
        return publish("/x", [NewMessage(payload=b"x")] * 3, own, 0).body.count(b"dedup_id")

    assert (keys(0), keys(10)) == (0, 3)


def test_acking_again_is_fine_but_a_wrong_receipt_is_not(queue: AnyQueue, direct: AnyQueue) -> None:
    direct.enqueue(b"x")
    (job,) = queue.lease()
    queue.ack(job)
    queue.ack(job)
    with pytest.raises(ReceiptInvalid):
        queue.nack(job)


def test_a_lease_that_may_have_been_made_is_not_made_again(
    queue: AnyQueue, direct: AnyQueue, proxy: CuttingProxy
) -> None:
    direct.enqueue_batch([b"1", b"2"])
    proxy.cut(Cut.BEFORE_ANSWER, "/lease")
    with pytest.raises(Unreachable, match="not known"):
        queue.lease()
    assert sum(b"/lease" in line for line in proxy.requests) == 1
    assert direct.stats().ready == 1


def test_a_stream_goes_on_after_a_cut(
    queue: AnyQueue, direct: AnyQueue, proxy: CuttingProxy
) -> None:
    direct.enqueue_batch([b"1", b"2", b"3"])
    proxy.cut(Cut.BEFORE_REQUEST, "/lease")
    seen: list[bytes] = []

    def handle(job: LeasedMessage) -> None:
        seen.append(job.payload)

    assert queue.stream(handle, idle_s=0) == 3
    assert seen == [b"1", b"2", b"3"]


@EVERY_CUT
def test_looking_is_repeated(
    queue: AnyQueue, direct: AnyQueue, proxy: CuttingProxy, where: Cut
) -> None:
    direct.enqueue(b"x")
    proxy.cut(where, "GET", times=3)
    assert queue.stats().published == 1
    assert [message.payload for message in queue.browse()] == [b"x"]


def test_what_cannot_be_repeated_says_that_it_may_have_been_done(
    queue: AnyQueue, direct: AnyQueue, proxy: CuttingProxy
) -> None:
    direct.enqueue(b"x")
    proxy.cut(Cut.BEFORE_ANSWER, "/purge")
    with pytest.raises(Unreachable, match="not known"):
        queue.purge()
    assert direct.stats().ready == 0


def test_tasks_are_as_safe(proxy: CuttingProxy, name: str, direct: AnyQueue) -> None:
    async def story(queue: AnyAsyncQueue) -> None:
        for where in Cut:
            proxy.cut(where, "/messages")
            await queue.enqueue(b"x")
        for where in Cut:
            (job,) = await queue.lease()
            proxy.cut(where, "/settle")
            await queue.ack(job)

    async def main() -> None:
        async with await penstock.aio.open(proxy.url, queue=name) as queue:
            await story(queue)

    asyncio.run(main())
    stats = direct.stats()
    assert (stats.published, stats.acked, stats.ready) == (len(Cut), len(Cut), 0)


def test_gathered_publishes_are_published_once(
    proxy: CuttingProxy, name: str, direct: AnyQueue
) -> None:
    async def main() -> list[str]:
        batching = Batching(linger_s=0.05)
        async with await penstock.aio.open(proxy.url, queue=name, batching=batching) as queue:
            proxy.cut(Cut.BEFORE_ANSWER, "/messages")
            return list(await asyncio.gather(*(queue.enqueue(b"%d" % n) for n in range(50))))

    ids = asyncio.run(main())
    assert sorted(message.id for message in direct.browse()) == sorted(ids)
    assert len(set(ids)) == 50


# -- brokers that are away -------------------------------------------------------------------------


def test_nobody_there_is_unreachable_and_nothing_was_changed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with (
        penstock.open(f"http://127.0.0.1:{port}/default/x", retry_s=0) as queue,
        pytest.raises(Unreachable, match="nothing was changed"),
    ):
        queue.enqueue(b"x")


def test_tls_to_a_plain_port_fails_at_once(server: RunningServer) -> None:
    url = server.url.replace("http:", "https:")
    with (
        penstock.open(f"{url}/shop/orders", retry_s=86400) as queue,
        pytest.raises(Unreachable, match="write http://"),
    ):
        queue.stats()

    async def asked() -> None:
        async with await penstock.aio.open(f"{url}/shop/orders", retry_s=86400) as queue:
            with pytest.raises(Unreachable, match="write http://"):
                await queue.stats()

    asyncio.run(asked())


def test_url_with_a_part_too_many_is_named_in_the_error(server: RunningServer) -> None:
    with (
        penstock.open(f"{server.url}/more/shop/orders") as queue,
        pytest.raises(BrokerError, match=f"{server.url}/more/api.*check the URL"),
    ):
        queue.stats()


def test_a_broker_that_comes_back_is_found_again(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as first:
        proxy = CuttingProxy(first.port)
        queue = penstock.open(proxy.url, queue="x")
        before = queue.enqueue(b"before")
    with RunningServer(tmp_path / "data") as second, queue:
        proxy.target_port = second.port
        after = queue.enqueue(b"after")
        assert [message.id for message in queue.browse()] == [before, after]


def test_a_stopping_broker_is_unavailable(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        server.call(server.server.broker.stop())
        queue = penstock.open(server.url, queue="x", retry_s=0)
        with queue, pytest.raises(Unavailable):
            queue.enqueue(b"x")


# -- keys ------------------------------------------------------------------------------------------


def test_keys_are_sent_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_KEY", raising=False)
    with RunningServer(tmp_path / "data") as server:
        key = server.new_key("publish", namespaces=["shop"])
        url = f"{server.url}/shop/orders"
        with penstock.open(url, key=key) as queue:
            queue.enqueue(b"x")
            with pytest.raises(NotAllowed):
                queue.lease()
        for wrong in (None, "psk_nonsense"):
            with penstock.open(url, key=wrong) as queue, pytest.raises(KeyRefused):
                queue.enqueue(b"x")
        monkeypatch.setenv("PENSTOCK_KEY", key)
        with penstock.open(url) as queue:
            queue.enqueue(b"x")


def test_a_key_is_in_no_message_of_an_error(tmp_path: Path) -> None:
    assert "psk_secret" not in repr(ClientOptions(key="psk_secret"))
    with RunningServer(tmp_path / "data") as server:
        server.new_key("publish")
        queue = penstock.open(f"{server.url}/default/q", key="psk_secret")
        with queue, pytest.raises(KeyRefused) as refused:
            queue.enqueue(b"x")
    assert "psk_secret" not in str(refused.value)
