"""A broker as a whole: namespaces, queues, webhooks; and what is said about wrong options."""

import asyncio
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client import (
    AsyncRemoteBroker,
    RemoteBroker,
    connect_broker,
    connect_broker_async,
)
from penstock.client.administration import BrokerMethods
from penstock.errors import (
    AddressRefused,
    AlreadyExists,
    BrokerError,
    InvalidInput,
    NoSuchNamespace,
    NoSuchQueue,
    NoSuchWebhook,
    NotEmpty,
)
from tests.server.running import RunningServer


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RemoteBroker]:
    settings = {"webhook_allow_private": True}
    with (
        RunningServer(tmp_path / "data", broker=settings) as server,
        connect_broker(server.url) as broker,
    ):
        yield broker


def test_namespaces(broker: RemoteBroker) -> None:
    assert broker.namespaces() == []
    made = broker.create_namespace("shop", defaults={"lease_s": 7}, max_queues=2, max_bytes=10**6)
    assert (made.name, made.max_queues, made.max_bytes) == ("shop", 2, 10**6)
    with pytest.raises(AlreadyExists):
        broker.create_namespace("shop")
    broker.create_queue("shop/orders")
    assert broker.details("shop/orders").settings.lease_s == 7
    with pytest.raises(NotEmpty):
        broker.delete_namespace("shop")
    broker.delete_namespace("shop", force=True)
    with pytest.raises(NoSuchNamespace):
        broker.queues("shop")


def test_queues(broker: RemoteBroker) -> None:
    made = broker.create_queue("shop/orders", lease_s=60, max_attempts=3)
    assert (made.namespace, made.name, made.settings.lease_s) == ("shop", "orders", 60)
    assert made.created_at > 0
    broker.create_queue("shop/orders", lease_s=60)
    with pytest.raises(AlreadyExists):
        broker.create_queue("shop/orders", lease_s=61)
    assert broker.change_queue("shop/orders", lease_s=61).settings.max_attempts == 3
    broker.create_queue("mails")
    assert broker.queues() == ["default/mails", "shop/orders"]
    assert broker.queues("shop") == ["shop/orders"]
    broker.queue("shop/orders").enqueue(b"x")
    assert broker.stats("shop/orders").ready == 1
    broker.delete_queue("shop/orders")
    with pytest.raises(NoSuchQueue):
        broker.stats("shop/orders")


def test_listings_are_whole_however_many_pages_they_have(
    broker: RemoteBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.answers.ROWS", 3)
    names = [f"space-{n % 4}/queue-{n:02}" for n in range(20)]
    for name in names:
        broker.create_queue(name)
    assert broker.queues() == sorted(names)
    assert [space.name for space in broker.namespaces()] == [f"space-{n}" for n in range(4)]


def test_webhooks(broker: RemoteBroker) -> None:
    broker.create_queue("shop/orders")
    made = broker.create_webhook("shop/orders", "http://127.0.0.1:9/hook", retry_s=[1, 2])
    assert made.secret is not None and made.secret.startswith("whsec_")
    assert (made.namespace, made.queue, list(made.retry_s)) == ("shop", "orders", [1, 2])
    (listed,) = broker.webhooks("shop/orders")
    assert (listed.id, listed.enabled, listed.circuit) == (made.id, True, "closed")
    assert listed.secret is None
    changed = broker.change_webhook(made.id, enabled=False, rotate_secret=True)
    assert not changed.enabled and changed.secret not in (None, made.secret)
    assert broker.webhook(made.id).enabled is False
    assert broker.webhook_deliveries(made.id) == []
    broker.delete_webhook(made.id)
    with pytest.raises(NoSuchWebhook):
        broker.webhook(made.id)
    with pytest.raises((AddressRefused, InvalidInput)):
        broker.create_webhook("shop/orders", "ftp://example.com/")


def test_tasks_have_the_same_methods(broker: RemoteBroker) -> None:
    async def main() -> None:
        async with connect_broker_async(broker.url) as remote:
            await remote.create_namespace("a")
            await remote.create_queue("a/b", lease_s=60)
            assert (await remote.details("a/b")).settings.lease_s == 60
            await remote.change_queue("a/b", lease_s=61)
            assert await remote.queues() == ["a/b"]
            assert [one.name for one in await remote.namespaces()] == ["a"]
            await remote.queue("a/b").enqueue(b"x")
            assert (await remote.stats("a/b")).ready == 1
            hook = await remote.create_webhook("a/b", "http://127.0.0.1:9/")
            await remote.change_webhook(hook.id, enabled=False)
            assert [one.id for one in await remote.webhooks("a/b")] == [hook.id]
            assert (await remote.webhook(hook.id)).group == hook.group
            assert await remote.webhook_deliveries(hook.id) == []
            await remote.delete_webhook(hook.id)
            await remote.delete_queue("a/b")
            await remote.delete_namespace("a")

    asyncio.run(main())


def test_names_that_are_none_are_refused_here(broker: RemoteBroker) -> None:
    for wrong in ("", "Sh+p/x", "a/b/c", "../x", "x/", "/x"):
        with pytest.raises(InvalidInput):
            broker.create_queue(wrong)
    with pytest.raises(InvalidInput):
        broker.create_namespace("Not a name")


def test_something_that_is_no_broker_is_told(broker: RemoteBroker) -> None:
    with penstock.open(f"{broker.url}/nothing/here/a/b") as queue, pytest.raises(BrokerError):
        queue.stats()


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_s": 30},
        {"read_only": True},
        {"timeout_s": 0},
        {"retry_s": -1},
        {"max_connections": 0},
        {"key": "with\nnewline"},
    ],
    ids=str,
)
def test_wrong_options_are_refused_when_it_is_opened(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        penstock.open("http://127.0.0.1:1/default/q", **wrong)  # type: ignore[call-overload]


def test_a_forked_child_makes_connections_of_its_own(broker: RemoteBroker) -> None:
    queue = broker.queue("forked")
    queue.enqueue(b"parent")
    child = os.fork()
    if child == 0:
        try:
            queue.enqueue(b"child")
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    queue.enqueue(b"parent again")
    assert [m.payload for m in queue.browse()] == [b"parent", b"child", b"parent again"]


def test_both_brokers_have_methods_with_real_signatures_and_docstrings() -> None:
    for name in dir(BrokerMethods):
        if name.startswith("_") or name == "url":
            continue
        blocking, awaiting = getattr(RemoteBroker, name), getattr(AsyncRemoteBroker, name)
        assert blocking.__doc__ and blocking.__doc__ == awaiting.__doc__
        assert str(inspect.signature(blocking)) == str(inspect.signature(awaiting))
        assert next(iter(inspect.signature(blocking).parameters)) == "self"
        assert blocking.__name__ == awaiting.__name__ == name
        assert inspect.iscoroutinefunction(awaiting)
        assert not inspect.iscoroutinefunction(blocking)
    signature = inspect.signature(RemoteBroker.delete_namespace)
    assert str(signature).startswith("(self, name: str, *, force: bool = False)")
