"""Making, changing and deleting subscriptions: who may, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.access import INSIDE, Caller
from penstock.broker.webhooks import subscription as module
from penstock.errors import (
    AddressRefused,
    InvalidInput,
    NoSuchQueue,
    NoSuchWebhook,
    NotAllowed,
    QuotaExceeded,
)
from penstock.names import QueueName
from penstock.operations import DeleteGroup, ListGroups, Verb
from tests.broker.webhooks.life import ORDERS, Life, play_virtually
from tests.broker.webhooks.scripted import Scripted
from tests.harness.virtual_loop import LoopClock

URL = "https://hooks.example.com/in"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://example.com"},
        {"secret": "too simple"},
        {"group": "No Such Name"},
        {"style": "carrier pigeon"},
        {"retry_s": []},
        {"retry_s": [1.0] * 21},
        {"retry_s": [-1]},
        {"retry_s": [float("nan")]},
        {"style": "epochqueue", "secret": "x" * 513},
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_and_nothing_is_made(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        with pytest.raises(InvalidInput):
            await life.webhooks.create(INSIDE, ORDERS, **{"url": URL, **wrong})
        assert not life.broker.has_queue(ORDERS)

    play_virtually(tmp_path, story)


def test_a_private_address_is_refused_when_subscribing_and_when_changing(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        with pytest.raises(AddressRefused):
            await life.webhooks.create(INSIDE, ORDERS, "http://127.1/")
        webhook = await life.webhooks.create(INSIDE, ORDERS, URL)
        with pytest.raises(AddressRefused):
            await life.webhooks.change(INSIDE, webhook.id, url="http://[::1]/")
        assert life.webhooks.get(INSIDE, webhook.id).url == URL

    play_virtually(tmp_path, story, webhook_allow_private=False)


def test_a_queue_is_made_only_where_that_is_allowed(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        for group in ("main", None):
            with pytest.raises(NoSuchQueue):
                await life.webhooks.create(INSIDE, ORDERS, URL, group=group)

    play_virtually(tmp_path, story, create_on_use=False)


def test_it_takes_the_rights_to_manage_and_to_consume(tmp_path: Path) -> None:
    reader = Caller("key:r", frozenset({Verb.READ}))
    manager = Caller("key:m", frozenset({Verb.MANAGE}))
    stranger = Caller("key:s", namespaces=frozenset({"elsewhere"}))

    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, URL)
        for caller in (reader, manager, stranger):
            with pytest.raises(NotAllowed):
                await life.webhooks.create(caller, ORDERS, URL)
        assert life.webhooks.get(reader, webhook.id) == webhook
        with pytest.raises(NotAllowed):
            await life.webhooks.change(reader, webhook.id, enabled=False)
        with pytest.raises(NotAllowed):
            await life.webhooks.delete(reader, webhook.id)
        with pytest.raises(NotAllowed):
            life.webhooks.get(stranger, webhook.id)
        with pytest.raises(NotAllowed):
            await life.webhooks.deliveries(stranger, webhook.id)
        with pytest.raises(NotAllowed):
            life.webhooks.list(stranger, ORDERS)

    play_virtually(tmp_path, story)


def test_one_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        with pytest.raises(NoSuchWebhook):
            life.webhooks.get(INSIDE, "wh-none")
        with pytest.raises(NoSuchWebhook):
            await life.webhooks.delete(INSIDE, "wh-none")

    play_virtually(tmp_path, story)


def test_there_is_a_limit_to_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SUBSCRIPTIONS", 2)

    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        for _ in range(2):
            await life.webhooks.create(INSIDE, ORDERS, URL)
        with pytest.raises(QuotaExceeded):
            await life.webhooks.create(INSIDE, ORDERS, URL)

    play_virtually(tmp_path, story)


def test_a_deleted_one_is_quiet_and_its_group_and_log_are_gone(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, URL)
        await life.publish(b"x")
        await asyncio.sleep(10)
        assert await life.broker.run(INSIDE, ListGroups(), ORDERS) == ["main", webhook.group]
        assert list(tmp_path.rglob("*webhook-log*"))
        await life.webhooks.delete(INSIDE, webhook.id)
        await life.publish(b"y")
        await asyncio.sleep(10)
        assert len(end.calls) == 1
        assert await life.broker.run(INSIDE, ListGroups(), ORDERS) == ["main"]
        assert not list(tmp_path.rglob("*webhook-log*"))
        with pytest.raises(NoSuchWebhook):
            await life.webhooks.deliveries(INSIDE, webhook.id)

    play_virtually(tmp_path, story)


def test_a_group_that_was_named_stays(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, URL, group="audit")
        await life.webhooks.delete(INSIDE, webhook.id)
        assert "audit" in await life.broker.run(INSIDE, ListGroups(), ORDERS)

    play_virtually(tmp_path, story)


@pytest.mark.parametrize("with_namespace", [False, True])
def test_a_deleted_queue_takes_its_disabled_webhooks_along_as_well(
    tmp_path: Path, with_namespace: bool
) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        made = await life.webhooks.create(INSIDE, ORDERS, URL)
        await life.webhooks.change(INSIDE, made.id, enabled=False)
        other = await life.webhooks.create(INSIDE, QueueName("other", "orders"), URL)
        if with_namespace:
            await life.broker.namespaces.delete(INSIDE, ORDERS.namespace, force=True)
        else:
            await life.broker.delete_queue(INSIDE, ORDERS)
        with pytest.raises(NoSuchWebhook):
            life.webhooks.get(INSIDE, made.id)
        await life.broker.create_queue(INSIDE, ORDERS)
        assert life.webhooks.list(INSIDE, ORDERS) == []
        assert life.webhooks.get(INSIDE, other.id) == other

    play_virtually(tmp_path, story)


def test_a_group_deleted_under_it_disables_it_and_says_so(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, URL, group="audit")
        await asyncio.sleep(1)
        await life.broker.run(INSIDE, DeleteGroup("audit"), ORDERS)
        await life.publish(b"x")
        await asyncio.sleep(100)
        found = life.webhooks.get(INSIDE, webhook.id)
        assert (found.enabled, found.disabled_because) == (False, "its group was deleted")

    play_virtually(tmp_path, story)


def test_secret_and_rotate_secret_together_are_refused(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, URL)
        with pytest.raises(InvalidInput):
            await life.webhooks.change(
                INSIDE, webhook.id, secret=webhook.secrets[0].value, rotate_secret=True
            )

    play_virtually(tmp_path, story)


def test_no_more_than_three_secrets_sign(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, URL)
        for _ in range(5):
            webhook = await life.webhooks.change(INSIDE, webhook.id, rotate_secret=True)
        assert len(webhook.secrets_at(clock.now_ns())) == 3

    play_virtually(tmp_path, story)


def test_subscriptions_of_a_queue_are_listed_oldest_first(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        made = []
        for _ in range(3):
            made.append(await life.webhooks.create(INSIDE, ORDERS, URL))
            await asyncio.sleep(1)
        await life.webhooks.create(INSIDE, QueueName("default", "other"), URL)
        assert life.webhooks.list(INSIDE, ORDERS) == made

    play_virtually(tmp_path, story)


def test_a_group_that_cannot_be_made_leaves_no_subscription(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        with pytest.raises(NoSuchQueue):
            await life.webhooks.create(INSIDE, ORDERS, URL)
        await life.broker.create_queue(INSIDE, ORDERS)
        assert life.webhooks.list(INSIDE, ORDERS) == []

    play_virtually(tmp_path, story, create_on_use=False)
