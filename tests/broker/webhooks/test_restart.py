"""Subscriptions, retries and the log survive a stop and a kill, also in the middle."""

import asyncio
import shutil
from asyncio import Future
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import Broker, QueueName
from penstock.broker.access import INSIDE, Caller
from penstock.broker.embedded import EmbeddedStore
from penstock.broker.webhooks import Webhooks
from penstock.errors import CorruptLedger, DiskFull, LedgerError, Unavailable
from penstock.operations import CreateGroup
from penstock.operations.operation import Operation
from tests.broker.webhooks.life import ORDERS, Life, life
from tests.broker.webhooks.scripted import DOWN, Scripted
from tests.harness.virtual_loop import LoopClock, run_virtually

URL = "https://hooks.example.com/in"
Act = Callable[[Life, Scripted], Awaitable[None]]


def stop_between(path: Path, first: Act, second: Act) -> None:
    """Two lives in one directory, with an orderly stop between them."""

    async def main(clock: LoopClock) -> None:
        for act in (first, second):
            sender = Scripted(clock)
            async with life(path, sender=sender, clock=clock) as one:
                await act(one, sender)

    run_virtually(main)


def kill_between(path: Path, first: Act, second: Act) -> None:
    """The second life begins with the files as they were at the end of the first act."""

    async def main(clock: LoopClock) -> None:
        sender = Scripted(clock)
        async with life(path / "killed", sender=sender, clock=clock) as one:
            await first(one, sender)
            shutil.copytree(path / "killed", path / "reopened")
        sender = Scripted(clock)
        async with life(path / "reopened", sender=sender, clock=clock) as one:
            await second(one, sender)

    run_virtually(main)


@pytest.mark.parametrize("between", [stop_between, kill_between])
def test_subscriptions_survive(tmp_path: Path, between: Callable[[Path, Act, Act], None]) -> None:
    made = []

    async def first(life: Life, end: Scripted) -> None:
        made.append(await life.webhooks.create(INSIDE, ORDERS, URL, retry_s=[3]))
        made.append(await life.webhooks.create(INSIDE, ORDERS, URL, style="epochqueue", secret="s"))

    async def second(life: Life, end: Scripted) -> None:
        assert life.webhooks.list(INSIDE, ORDERS) == sorted(
            made, key=lambda one: (one.created_at_ns, one.id)
        )
        await life.publish(b"x")
        await asyncio.sleep(1)
        assert len(end.calls) == 2

    between(tmp_path, first, second)


@pytest.mark.parametrize("between", [stop_between, kill_between])
def test_a_retry_that_waits_happens_after_the_restart_with_the_next_attempt(
    tmp_path: Path, between: Callable[[Path, Act, Act], None]
) -> None:
    ids = []

    async def first(life: Life, end: Scripted) -> None:
        end.otherwise = DOWN
        await life.webhooks.create(INSIDE, ORDERS, URL, group="main", retry_s=[60])
        await life.publish(b"x")
        await asyncio.sleep(10)
        ids.append(end.calls[0].headers["webhook-id"])

    async def second(life: Life, end: Scripted) -> None:
        await asyncio.sleep(100)
        (call,) = end.calls
        assert (call.attempt, call.headers["webhook-id"]) == (2, ids[0])
        assert round(call.at_s) == 60
        assert (await life.stats()).acked == 1

    between(tmp_path, first, second)


def test_a_delivery_cut_off_by_a_kill_is_made_again_at_once_and_spends_no_attempt(
    tmp_path: Path,
) -> None:
    async def first(life: Life, end: Scripted) -> None:
        end.takes_s = 9.0
        await life.webhooks.create(INSIDE, ORDERS, URL, group="main")
        await life.publish(b"x")
        await asyncio.sleep(1)
        assert len(end.calls) == 1

    async def second(life: Life, end: Scripted) -> None:
        await asyncio.sleep(0.1)
        (call,) = end.calls
        assert call.attempt == 1
        assert (await life.stats()).acked == 1

    kill_between(tmp_path, first, second)


def test_what_others_lease_from_the_same_group_stays_theirs_over_a_kill(tmp_path: Path) -> None:
    async def first(life: Life, end: Scripted) -> None:
        await life.publish(b"x")
        assert await life.broker.lease(INSIDE, ORDERS, lease_s=60, holder="somebody")
        await asyncio.sleep(1)  # a lease is on disk soon after its answer
        await life.webhooks.create(INSIDE, ORDERS, URL, group="main")

    async def second(life: Life, end: Scripted) -> None:
        await asyncio.sleep(50)
        assert (end.calls, (await life.stats()).leased) == ([], 1)

    kill_between(tmp_path, first, second)


def test_a_delivery_under_way_at_a_stop_is_handed_back_and_spends_no_attempt(
    tmp_path: Path,
) -> None:
    async def first(life: Life, end: Scripted) -> None:
        end.takes_s = 9.0
        await life.webhooks.create(INSIDE, ORDERS, URL, group="main")
        await life.publish(b"x")
        await asyncio.sleep(1)
        assert len(end.calls) == 1

    async def second(life: Life, end: Scripted) -> None:
        await asyncio.sleep(0.1)
        (call,) = end.calls
        assert call.attempt == 1

    stop_between(tmp_path, first, second)


def test_what_was_acked_is_not_delivered_again_after_a_kill(tmp_path: Path) -> None:
    async def first(life: Life, end: Scripted) -> None:
        await life.webhooks.create(INSIDE, ORDERS, URL)
        await life.publish(b"x")
        await asyncio.sleep(1)
        assert len(end.calls) == 1

    async def second(life: Life, end: Scripted) -> None:
        await asyncio.sleep(1000)
        assert end.calls == []

    kill_between(tmp_path, first, second)


def test_the_log_survives_a_stop_and_a_kill_but_for_its_last_seconds(tmp_path: Path) -> None:
    webhooks = []

    async def first(life: Life, end: Scripted) -> None:
        webhooks.append(await life.webhooks.create(INSIDE, ORDERS, URL))
        await life.publish(b"long ago")
        await asyncio.sleep(10)
        await life.publish(b"just now")
        await asyncio.sleep(1)

    async def after_kill(life: Life, end: Scripted) -> None:
        page = await life.webhooks.deliveries(INSIDE, webhooks[-1].id)
        assert [one.number for one in page.deliveries] == [1]

    async def after_stop(life: Life, end: Scripted) -> None:
        page = await life.webhooks.deliveries(INSIDE, webhooks[-1].id)
        assert [one.number for one in page.deliveries] == [2, 1]

    kill_between(tmp_path / "kill", first, after_kill)
    stop_between(tmp_path / "stop", first, after_stop)


def test_a_webhook_of_a_queue_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    ids = []

    async def first(life: Life, end: Scripted) -> None:
        webhook = await life.webhooks.create(INSIDE, ORDERS, URL)
        await life.webhooks.change(INSIDE, webhook.id, enabled=False)
        await life.broker.delete_queue(INSIDE, ORDERS)
        ids.append(webhook.id)

    async def second(life: Life, end: Scripted) -> None:
        await life.publish(b"x")
        assert life.webhooks.list(INSIDE, ORDERS) == []
        assert not list(tmp_path.rglob(f"*{ids[0].removeprefix('wh-')}*"))

    stop_between(tmp_path, first, second)


def test_a_group_that_a_crash_kept_from_being_made_is_made_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Broker.run

    def crash_just_before(
        broker: Broker, caller: Caller, operation: Operation[Any], queue: QueueName
    ) -> Future[Any]:
        if isinstance(operation, CreateGroup) and not (tmp_path / "reopened").exists():
            shutil.copytree(tmp_path / "killed", tmp_path / "reopened")
        return run(broker, caller, operation, queue)

    async def main(clock: LoopClock) -> None:
        async with life(tmp_path / "killed", sender=Scripted(clock), clock=clock) as one:
            await one.publish(b"so that there is a queue")
            await one.webhooks.create(INSIDE, ORDERS, URL)
        end = Scripted(clock)
        async with life(tmp_path / "reopened", sender=end, clock=clock) as one:
            await one.publish(b"x")
            await asyncio.sleep(1)
            assert len(end.calls) == 1

    monkeypatch.setattr(Broker, "run", crash_just_before)
    run_virtually(main)


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"webhooks": [{}]}', b"\xff" * 100])
def test_a_damaged_document_stops_webhooks_only_and_is_not_written_over(
    tmp_path: Path, damaged: bytes
) -> None:
    def document() -> Path:
        (found,) = tmp_path.rglob("webhooks.json")
        return found

    async def first(life: Life, end: Scripted) -> None:
        await life.webhooks.create(INSIDE, ORDERS, URL)

    async def second(life: Life, end: Scripted) -> None:
        await life.publish(b"x")
        assert (await life.stats()).ready == 1
        if damaged:  # nothing at all is as if there was no document
            with pytest.raises(CorruptLedger, match="webhooks.json cannot be read"):
                await life.webhooks.create(INSIDE, ORDERS, URL)
            assert document().read_bytes() == damaged

    async def main(clock: LoopClock) -> None:
        async with life(tmp_path, sender=Scripted(clock), clock=clock) as one:
            await first(one, Scripted(clock))
        document().write_bytes(damaged)
        async with life(tmp_path, sender=Scripted(clock), clock=clock) as one:
            await second(one, Scripted(clock))

    run_virtually(main)


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b"[]", b'{"number": 1}', b'{"number": "1", "deliveries": []}', b"\xff"]
)
def test_a_damaged_log_is_set_aside_and_reported_and_deliveries_go_on(
    tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(clock: LoopClock) -> None:
        async with life(tmp_path, sender=Scripted(clock), clock=clock) as one:
            webhook = await one.webhooks.create(INSIDE, ORDERS, URL)
            await one.publish(b"x")
            await asyncio.sleep(10)
        for kept in ("damaged-1", "damaged-2"):  # damaged twice: both are kept
            (document,) = tmp_path.rglob("webhook-log-*.json")
            document.write_bytes(damaged + kept[-1:].encode())
            async with life(tmp_path, sender=Scripted(clock), clock=clock) as one:
                await one.publish(b"y")
                await asyncio.sleep(10)
                page = await one.webhooks.deliveries(INSIDE, webhook.id)
                assert [each.number for each in page.deliveries] == [1]
                assert page.damaged_log == f"{document.name}.{kept}"
                aside = document.with_name(page.damaged_log)
                assert aside.read_bytes() == damaged + kept[-1:].encode()
        async with life(tmp_path, sender=Scripted(clock), clock=clock) as one:
            page = await one.webhooks.deliveries(INSIDE, webhook.id)
            assert (len(page.deliveries), page.damaged_log) == (1, aside.name)

    run_virtually(main)
    assert [one.msg for one in caplog.records].count("webhook log set aside") == 2


def test_a_damaged_log_is_not_replaced_while_it_cannot_be_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(clock: LoopClock) -> None:
        async with life(tmp_path, sender=Scripted(clock), clock=clock) as one:
            webhook = await one.webhooks.create(INSIDE, ORDERS, URL)
            await one.publish(b"x")
            await asyncio.sleep(10)
        (document,) = tmp_path.rglob("webhook-log-*.json")
        document.write_bytes(b"{")
        end = Scripted(clock)
        async with life(tmp_path, sender=end, clock=clock) as one:

            def full(*_: object) -> object:
                raise DiskFull("no room")

            monkeypatch.setattr(one.broker.store, "replace_document", full)
            await one.publish(b"y")
            await asyncio.sleep(10)
            assert len(end.calls) == 1  # it is delivered all the same
            assert document.read_bytes() == b"{"
            page = await one.webhooks.deliveries(INSIDE, webhook.id)
            assert page.damaged_log == document.name
            monkeypatch.undo()
            await one.publish(b"z")
            await asyncio.sleep(10)
            page = await one.webhooks.deliveries(INSIDE, webhook.id)
            assert page.damaged_log == f"{document.name}.damaged-1"
            assert document.with_name(page.damaged_log).read_bytes() == b"{"

    run_virtually(main)


def test_a_log_that_is_not_read_yet_is_not_replaced_by_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(clock: LoopClock) -> None:
        async with life(tmp_path, sender=Scripted(clock), clock=clock) as one:
            webhook = await one.webhooks.create(INSIDE, ORDERS, URL)
            await one.publish(b"x")
            await asyncio.sleep(10)
        load, failures = EmbeddedStore.load_document, [LedgerError("no answer of the disk")]

        def fail_once(store: EmbeddedStore, name: str) -> "asyncio.Future[bytes | None]":
            if name.startswith("webhook-log") and failures:
                raise failures.pop()
            return load(store, name)

        monkeypatch.setattr(EmbeddedStore, "load_document", fail_once)
        async with life(tmp_path, sender=Scripted(clock), clock=clock) as one:
            await one.publish(b"y")
            await asyncio.sleep(60)
            page = await one.webhooks.deliveries(INSIDE, webhook.id)
            assert [each.number for each in page.deliveries] == [2, 1]

    run_virtually(main)


def test_nothing_is_changed_before_what_is_there_was_read(tmp_path: Path) -> None:
    async def main(clock: LoopClock) -> None:
        async with life(tmp_path, sender=Scripted(clock), clock=clock) as one:
            unread = Webhooks(one.broker, sender=Scripted(clock))
            with pytest.raises(Unavailable):
                await unread.create(INSIDE, ORDERS, URL)
            with pytest.raises(Unavailable):
                unread.get(INSIDE, "wh-1")

    run_virtually(main)
