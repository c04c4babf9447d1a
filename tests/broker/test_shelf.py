"""Hundreds of queues cost little: opened when used, closed when idle, at most so many open."""

import asyncio
import errno
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker import Broker, BrokerSettings, Caller, EmbeddedStore, QueueName, Settlement
from penstock.errors import LedgerError, LedgerLocked, PenstockError
from penstock.ledger.files import OsFiles
from penstock.model import NewMessage
from penstock.operations import GetStats
from penstock.queue.queue import open_queue
from tests.broker.conftest import OpenBroker
from tests.harness.disk import Disk
from tests.harness.faults import Fault, FaultyFiles
from tests.harness.journal import Mark, RecordedFiles
from tests.harness.virtual_loop import LoopClock, LoopThreads, run_virtually

ON_DISK = True

ANN = Caller("ip:ann")


def name(number: int) -> QueueName:
    return QueueName("shop", f"q{number}")


def store_of(broker: Broker) -> EmbeddedStore:
    assert isinstance(broker.store, EmbeddedStore)
    return broker.store


def open_queues(broker: Broker) -> int:
    return len(store_of(broker).open_queues)


async def settled() -> None:
    await asyncio.sleep(0.001)


async def test_no_more_than_so_many_queues_are_open(open_broker: OpenBroker) -> None:
    async with open_broker(max_open=5) as broker:
        for number in range(30):
            await broker.publish(ANN, name(number), [b"%d" % number])
            await settled()
            assert open_queues(broker) <= 5
        for number in range(30):
            (leased,) = await broker.lease(ANN, name(number))
            assert leased.payload == b"%d" % number
            await broker.settle(ANN, [Settlement("ack", leased.receipt)])
            await settled()
            assert open_queues(broker) <= 5


async def test_queues_with_published_options_make_room_for_others(open_broker: OpenBroker) -> None:
    async with open_broker(max_open=2) as broker:
        for number in range(6):
            message = NewMessage(payload=b"%d" % number, priority=number, key="k", ttl=500)
            await broker.publish(ANN, name(number), [message])
            await settled()
            assert open_queues(broker) <= 2


async def test_a_queue_is_used_although_all_others_must_stay_open(open_broker: OpenBroker) -> None:
    async with open_broker(max_open=2) as broker:
        for number in range(6):
            async with asyncio.timeout(5):
                delayed = NewMessage(payload=b"%d" % number, delay=1000)
                await broker.publish(ANN, name(number), [delayed])
        assert open_queues(broker) == 6


async def test_an_idle_queue_is_closed_and_opens_by_itself_when_used(
    open_broker: OpenBroker,
) -> None:
    async with open_broker(idle_close_s=100) as broker:
        await broker.publish(ANN, name(1), [b"x"])
        await asyncio.sleep(200)
        assert open_queues(broker) == 0
        (leased,) = await broker.lease(ANN, name(1))
        assert leased.payload == b"x"


async def test_a_queue_with_a_waiter_a_lease_or_a_delay_stays_open(
    open_broker: OpenBroker,
) -> None:
    async with open_broker(idle_close_s=10, queues={"lease_s": 500.0}) as broker:
        waiter = broker.lease(ANN, name(1), wait_s=1000)
        await broker.publish(ANN, name(2), [NewMessage(payload=b"later", delay=500)])
        await broker.publish(ANN, name(3), [b"work"])
        await broker.lease(ANN, name(3))
        await asyncio.sleep(100)
        assert open_queues(broker) == 3
        waiter.cancel()


async def test_the_counts_of_a_closed_queue_are_known_without_opening_it(
    open_broker: OpenBroker,
) -> None:
    async with open_broker(idle_close_s=100) as broker:
        await broker.publish(ANN, name(1), [b"x", b"y"])
        await asyncio.sleep(1000)
        stats = await broker.run(ANN, GetStats(), name(1))
        assert open_queues(broker) == 0
        assert (stats.ready, stats.published) == (2, 2)
        assert stats.oldest_ready_age_s == pytest.approx(1000, abs=1)
        assert b'penstock_ready{group="main",namespace="shop",queue="q1"} 2.0' in (
            await broker.survey.metrics_page()
        )
        assert open_queues(broker) == 0


async def test_calls_that_come_while_a_queue_is_closed_or_changed_are_answered(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        await broker.publish(ANN, name(1), [b"0"])
        changing = broker.change_queue(ANN, name(1), {"lease_s": 77.0})
        published = [broker.publish(ANN, name(1), [b"%d" % n]) for n in range(1, 20)]
        await asyncio.gather(changing, *published)
        leased = await broker.lease(ANN, name(1), n=100)
        assert sorted(one.payload for one in leased) == sorted(b"%d" % n for n in range(20))


async def test_a_waiter_outlives_a_change_of_settings(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        waiter = broker.lease(ANN, name(1), wait_s=1000)
        await settled()
        await broker.change_queue(ANN, name(1), {"lease_s": 77.0})
        await broker.publish(ANN, name(1), [b"x"])
        (leased,) = await waiter
        assert leased.ticket.deadline_ns - leased.message.published_ns >= 77e9


async def test_with_sync_interval_what_was_written_gets_to_the_disk_by_itself(
    open_broker: OpenBroker,
) -> None:
    async with open_broker(queues={"sync": "interval", "sync_interval_s": 5.0}) as broker:
        await broker.publish(ANN, name(1), [b"x"])
        queue = store_of(broker).open_queues[name(1)]
        log = queue.core.ledger.messages
        assert log.durable_next_seq == 1
        await asyncio.sleep(6)
        assert log.durable_next_seq == 2


async def test_a_queue_that_does_not_open_refuses_its_own_calls_only(
    open_broker: OpenBroker, tmp_path: Path
) -> None:
    async with open_broker() as broker:
        await broker.publish(ANN, name(1), [b"good"])
        await broker.publish(ANN, name(2), [b"bad"])
    messages = tmp_path / "data" / "shop" / "q2" / "messages"
    shutil.rmtree(messages)
    messages.write_text("not a directory")
    async with open_broker() as broker:
        assert broker.progress == (2, 2)
        with pytest.raises(LedgerError, match="messages"):
            await broker.lease(ANN, name(2))
        (leased,) = await broker.lease(ANN, name(1))
        assert leased.payload == b"good"


async def test_a_queue_whose_last_sync_fails_lets_go_of_its_files(
    open_broker: OpenBroker, tmp_path: Path
) -> None:
    files = FaultyFiles(OsFiles())
    async with open_broker(files=files, idle_close_s=100, queues={"sync": "never"}) as broker:
        await broker.publish(ANN, name(1), [b"x"])
        files.fault = Fault(1, forever=True, methods=frozenset({"fdatasync"}))
        await asyncio.sleep(200)
        assert open_queues(broker) == 0
        assert files.failures
        files.heal()
        directory = str(tmp_path / "data" / "shop" / "q1")
        assert [path for path in _open_paths() if path.startswith(directory)] == []
        (leased,) = await broker.lease(ANN, name(1))
        assert leased.payload == b"x"


async def test_a_queue_whose_sync_failed_is_logged_and_stays_in_trouble(
    open_broker: OpenBroker, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(OsFiles())
    options = {"files": files, "idle_close_s": 100, "max_open": 1}
    async with open_broker(**options, queues={"sync": "always"}) as broker:
        await broker.publish(ANN, name(1), [b"x"])
        files.fault = Fault(1, forever=True, methods=frozenset({"fdatasync"}))
        with pytest.raises(LedgerError):
            await broker.publish(ANN, name(1), [b"y"])
        [logged] = [one for one in caplog.records if one.levelno >= logging.ERROR]
        fields = vars(logged)["fields"]
        assert (fields["queue"], fields["errno"]) == ("shop/q1", errno.EIO)
        files.heal()
        await asyncio.sleep(1000)  # idle
        await broker.publish(ANN, name(2), [b"z"])  # and there is no room for it
        await settled()
        assert "shop/q1" in str(broker.trouble)
        assert b"penstock_writable 0.0" in await broker.survey.metrics_page()
        for change in (
            lambda: broker.publish(ANN, name(1), [b"y"]),
            lambda: broker.change_queue(ANN, name(1), {"max_messages": 5}),
            lambda: broker.namespaces.delete_empty(ANN, "shop"),
        ):
            with pytest.raises(PenstockError):
                await change()
        assert "shop/q1" in str(broker.trouble)
        await broker.delete_queue(ANN, name(1))
        assert broker.trouble is None
    async with open_broker(**options) as broker:
        assert broker.trouble is None


async def test_a_sync_that_fails_while_an_idle_queue_is_closed_is_reported(
    open_broker: OpenBroker,
) -> None:
    files = FaultyFiles(OsFiles())
    async with open_broker(files=files, idle_close_s=100, queues={"sync": "never"}) as broker:
        await broker.publish(ANN, name(1), [b"x"])
        files.fault = Fault(1, forever=True, methods=frozenset({"fdatasync"}))
        await asyncio.sleep(200)
        files.heal()
        (leased,) = await broker.lease(ANN, name(1))
        assert leased.payload == b"x"
        assert "shop/q1" in str(broker.trouble)


@pytest.mark.parametrize("sync", ["never", "always"])
async def test_a_queue_that_cannot_be_opened_again_lets_go_of_its_files(
    open_broker: OpenBroker, tmp_path: Path, sync: str
) -> None:
    files = FaultyFiles(OsFiles())
    async with open_broker(files=files, queues={"sync": sync}) as broker:
        await broker.publish(ANN, name(1), [b"x"])
        files.fault = Fault(1, forever=True, methods=frozenset({"fdatasync"}))
        with pytest.raises(PenstockError):
            await broker.change_queue(ANN, name(1), {"max_messages": 5})
        with pytest.raises(PenstockError):
            await broker.publish(ANN, name(1), [b"y"])
        assert files.failures
        directory = str(tmp_path / "data" / "shop" / "q1")
        assert [path for path in _open_paths() if path.startswith(directory)] == []
        files.heal()
        (leased,) = await broker.lease(ANN, name(1))
        assert leased.payload == b"x"


def _open_paths() -> list[str]:
    paths = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            paths.append(str(one.readlink()))
        except OSError:
            continue  # that of the listing itself
    return paths


async def test_a_copied_queue_is_refused_because_its_receipts_would_be_of_two(
    open_broker: OpenBroker, tmp_path: Path
) -> None:
    async with open_broker() as broker:
        await broker.publish(ANN, name(1), [b"x"])
    shutil.copytree(tmp_path / "data" / "shop" / "q1", tmp_path / "data" / "shop" / "q2")
    async with open_broker() as broker:
        states = []
        for number in (1, 2):
            try:
                await broker.lease(ANN, name(number))
                states.append("fine")
            except PenstockError as error:
                assert "identity" in str(error)
                states.append("refused")
        assert sorted(states) == ["fine", "refused"]


async def test_one_broker_a_directory_and_no_writer_beside_it(
    open_broker: OpenBroker, tmp_path: Path, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        await broker.publish(ANN, name(1), [b"x"])
        with pytest.raises(LedgerLocked):
            async with open_broker():
                raise AssertionError("two brokers on one directory")
        with pytest.raises(LedgerLocked):
            open_queue(str(tmp_path / "data" / "shop" / "q1"), {})
        assert len(await broker.lease(ANN, name(1))) == 1


async def test_a_crash_while_a_queue_is_deleted_leaves_no_half_of_it(
    open_broker: OpenBroker, tmp_path: Path
) -> None:
    async with open_broker() as broker:
        await broker.publish(ANN, name(1), [b"x"])
    # What a crash right after the rename leaves:
    trash = tmp_path / "data" / "_trash" / "abc"
    (tmp_path / "data" / "shop" / "q1").rename(trash)
    async with open_broker() as broker:
        assert broker.queues(ANN) == []
        assert not trash.exists()


def test_a_queue_whose_making_was_cut_off_is_whole_or_not_there() -> None:
    """At any step, by the death of the process. It must not go on with settings of its own."""
    files = RecordedFiles()

    async def make(clock: LoopClock) -> None:
        async with _broker_on(files, clock) as broker:
            await broker.create_queue(ANN, name(1), {"lease_s": 77.0})
            files.mark("answered")

    run_virtually(make, inline=True)
    steps = files.journal.steps
    answered = next(at for at, step in enumerate(steps) if isinstance(step, Mark))
    unmade = 0
    for cut in range(answered + 1):
        disk = files.journal.start.copy()
        for step in steps[:cut]:
            if not isinstance(step, Mark):
                disk.apply(step)

        async def look(clock: LoopClock, disk: Disk = disk) -> bool:
            async with _broker_on(RecordedFiles(disk), clock) as broker:
                if was_there := broker.has_queue(name(1)):
                    assert (await broker.queue_info(ANN, name(1))).settings.lease_s == 77.0
                else:
                    await broker.publish(ANN, name(1), [b"made on use"])
                assert (await broker.queue_info(ANN, name(1))).settings.storage.sync == "always"
                return was_there

        unmade += not run_virtually(look, inline=True)
    assert 0 < unmade < answered + 1


async def test_a_queue_that_lost_its_settings_answers_no_sooner_than_before(
    open_broker: OpenBroker, tmp_path: Path
) -> None:
    async with open_broker() as broker:
        await broker.publish(ANN, name(1), [b"x"])
    (tmp_path / "data/shop/q1/queue.json").unlink()
    async with open_broker() as broker:
        assert (await broker.queue_info(ANN, name(1))).settings.storage.sync == "always"


@asynccontextmanager
async def _broker_on(files: RecordedFiles, clock: LoopClock) -> AsyncIterator[Broker]:
    store = EmbeddedStore("/data", files=files, clock=clock, sync_threads=LoopThreads)
    broker = Broker(store, BrokerSettings(queues={"min_free_bytes": 0}), clock=clock)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
