"""When deliveries happen: retries, Retry-After, breaker, rotation. On a virtual clock."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from penstock.broker.access import INSIDE
from penstock.broker.webhooks import Circuit
from penstock.broker.webhooks.sending import Answer
from penstock.operations import ListDead
from tests.broker.webhooks.life import ORDERS, Life, play_virtually
from tests.broker.webhooks.scripted import DOWN, OK, Scripted
from tests.harness.virtual_loop import LoopClock

URL = "https://hooks.example.com/in"
DAY_S = 86400.0


def test_epochqueue_retries_after_1_5_and_30_s_and_then_the_message_is_dead(
    tmp_path: Path,
) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        await life.webhooks.create(INSIDE, ORDERS, URL, style="epochqueue")
        await life.publish(b"x")
        await asyncio.sleep(100)
        assert end.times_s == [0, 1, 6, 36]
        (letter,) = (await life.broker.run(INSIDE, ListDead(), ORDERS)).letters
        assert (letter.attempts, letter.reason) == (4, "the endpoint answered 500")

    play_virtually(tmp_path, story, *[Answer(500)] * 4)


def test_a_timeout_is_retried_as_a_5xx_is(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        await life.webhooks.create(INSIDE, ORDERS, URL, style="epochqueue")
        await life.publish(b"x")
        await asyncio.sleep(100)
        assert end.times_s == [0, 1]
        assert (await life.stats()).acked == 1

    play_virtually(tmp_path, story, Answer(0, "no answer within 10 s"))


def test_each_endpoint_has_a_retry_schedule_of_its_own(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        await life.webhooks.create(INSIDE, ORDERS, URL, retry_s=[2, 20], group="main")
        await life.publish(b"x")
        await asyncio.sleep(1000)
        assert end.times_s == [0, 2, 22, 42]
        assert [call.attempt for call in end.calls] == [1, 2, 3, 4]
        assert len({call.headers["webhook-id"] for call in end.calls}) == 1
        assert len({call.headers["webhook-timestamp"] for call in end.calls}) == 4

    play_virtually(tmp_path, story, DOWN, DOWN, DOWN)


@pytest.mark.parametrize("seconds", [-7200.0, -10.0, 7200.0])
def test_a_clock_that_is_set_neither_loses_nor_doubles_a_retry(
    tmp_path: Path, seconds: float
) -> None:
    """Set back, a wait still lasts as long as it says; set forward, what is overdue is sent."""

    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        await life.webhooks.create(INSIDE, ORDERS, URL, retry_s=[60], group="main")
        await life.publish(b"x")
        await asyncio.sleep(30)
        clock.jump(seconds)
        await asyncio.sleep(1000)
        assert [call.attempt for call in end.calls] == [1, 2, 3]
        first, second, third = end.times_s
        assert second - first == 60 if seconds < 0 else 30 <= second - first <= 60
        assert third - second == 60
        assert (await life.stats()).acked == 1

    play_virtually(tmp_path, story, DOWN, DOWN)


def test_the_queues_max_attempts_end_it(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        await life.webhooks.create(INSIDE, ORDERS, URL, retry_s=[1], group="main")
        await life.publish(b"x")
        await asyncio.sleep(1000)
        assert end.times_s == [0, 1, 2]
        assert (await life.stats()).dead == 1

    play_virtually(tmp_path, story, DOWN, DOWN, DOWN, queues={"max_attempts": 3})


def test_retry_after_keeps_the_whole_endpoint_quiet(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        await life.webhooks.create(INSIDE, ORDERS, URL, group="main")
        await life.publish(b"first")
        await asyncio.sleep(10)
        await life.publish(b"second")
        await asyncio.sleep(1000)
        assert end.times_s == [0, 120, 120]
        assert (await life.stats()).acked == 2

    play_virtually(tmp_path, story, Answer(429, retry_after_s=120.0))


def test_the_breaker_leaves_a_failing_endpoint_alone_and_spends_no_attempts(
    tmp_path: Path,
) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        end.otherwise = DOWN
        webhook = await life.webhooks.create(INSIDE, ORDERS, URL, group="main", retry_s=[1])
        await life.publish(*(b"%d" % number for number in range(20)))
        await asyncio.sleep(29)
        assert end.times_s == [0, 0, 0, 0, 0]
        assert life.webhooks.circuit(webhook.id) is Circuit.OPEN
        await asyncio.sleep(60)  # half open at 30 s: one is tried, and rests until 90 s
        assert end.times_s[5:] == [30]
        end.otherwise = OK
        await asyncio.sleep(2)
        assert life.webhooks.circuit(webhook.id) is Circuit.CLOSED
        stats = await life.stats()
        assert (stats.acked, stats.nacked, stats.dead) == (20, 6, 0)

    play_virtually(tmp_path, story, webhook_concurrency=1)


def test_deliveries_under_way_when_the_breaker_opens_are_all_it_costs(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        end.otherwise, end.takes_s = DOWN, 1.0
        await life.webhooks.create(INSIDE, ORDERS, URL, group="main", retry_s=[1000])
        await life.publish(*(b"%d" % number for number in range(100)))
        await asyncio.sleep(30)
        assert len(end.calls) == 8

    play_virtually(tmp_path, story, webhook_concurrency=8)


def test_both_secrets_sign_for_a_day_after_a_rotation(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        created = await life.webhooks.create(INSIDE, ORDERS, URL, group="main")
        changed = await life.webhooks.change(INSIDE, created.id, rotate_secret=True)
        old, new = created.secrets[0].value, changed.secrets[0].value
        assert old != new
        await life.publish(b"during")
        await asyncio.sleep(DAY_S + 1)
        await life.publish(b"after")
        await asyncio.sleep(1)
        during, after = end.calls
        for secret, call, good in [
            (old, during, True),
            (new, during, True),
            (new, after, True),
            (old, after, False),
        ]:
            expected = Webhook(secret).sign(
                call.headers["webhook-id"],
                # The library's own check of the time would look at the machine's clock.
                _timestamp(call.headers["webhook-timestamp"]),
                call.body.decode(),
            )
            assert (expected in call.headers["webhook-signature"].split(" ")) is good

    play_virtually(tmp_path, story)


def _timestamp(text: str) -> datetime:
    return datetime.fromtimestamp(int(text), UTC)


def test_a_disabled_webhook_is_quiet_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, URL)
        await life.webhooks.change(INSIDE, webhook.id, enabled=False)
        await life.publish(b"x")
        await asyncio.sleep(10)
        assert end.calls == []
        await life.webhooks.change(INSIDE, webhook.id, enabled=True)
        await asyncio.sleep(10)
        assert len(end.calls) == 1

    play_virtually(tmp_path, story)


def test_the_lease_outlives_a_delivery_that_takes_all_its_time(tmp_path: Path) -> None:
    async def story(life: Life, end: Scripted, clock: LoopClock) -> None:
        end.takes_s = 20.0
        await life.webhooks.create(INSIDE, ORDERS, URL, group="main")
        await life.publish(b"x")
        await asyncio.sleep(1000)
        assert len(end.calls) == 1
        stats = await life.stats()
        assert (stats.acked, stats.timed_out) == (1, 0)

    play_virtually(tmp_path, story, webhook_timeout_s=20.0)
