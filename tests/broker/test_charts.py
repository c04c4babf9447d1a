"""Chart history: what is recorded, kept over restarts, and shown, on a virtual clock."""

import asyncio

import pytest

from penstock.broker.access import Caller
from penstock.broker.broker import Broker
from penstock.broker.charts import charts
from penstock.broker.charts.rows import RINGS, code_of, value_of
from penstock.broker.store import Settlement, save_document
from penstock.errors import DiskFull, InvalidInput, NoSuchQueue, NotAllowed
from penstock.names import QueueName
from penstock.operations import Verb
from tests.broker.conftest import OpenBroker
from tests.broker.test_several_brokers import two_brokers
from tests.harness.virtual_loop import LoopClock

ANN = Caller("ann")
QUEUE = QueueName("shop", "orders")
OTHER = QueueName("shop", "other")


async def started(broker: Broker) -> Broker:
    broker.charts.start()
    await asyncio.sleep(0.5)
    return broker


async def consume(broker: Broker, n: int, *, after_s: float = 0.0) -> None:
    leased = await broker.lease(ANN, QUEUE, n=n)
    assert len(leased) == n
    if after_s:
        await asyncio.sleep(after_s)
    await broker.settle(ANN, [Settlement("ack", one.receipt) for one in leased])


@pytest.mark.parametrize("value", [0, 1, 2, 3, 7, 99, 998, 999, 1000])
def test_small_whole_numbers_are_exact(value: int) -> None:
    assert round(value_of(code_of(value))) == value


@pytest.mark.parametrize("value", [2e-6, 0.0123, 12345.6, 1e9, 1e15])
def test_other_values_are_exact_to_a_twentieth_of_a_percent(value: float) -> None:
    assert value_of(code_of(value)) == pytest.approx(value, rel=5e-4)


async def test_rates_depth_and_durations_are_recorded_by_the_step(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        await broker.create_queue(ANN, QUEUE)
        await started(broker)
        await broker.publish(ANN, QUEUE, [b"x"] * 50)
        await asyncio.sleep(2)
        await consume(broker, 20, after_s=1)
        await asyncio.sleep(8)
        (leased,) = await broker.lease(ANN, QUEUE)
        await broker.settle(ANN, [Settlement("nack", leased.receipt, dead=True)])
        await asyncio.sleep(20)
        chart = await broker.survey.chart(ANN, QUEUE, since=1_700_000_000)
        series = chart.series
        assert (chart.start, chart.step_s) == (1_700_000_000, 10)
        assert series["published"] == [5.0, 0, 0]
        assert series["delivered"] == [2.0, 0.1, 0]
        assert series["acked"] == [2.0, 0, 0]
        assert series["failed"] == series["dead_lettered"] == [0, 0.1, 0]
        assert series["ready"] == [30, 29, 29]
        assert series["dead"] == [0, 1, 1]
        assert series["oldest_age_s"] == pytest.approx([9.5, 19.5, 29.5], abs=0.2)
        wait, work = series["wait_p50_s"], series["work_p99_s"]
        assert wait[0] == pytest.approx(2, rel=0.13)
        assert wait[1] == pytest.approx(11, rel=0.13)  # of this step alone
        assert work[0] == pytest.approx(1, rel=0.13)
        assert (wait[2], work[1]) == (None, None)
        assert min(one or 0 for one in series["size_bytes"]) > 0


async def test_all_queues_together_are_recorded_as_well(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await started(broker)
        await broker.publish(ANN, QUEUE, [b"x"] * 10)
        await broker.publish(ANN, OTHER, [b"x"] * 30)
        await asyncio.sleep(10)
        chart = await broker.survey.chart(ANN, since=1_700_000_000)
        assert chart.series["published"] == [4.0]
        assert chart.series["ready"] == [40]


async def test_a_queue_that_was_there_before_has_no_jump(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.publish(ANN, QUEUE, [b"x"] * 500)
    async with open_broker() as broker:
        await asyncio.sleep(3600)
        await started(broker)
        await asyncio.sleep(1)
        await broker.publish(ANN, QUEUE, [b"x"] * 5)
        await asyncio.sleep(20)
        chart = await broker.survey.chart(ANN, QUEUE, since=1_700_003_600)
        assert max(one or 0 for one in chart.series["published"]) <= 0.5
        assert chart.series["ready"][-1] == 505


async def test_history_survives_a_restart_and_the_gap_shows(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        await started(broker)
        await broker.publish(ANN, QUEUE, [b"x"] * 70)
        await asyncio.sleep(15)
    await asyncio.sleep(30 - clock.passed_ns / 1e9 % 10)
    async with open_broker() as broker:
        await started(broker)
        await asyncio.sleep(25)
        chart = await broker.survey.chart(ANN, QUEUE, since=1_700_000_000)
        assert chart.series["published"][:2] == [7.0, 0]
        assert chart.series["ready"][0] == 70
        assert None in chart.series["ready"]
        assert chart.series["ready"][-1] == 70


async def test_longer_steps_reach_back_a_day_and_a_week(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await started(broker)
        await broker.publish(ANN, QUEUE, [b"x"] * 240)
        await asyncio.sleep(300)
        await broker.publish(ANN, QUEUE, [b"x"] * 60)
        await asyncio.sleep(2 * 3600)
        day = await broker.survey.chart(ANN, QUEUE, since=1_700_000_000)
        assert day.step_s == 120
        assert day.series["published"][:4] == [pytest.approx(2, rel=1e-3), 0, 0, 0.5]
        assert day.series["ready"][:4] == [240, 240, 240, 300]
        week = await broker.survey.chart(ANN, QUEUE, since=1_700_000_000 - 3 * 86400)
        assert week.step_s == 900
        assert sum(one or 0 for one in week.series["published"]) == pytest.approx(1 / 3, rel=1e-3)
        few = await broker.survey.chart(ANN, QUEUE, since=1_700_000_000, max_points=10)
        assert few.points == len(few.series["ready"]) <= 10
        assert few.series["ready"][-1] == 300


async def test_a_longer_step_includes_what_was_before_a_restart(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await started(broker)
        await broker.publish(ANN, QUEUE, [b"x"] * 60)
        await asyncio.sleep(30)
    async with open_broker() as broker:
        await started(broker)
        await broker.publish(ANN, QUEUE, [b"x"] * 60)
        await asyncio.sleep(3700)
        chart = await broker.survey.chart(ANN, QUEUE, since=1_700_000_000)
        assert chart.step_s == 120
        assert chart.series["published"][0] == pytest.approx(1, rel=1e-3)


async def test_a_damaged_document_is_dropped_and_replaced(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        for kind in RINGS:
            for part in range(kind.parts):
                await save_document(broker.store, f"charts-{kind.name}-{part}", b"\x93damaged")
        await started(broker)
        await broker.publish(ANN, QUEUE, [b"x"] * 70)
        await asyncio.sleep(15)
    async with open_broker() as broker:
        await started(broker)
        chart = await broker.survey.chart(ANN, QUEUE, since=1_700_000_000)
        assert chart.series["published"][0] == 7.0


async def test_a_failed_save_is_tried_again(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker() as broker:
        await started(broker)
        await broker.publish(ANN, QUEUE, [b"x"] * 70)
        kept = broker.store.replace_document

        def full(*_: object) -> None:
            raise DiskFull("no space")

        monkeypatch.setattr(broker.store, "replace_document", full)
        await asyncio.sleep(90)
        monkeypatch.setattr(broker.store, "replace_document", kept)
        await asyncio.sleep(60)
        await asyncio.sleep(3)
    async with open_broker() as broker:
        await started(broker)
        chart = await broker.survey.chart(ANN, QUEUE, since=1_700_000_000)
        assert chart.series["published"][0] == 7.0


async def test_a_queue_without_changes_gets_no_rows(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.create_queue(ANN, QUEUE)
        await started(broker)
        await asyncio.sleep(600)
        rows, _, overall = broker.charts.rows_for(str(QUEUE), 0)
        assert len(rows) == 40  # what it held at the beginning
        assert [len(one) // 40 for one in overall.values()] == [60]


async def test_the_rows_are_bounded_and_idle_queues_go_first(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "MAX_BYTES", 2500)
    async with open_broker() as broker:
        await broker.create_queue(ANN, OTHER)
        await started(broker)
        for _ in range(30):
            await broker.publish(ANN, QUEUE, [b"x"])
            await asyncio.sleep(10)
        await asyncio.sleep(60)
        assert broker.charts.rows_for(str(OTHER), 0)[0] == b""


async def test_a_deleted_queue_is_forgotten(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await started(broker)
        await broker.publish(ANN, QUEUE, [b"x"] * 70)
        await asyncio.sleep(20)
        await broker.delete_queue(ANN, QUEUE)
        with pytest.raises(NoSuchQueue):
            await broker.survey.chart(ANN, QUEUE)
        await asyncio.sleep(20)
        assert broker.charts.rows_for(str(QUEUE), 0)[0] == b""


async def test_two_brokers_show_the_same_history(clock: LoopClock) -> None:
    async with two_brokers(clock) as (first, second):
        await started(first)
        await started(second)
        await first.publish(ANN, QUEUE, [b"x"] * 70)
        await asyncio.sleep(10)
        for broker in (first, second):
            chart = await broker.survey.chart(ANN, QUEUE, since=1_700_000_000)
            assert chart.series["published"] == [7.0]
            overall = await broker.survey.chart(ANN, since=1_700_000_000)
            assert overall.series["published"] == [7.0]


async def test_a_chart_needs_the_right_to_read(open_broker: OpenBroker) -> None:
    bob = Caller("bob", frozenset({Verb.READ}), frozenset({"bank"}))
    async with open_broker() as broker:
        await broker.create_queue(ANN, QUEUE)
        with pytest.raises(NotAllowed):
            await broker.survey.chart(bob, QUEUE)
        with pytest.raises(NotAllowed):
            await broker.survey.chart(bob)  # of all namespaces
        with pytest.raises(InvalidInput):
            await broker.survey.chart(ANN, QUEUE, max_points=0)
