"""What the delivery log shows of an endpoint: its answers, how often it fails, and resends."""

import asyncio
from pathlib import Path

import pytest

from penstock.broker.access import INSIDE, Caller
from penstock.broker.webhooks import Circuit
from penstock.broker.webhooks.delivery_log import MAX_ANSWERS, DeliveryLog
from penstock.broker.webhooks.outcome import FAILURES_TO_OPEN
from penstock.broker.webhooks.sending import Answer
from penstock.errors import NoSuchDelivery, NoSuchMessage, NotAllowed
from penstock.names import QueueName
from penstock.operations import Compact, Purge, Verb
from tests.broker.webhooks.endpoint import answer, receiver
from tests.broker.webhooks.life import ORDERS, Life, play, play_virtually
from tests.broker.webhooks.scripted import DOWN, Scripted
from tests.harness.virtual_loop import LoopClock

OTHER = QueueName("bank", "loans")


def test_the_log_has_the_beginning_of_each_answer(tmp_path: Path) -> None:
    async def story(life: Life) -> None:
        async with receiver() as end:
            end.answers = [answer(500, body=b"out of \xff ink" + b"x" * 5000)]
            webhook = await life.webhooks.create(INSIDE, ORDERS, end.url(), retry_s=[1000])
            await life.publish(b"x")
            await life.until(lambda stats: stats.groups[webhook.group].nacked == 1)
            (delivery,) = (await life.webhooks.deliveries(INSIDE, webhook.id)).deliveries
            assert delivery.status == 500
            assert delivery.answer.startswith("out of \ufffd ink")
            assert len(delivery.answer.encode()) <= 1002

    play(tmp_path, story)


def test_counts_show_successes_failures_and_durations(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, "http://h.example/", retry_s=[5])
        assert (await life.webhooks.success(INSIDE, webhook.id)).success_rate is None
        end.takes_s = 2.0
        await life.publish(b"x")
        await asyncio.sleep(20)
        counts = await life.webhooks.success(INSIDE, webhook.id)
        assert (counts.delivered, counts.failed, counts.recent) == (1, 1, 2)
        assert counts.success_rate == 0.5
        assert counts.last_delivered_ns > counts.last_failed_ns > 0
        assert (counts.p50_s, counts.p95_s) == pytest.approx((2, 2))

    play_virtually(tmp_path, story, Answer(500))


def test_health_shows_the_breaker(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, "http://h.example/", retry_s=[1])
        await life.publish(b"x")
        end.otherwise = DOWN
        while (health := life.webhooks.health(webhook.id)).circuit is Circuit.CLOSED:
            await asyncio.sleep(0.5)
        assert health.failures == FAILURES_TO_OPEN
        assert 0 < health.open_for_s <= 30
        assert life.webhooks.health("wh-none").failures == 0

    play_virtually(tmp_path, story, DOWN)


def test_a_resend_posts_the_same_message_and_changes_nothing(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, "http://h.example/", retry_s=[1000])
        await life.publish(b"x")
        await asyncio.sleep(1)
        before = await life.stats()
        end.answers = [Answer(500, text="no"), Answer(200, text="yes")]
        failed = await life.webhooks.resend(INSIDE, webhook.id, 1)
        assert (failed.outcome, failed.answer, failed.is_resent) == ("failed", "no", True)
        good = await life.webhooks.resend(INSIDE, webhook.id, failed.number)
        assert (good.outcome, good.attempt, good.message_id) == ("delivered", 1, failed.message_id)
        assert len({call.body for call in end.calls}) == 1
        after = await life.stats()
        assert after.groups[webhook.group][:-1] == before.groups[webhook.group][:-1]
        counts = await life.webhooks.success(INSIDE, webhook.id)
        assert (counts.delivered, counts.failed) == (0, 1)
        assert life.webhooks.health(webhook.id).failures == 1
        with pytest.raises(NoSuchDelivery):
            await life.webhooks.resend(INSIDE, webhook.id, 99)
        reader = Caller("bob", frozenset({Verb.READ}))
        with pytest.raises(NotAllowed):
            await life.webhooks.resend(reader, webhook.id, 1)

    play_virtually(tmp_path, story, Answer(503))


def test_a_message_that_is_not_kept_is_not_sent_again(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        await life.broker.create_queue(INSIDE, ORDERS, {"segment_entries": 1, "retention_s": 1})
        webhook = await life.webhooks.create(INSIDE, ORDERS, "http://h.example/")
        await life.publish(b"x")
        await asyncio.sleep(1)
        await life.publish(b"y")
        await life.broker.run(INSIDE, Purge(), ORDERS)
        await asyncio.sleep(10)
        await life.broker.run(INSIDE, Compact(), ORDERS)
        with pytest.raises(NoSuchMessage):
            await life.webhooks.resend(INSIDE, webhook.id, 1)
        assert len(end.calls) == 2

    play_virtually(tmp_path, story)


def test_all_webhooks_are_listed_that_a_caller_may_read(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        for queue in (ORDERS, OTHER):
            await life.webhooks.create(INSIDE, queue, "http://h.example/")
        bob = Caller("bob", frozenset({Verb.READ}), frozenset({"bank"}))
        assert [one.queue for one in life.webhooks.list_all(INSIDE)] == [OTHER, ORDERS]
        assert [one.queue for one in life.webhooks.list_all(bob)] == [OTHER]
        assert [one.queue for one in life.webhooks.list_all(INSIDE, "default")] == [ORDERS]
        with pytest.raises(NotAllowed):
            life.webhooks.list_all(bob, "default")

    play_virtually(tmp_path, story)


def test_answers_are_kept_of_the_latest_deliveries_only() -> None:
    log = DeliveryLog(2 * MAX_ANSWERS)
    for _ in range(MAX_ANSWERS + 5):
        log.add(
            "id",
            1,
            at_ns=1,
            took_s=0.1,
            outcome="delivered",
            status=200,
            reason="",
            retry_in_s=None,
            answer="ok",
        )
    assert sum(bool(one.answer) for one in log.page(0, 10_000).deliveries) == MAX_ANSWERS
    again = DeliveryLog(2 * MAX_ANSWERS, log.dump())
    assert again.counts() == log.counts()
    assert again.get(1) is not None and again.get(10_000) is None
