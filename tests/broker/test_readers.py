"""Readers that lease nothing: their lag is computed when asked for, and reports expire."""

import asyncio
from unittest.mock import patch

import pytest

from penstock.broker import Caller, QueueName, Verb, readers
from penstock.broker.access import INSIDE
from penstock.broker.broker import Broker
from penstock.broker.readers import DOCUMENT, Readers
from penstock.broker.store import save_document
from penstock.errors import InvalidInput, NoSuchQueue, NotAllowed, QuotaExceeded
from tests.broker.conftest import OpenBroker

ORDERS = QueueName("shop", "orders")


async def filled(broker: Broker, count: int, queue: QueueName = ORDERS) -> None:
    await broker.publish(INSIDE, queue, [b"x"] * count)


async def lags(broker: Broker, queue: QueueName = ORDERS) -> dict[str, int]:
    return {one.name: one.lag for one in await broker.readers.of_queue(INSIDE, queue)}


async def test_the_lag_of_a_reader_that_stopped_grows_with_the_queue(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        await filled(broker, 10)
        await broker.readers.report(INSIDE, ORDERS, "copy", 4, rows_per_s=2.5)
        await broker.readers.report(INSIDE, ORDERS, "late", 1)
        (late, copy) = await broker.readers.of_queue(INSIDE, ORDERS)
        assert (late.name, late.lag) == ("late", 10), "those with most lag come first"
        assert (copy.position, copy.lag, copy.rows_per_s) == (4, 7, 2.5)
        await filled(broker, 5)
        assert await lags(broker) == {"copy": 12, "late": 15}
        await broker.readers.report(INSIDE, ORDERS, "copy", 16)
        assert await lags(broker) == {"copy": 0, "late": 15}
    async with open_broker() as broker:
        assert await lags(broker) == {"copy": 0, "late": 15}, "after a restart"


async def test_a_report_expires_and_a_reader_can_be_removed(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await filled(broker, 1)
        await broker.readers.report(INSIDE, ORDERS, "short", 1, expires_s=10)
        await broker.readers.report(INSIDE, ORDERS, "long", 1, expires_s=100)
        await broker.readers.forget(INSIDE, ORDERS, "unknown")
        await asyncio.sleep(11)
        assert await lags(broker) == {"long": 1}
        await broker.readers.forget(INSIDE, ORDERS, "long")
        assert await lags(broker) == {}
        assert await broker.store.load_document(DOCUMENT) is None


async def test_readers_go_with_their_queue(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        other = QueueName("shop", "mails")
        for queue in (ORDERS, other):
            await filled(broker, 2, queue)
            await broker.readers.report(INSIDE, queue, "copy", 1)
        await broker.delete_queue(INSIDE, ORDERS)
        with pytest.raises(NoSuchQueue):
            await broker.readers.report(INSIDE, ORDERS, "copy", 1)
        await filled(broker, 1)
        assert (await lags(broker), await lags(broker, other)) == ({}, {"copy": 2})


async def test_readers_are_limited_in_number_and_bad_reports_are_refused(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        await filled(broker, 1)
        with patch.object(readers, "MAX_QUEUE_READERS", 2):
            made = [broker.readers.report(INSIDE, ORDERS, name, 1) for name in "abc"]
            found = await asyncio.gather(*made, return_exceptions=True)
            assert [type(one) for one in found] == [type(None), type(None), QuotaExceeded]
            await broker.readers.report(INSIDE, ORDERS, "a", 2)  # one that is there
        with patch.object(readers, "MAX_READERS", 2), pytest.raises(QuotaExceeded):
            await broker.readers.report(INSIDE, ORDERS, "c", 1)
        for name, position, options in (
            ("a b", 1, {}),
            ("a", -1, {}),
            ("a", 1, {"rows_per_s": float("nan")}),
            ("a", 1, {"expires_s": 1}),
        ):
            with pytest.raises(InvalidInput):
                await broker.readers.report(INSIDE, ORDERS, name, position, **options)
        assert sorted(await lags(broker)) == ["a", "b"]


async def test_reporting_needs_the_right_to_consume_and_looking_the_right_to_read(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        await filled(broker, 1)
        may_read = Caller("r", frozenset([Verb.READ]), None)
        may_consume = Caller("c", frozenset([Verb.CONSUME]), None)
        with pytest.raises(NotAllowed):
            await broker.readers.report(may_read, ORDERS, "copy", 1)
        with pytest.raises(NotAllowed):
            await broker.readers.forget(may_read, ORDERS, "copy")
        await broker.readers.report(may_consume, ORDERS, "copy", 1)
        with pytest.raises(NotAllowed):
            await broker.readers.of_queue(may_consume, ORDERS)


async def test_reports_of_two_brokers_and_at_the_same_time_are_all_kept(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        await filled(broker, 1)
        second = Readers(broker.store, broker.clock, broker.admit, broker.has_queue)
        both = (broker.readers, second)
        names = [f"r{number}" for number in range(20)]
        await asyncio.gather(
            *(both[n % 2].report(INSIDE, ORDERS, name, 1) for n, name in enumerate(names))
        )
        assert sorted(await lags(broker)) == sorted(names)


async def test_a_failed_write_fails_one_report_and_the_others_are_written(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        await filled(broker, 1)
        replace, failures = broker.store.replace_document, [OSError(5, "disk")]

        def failing(name: str, old: bytes | None, new: bytes | None) -> object:
            if failures:
                raise failures.pop()
            return replace(name, old, new)

        with patch.object(broker.store, "replace_document", failing):
            made = [broker.readers.report(INSIDE, ORDERS, name, 1) for name in "abc"]
            found = await asyncio.gather(*made, return_exceptions=True)
        assert [isinstance(one, OSError) for one in found] == [True, False, False]
        assert sorted(await lags(broker)) == ["b", "c"]


async def test_a_damaged_document_is_replaced_by_new_reports(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await filled(broker, 1)
        await save_document(broker.store, DOCUMENT, b"[[")
        assert await lags(broker) == {}
        await broker.readers.report(INSIDE, ORDERS, "copy", 1)
        assert await lags(broker) == {"copy": 1}


async def test_metrics_show_the_lag_of_readers(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await filled(broker, 3)
        await broker.readers.report(INSIDE, ORDERS, "copy", 2)
        page = (await broker.survey.metrics_page()).decode()
        label = '{namespace="shop",queue="orders",reader="copy"}'
        assert f"penstock_reader_lag{label} 2.0" in page
        assert f"penstock_reader_position{label} 2.0" in page
