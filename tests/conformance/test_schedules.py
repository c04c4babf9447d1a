"""Schedules on every store: published by its own timer, once, by the broker that owns the queue."""

import asyncio

import pytest

from penstock.errors import InvalidInput, NoSuchSchedule, QuotaExceeded
from penstock.model import NS, NewMessage
from penstock.names import QueueName
from penstock.operations import (
    GetSchedule,
    GetStats,
    ListSchedules,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    Schedule,
)
from tests.conformance.conftest import ORDERS, StoreLife

BEAT = Schedule("beat", NewMessage(payload=b"x", headers={"a": "b"}, priority=7), every_s=60)


async def test_a_schedule_is_put_shown_paused_resumed_and_removed(life: StoreLife) -> None:
    store = await life.open()
    put = await store.run(ORDERS, PutSchedule(BEAT))
    assert (put.name, put.every_s, put.paused, put.fired) == ("beat", 60, False, 0)
    night = Schedule("night", b"n", cron="30 2 * * *", time_zone="Europe/Berlin", misfire="all")
    await store.run(ORDERS, PutSchedule(night))
    listed = (await store.run(ORDERS, ListSchedules())).schedules
    assert [one.name for one in listed] == ["beat", "night"]
    assert listed[0] == put
    details = await store.run(ORDERS, GetSchedule("beat", 3))
    assert (details.state, details.message) == (put, BEAT.message)
    assert details.next_times_ns == [put.next_ns + n * 60 * NS for n in range(3)]
    assert (await store.run(ORDERS, PauseSchedule("beat"))).paused
    assert not (await store.run(ORDERS, ResumeSchedule("beat"))).paused
    assert await store.run(ORDERS, RemoveSchedule("beat")) is True
    assert await store.run(ORDERS, RemoveSchedule("beat")) is False
    with pytest.raises(NoSuchSchedule):
        await store.run(ORDERS, GetSchedule("beat"))
    with pytest.raises(InvalidInput, match="cron is"):
        await store.run(ORDERS, PutSchedule(Schedule("a", b"", cron="x x x x x")))
    await store.close()


async def test_ticks_are_published_without_any_call(life: StoreLife) -> None:
    store = await life.open()
    await store.run(ORDERS, PutSchedule(BEAT))
    store.watch(ORDERS)
    life.heard.ready.clear()
    for number in range(1, 4):
        await asyncio.sleep(60)
        assert len(life.heard.ready) >= number  # a call that waits is woken
    leased = await life.lease()
    assert [(one.payload, one.priority, one.headers["a"]) for one in leased] == [(b"x", 7, "b")] * 3
    store.unwatch(ORDERS)
    await store.close()


async def test_a_queue_with_schedules_is_not_closed_for_want_of_use(life: StoreLife) -> None:
    store = await life.open()
    await store.run(ORDERS, PutSchedule(BEAT))
    await asyncio.sleep(3600)  # far longer than a queue without use stays open
    stats = await store.run(ORDERS, GetStats())
    assert stats.ready == 60
    await store.close()


async def test_after_a_restart_it_goes_on(life: StoreLife) -> None:
    store = await life.open()
    every = Schedule("beat", b"x", every_s=60, misfire="all")
    await store.run(ORDERS, PutSchedule(every))
    await asyncio.sleep(130)
    before = (await store.run(ORDERS, ListSchedules())).schedules
    assert before[0].fired == 2
    await store.close()
    await asyncio.sleep(600)
    store = await life.open()
    await life.told()
    await asyncio.sleep(10)
    (state,) = (await store.run(ORDERS, ListSchedules())).schedules
    assert state.fired == 12
    assert (await store.run(ORDERS, GetStats())).ready == 12
    await store.close()


async def test_two_brokers_publish_each_tick_once(life: StoreLife) -> None:
    first = await life.open()
    second, _ = await life.open_another()
    await second.run(ORDERS, PutSchedule(BEAT))
    await first.run(ORDERS, PutSchedule(Schedule("other", b"y", every_s=90)))
    await asyncio.sleep(600)
    found = [one for store in (first, second) for one in await store.lease(ORDERS, 100)]
    ticks = [(one.headers["schedule.name"], one.headers["schedule.due_at"]) for one in found]
    assert len(ticks) == len(set(ticks)) == 10 + 6
    assert await second.run(ORDERS, ListSchedules()) == await first.run(ORDERS, ListSchedules())
    await second.close()
    await first.close()


async def test_a_namespace_that_is_full_keeps_its_ticks(life: StoreLife) -> None:
    store = await life.open()
    await store.run(ORDERS, PutSchedule(Schedule("beat", b"x" * 1000, every_s=60, misfire="all")))
    full = life.heard.namespaces["shop"]._replace(max_bytes=1)
    assert await store.replace_namespace(life.heard.namespaces["shop"], full)
    await life.told()
    with pytest.raises(QuotaExceeded):
        await store.publish(ORDERS, [b"x"])
    await asyncio.sleep(130)
    assert (await store.run(ORDERS, GetStats())).ready == 0
    assert await store.replace_namespace(full, full._replace(max_bytes=0))
    await life.told()
    await asyncio.sleep(2)
    assert (await store.run(ORDERS, GetStats())).ready == 2
    await store.close()


async def test_schedules_go_with_their_queue(life: StoreLife) -> None:
    store = await life.open()
    other = QueueName("shop", "other")
    await store.create(other, (await store.info(ORDERS)).settings)
    await store.run(other, PutSchedule(BEAT))
    await store.delete(other)
    await asyncio.sleep(120)
    await store.create(other, (await store.info(ORDERS)).settings)
    assert (await store.run(other, ListSchedules())).schedules == []
    assert (await store.run(other, GetStats())).ready == 0
    await store.close()
