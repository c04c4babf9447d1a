"""Messages of a queue arrive at an endpoint, over real sockets, and are settled by its answers."""

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from penstock.broker.access import INSIDE
from penstock.broker.store import Settlement
from penstock.broker.webhooks.sending import HttpSender
from penstock.clock import SystemClock
from penstock.errors import NoSuchQueue
from penstock.model import NewMessage
from penstock.operations import CreateGroup, ListDead
from tests.broker.webhooks.endpoint import answer, receiver
from tests.broker.webhooks.life import ORDERS, Life, play

SLOW = [1000.0]


def test_a_message_is_pushed_signed_and_acked(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            webhook = await life.webhooks.create(INSIDE, ORDERS, end.url())
            message = NewMessage(
                payload=b'{"n": 1}',
                content_type="application/json",
                headers={"kind": "test"},
                priority=7,
                key="k",
            )
            (id_,) = await life.publish(message)
            (request,) = await end.wait_for(1)
            body = Webhook(webhook.secrets[0].value).verify(request.body, request.headers)
            assert request.headers["webhook-id"] == id_
            assert request.headers["content-type"] == "application/json"
            assert request.headers["penstock-signature"].startswith("sha256=")
            assert (body["type"], set(body)) == ("message", {"type", "timestamp", "data"})
            assert body["data"] == {
                "id": id_,
                "namespace": "default",
                "queue": "orders",
                "group": webhook.group,
                "attempt": 1,
                "payload": {"n": 1},
                "content_type": "application/json",
                "headers": {"kind": "test"},
                "priority": 7,
                "key": "k",
            }
            await life.until(lambda stats: stats.groups[webhook.group].acked == 1)

    play(tmp_path, story)


def test_a_payload_that_is_not_json_arrives_as_base64(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            await life.webhooks.create(INSIDE, ORDERS, end.url())
            wrongly_named = NewMessage(payload=b"{", content_type="application/json")
            await life.publish(b"\0\xff", wrongly_named)
            bodies = [json.loads(one.body)["data"] for one in await end.wait_for(2)]
            sent = {base64.b64decode(one["payload_b64"]) for one in bodies}
            assert sent == {b"\0\xff", b"{"}

    play(tmp_path, story)


def test_a_standard_subscription_has_its_own_group_and_leaves_main_alone(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            await life.publish(b"before")
            webhook = await life.webhooks.create(INSIDE, ORDERS, end.url())
            await life.publish(b"after")
            await end.wait_for(1)
            stats = await life.until(lambda stats: stats.groups[webhook.group].acked == 1)
            assert stats.ready == 2

    play(tmp_path, story)


def test_a_named_group_is_shared_and_may_be_main(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            await life.broker.run(INSIDE, CreateGroup("audit", to="beginning"), ORDERS)
            await life.publish(b"there already")
            await life.webhooks.create(INSIDE, ORDERS, end.url("/audit"), group="audit")
            await life.webhooks.create(INSIDE, ORDERS, end.url("/main"), group="main")
            assert {one.target for one in await end.wait_for(2)} == {"/audit", "/main"}

    play(tmp_path, story)


def test_any_2xx_acks_also_a_202(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            end.answers = [answer(202), answer(204), answer(299)]
            await life.webhooks.create(INSIDE, ORDERS, end.url(), style="epochqueue")
            await life.publish(b"1", b"2", b"3")
            stats = await life.until(lambda stats: stats.acked == 3)
            assert (stats.nacked, stats.dead) == (0, 0)

    play(tmp_path, story)


def test_a_redirect_is_a_failure_and_the_message_waits_for_its_retry(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            end.answers = [answer(301, f"Location: {end.url('/elsewhere')}")]
            await life.webhooks.create(INSIDE, ORDERS, end.url(), group="main", retry_s=SLOW)
            await life.publish(b"x")
            await life.until(lambda stats: stats.scheduled == 1)
            assert [one.target for one in end.received] == ["/hook"]

    play(tmp_path, story)


def test_a_410_disables_the_endpoint_and_the_message_stays_unspent(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            end.answers = [answer(410)]
            webhook = await life.webhooks.create(INSIDE, ORDERS, end.url(), group="main")
            await life.publish(b"x")
            await life.until(lambda stats: stats.ready == 1 and len(end.received) == 1)
            async with asyncio.timeout(30):
                while life.webhooks.get(INSIDE, webhook.id).enabled:
                    await asyncio.sleep(0)
            assert "410" in life.webhooks.get(INSIDE, webhook.id).disabled_because
            (leased,) = await life.broker.lease(INSIDE, ORDERS)
            assert leased.attempt == 1
            await life.broker.settle(INSIDE, [Settlement("release", leased.receipt)])
            await life.webhooks.change(INSIDE, webhook.id, enabled=True)
            await life.until(lambda stats: stats.acked == 1)

    play(tmp_path, story)


def test_a_name_that_turns_private_is_refused_when_it_is_called(tmp_path: Path) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def story(life: Life) -> None:
        async with receiver() as end:
            url = end.url(host="hooks.example.com")
            webhook = await life.webhooks.create(INSIDE, ORDERS, url, group="main", retry_s=SLOW)
            await life.publish(b"x")
            await life.until(lambda stats: stats.scheduled == 1)
            page = await life.webhooks.deliveries(INSIDE, webhook.id)
            (delivery,) = page.deliveries
            assert (delivery.outcome, delivery.status) == ("retry", 0)
            assert "127.0.0.1 is not a public address" in delivery.reason
            assert end.connections == 0

    sender = HttpSender(SystemClock(), allow_private=lambda: False, resolve=resolve)
    play(tmp_path, story, sender=sender, webhook_allow_private=False)


def test_no_more_deliveries_at_a_time_than_allowed(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            end.silent = True
            await life.webhooks.create(INSIDE, ORDERS, end.url(), group="main")
            await life.publish(*(b"%d" % number for number in range(10)))
            await end.wait_for(3)
            stats = await life.stats()
            assert (stats.leased, stats.ready) == (3, 7)
            assert end.connections == 3

    play(tmp_path, story, webhook_concurrency=3)


def test_epochqueue_deliveries_look_as_its_endpoints_expect(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            end.answers = [answer(400)]
            await life.webhooks.create(
                INSIDE, ORDERS, end.url(), style="epochqueue", secret="s3cret"
            )
            (id_,) = await life.publish(NewMessage(payload=b"hello", headers={"a": "b"}))
            (request,) = await end.wait_for(1)
            body = json.loads(request.body)
            expected = hmac.new(b"s3cret", request.body, hashlib.sha256).hexdigest()
            assert request.headers["x-epochqueue-signature"] == f"sha256={expected}"
            names = "id body receipt_handle namespace queue published_at metadata"
            assert " ".join(body) == names
            assert (body["id"], base64.b64decode(body["body"])) == (id_, b"hello")
            assert (body["namespace"], body["queue"]) == ("default", "orders")
            assert body["metadata"] == {"a": "b"}
            assert abs(body["published_at"] * 1_000_000 - life.broker.clock.now_ns()) < 60e9

    play(tmp_path, story)


def test_epochqueue_a_4xx_makes_the_message_dead_at_once(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            end.answers = [answer(422)]
            await life.webhooks.create(INSIDE, ORDERS, end.url(), style="epochqueue")
            await life.publish(b"x")
            await life.until(lambda stats: stats.dead == 1)
            page = await life.broker.run(INSIDE, ListDead(), ORDERS)
            assert page.letters[0].reason == "the endpoint answered 422"
            assert page.letters[0].attempts == 1

    play(tmp_path, story)


def test_the_log_says_what_became_of_each_delivery_latest_first(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            end.answers = [answer(500), answer(200), answer(200)]
            webhook = await life.webhooks.create(
                INSIDE, ORDERS, end.url(), group="main", retry_s=SLOW
            )
            first, *_ = await life.publish(b"1", b"2", b"3")
            await life.until(lambda stats: stats.acked == 2)
            page = await life.webhooks.deliveries(INSIDE, webhook.id, limit=2)
            assert [one.number for one in page.deliveries] == [3, 2]
            assert [one.outcome for one in page.deliveries] == ["delivered", "delivered"]
            rest = await life.webhooks.deliveries(INSIDE, webhook.id, cursor=page.next_cursor)
            (failed,) = rest.deliveries
            assert rest.next_cursor == 0
            assert failed._replace(at_ns=0, took_s=0)[:9] == (
                (1, first, 1, 0, 0, "retry", 500, "the endpoint answered 500", 1000.0)
            )
            metrics = life.broker.metrics.page([]).decode()
            assert 'penstock_webhook_deliveries_total{outcome="delivered"} 2.0' in metrics
            assert 'penstock_webhook_deliveries_total{outcome="retry"} 1.0' in metrics

    play(tmp_path, story, webhook_concurrency=1)


def test_the_log_is_bounded(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            webhook = await life.webhooks.create(INSIDE, ORDERS, end.url(), group="main")
            await life.publish(*(b"%d" % number for number in range(10)))
            await life.until(lambda stats: stats.acked == 10)
            page = await life.webhooks.deliveries(INSIDE, webhook.id)
            assert [one.number for one in page.deliveries] == [10, 9, 8]

    play(tmp_path, story, webhook_log=3)


def test_a_deleted_queue_takes_its_subscriptions_along_and_does_not_come_back(
    tmp_path: Path,
) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            webhook = await life.webhooks.create(INSIDE, ORDERS, end.url())
            await life.publish(b"x")
            await end.wait_for(1)
            await life.until(lambda stats: stats.groups[webhook.group].acked == 1)
            await life.broker.delete_queue(INSIDE, ORDERS)
            async with asyncio.timeout(30):
                while (await life.broker.store.load_document("webhooks.json") or b"").count(b"wh-"):
                    await asyncio.sleep(0)
            assert life.broker.queues(INSIDE) == []
            with pytest.raises(NoSuchQueue):
                life.webhooks.list(INSIDE, ORDERS)

    play(tmp_path, story)
