"""The bytes of a namespace are a running count, which is what adding up would give."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker import Broker, BrokerSettings, EmbeddedStore, QueueName, Settlement
from penstock.broker.access import INSIDE
from penstock.broker.embedded.open_queue import OpenQueue
from penstock.broker.postgres import PostgresStore
from penstock.errors import PenstockError, QuotaExceeded
from penstock.model import NewMessage
from penstock.operations import Compact, GetStats, Purge
from tests.broker.conftest import OpenBroker, in_this_process
from tests.harness.virtual_loop import LoopClock, LoopThreads, run_virtually

NAMES = ("a", "b", "c")
QUEUES = {"auto_compact": False, "segment_bytes": 4096, "min_free_bytes": 0, "sync": "never"}
CLOSING_BYTES = 300  # what is written by closing, which the counts of a closed queue leave out
Step = Callable[[Broker, QueueName], Awaitable[object]]


async def _publish(broker: Broker, queue: QueueName) -> None:
    await broker.publish(INSIDE, queue, [bytes(500)] * 3)


async def _publish_heavy(broker: Broker, queue: QueueName) -> None:
    new = [NewMessage(payload=b"x", priority=n % 9) for n in range(600)]
    await broker.publish(INSIDE, queue, new)


async def _consume(broker: Broker, queue: QueueName) -> None:
    leased = await broker.lease(INSIDE, queue, n=1000)
    if leased:
        await broker.settle(INSIDE, [Settlement("ack", one.receipt) for one in leased])


async def _compact(broker: Broker, queue: QueueName) -> None:
    await broker.run(INSIDE, Compact(), queue)


async def _purge(broker: Broker, queue: QueueName) -> None:
    await broker.run(INSIDE, Purge(), queue)


async def _change(broker: Broker, queue: QueueName) -> None:
    await broker.change_queue(INSIDE, queue, {"lease_s": 20.0})  # closes it and opens it again


async def _delete(broker: Broker, queue: QueueName) -> None:
    await broker.delete_queue(INSIDE, queue)


STEPS: tuple[Step, ...] = (
    _publish,
    _publish,
    _publish_heavy,
    _consume,
    _compact,
    _purge,
    _change,
    _delete,
)
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(NAMES)), max_size=12)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_the_running_count_is_what_adding_up_gives(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[Step, str]]
) -> None:
    async def main(clock: LoopClock) -> None:
        # Few may be open at a time, so that some are closed and opened again.
        store = EmbeddedStore(
            str(tmp_path_factory.mktemp("sizes") / "data"),
            clock=clock,
            sync_threads=LoopThreads,
            max_open=2,
        )
        broker = Broker(store, BrokerSettings(queues=QUEUES), clock=clock)
        await broker.start()
        try:
            await broker.namespaces.create(INSIDE, "n", max_bytes=1 << 40)
            for step, name in story:
                try:
                    await step(broker, QueueName("n", name))
                except PenstockError:
                    pass  # there is no such queue
                await asyncio.sleep(1)  # those that are too many are being closed
                quotas = store.quotas
                assert quotas.bytes_of("n") == quotas.bytes_of("n", recount=True)
                for queue in broker.queues(INSIDE, "n"):
                    await broker.queue_info(INSIDE, queue)  # opens it
                counted = quotas.bytes_of("n")
                counts = [
                    await broker.run(INSIDE, GetStats(), one) for one in broker.queues(INSIDE, "n")
                ]
                held = sum(one.storage.log_bytes for one in counts)
                assert abs(counted - held) <= len(counts) * CLOSING_BYTES
        finally:
            await broker.stop()

    run_virtually(main)


async def test_a_publish_does_not_look_at_the_other_queues(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    real = OpenQueue.bytes

    def watched(self: OpenQueue) -> int:
        looked_at.append(self.name.name)
        return real(self)

    async with open_broker() as broker:
        await broker.namespaces.create(INSIDE, "n", max_bytes=1 << 40)
        for number in range(20):
            await _publish(broker, QueueName("n", f"q{number}"))
        monkeypatch.setattr(OpenQueue, "bytes", watched)
        await _publish(broker, QueueName("n", "q7"))
        assert set(looked_at) == {"q7"}


@in_this_process
async def test_room_that_was_made_in_the_background_is_found_within_a_second(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker() as broker:
        queue, other = QueueName("n", "a"), QueueName("n", "b")
        await broker.namespaces.create(INSIDE, "n", max_bytes=20_000)
        await _publish(broker, other)
        await broker.publish(INSIDE, queue, [bytes(30_000)])
        with pytest.raises(QuotaExceeded):
            await _publish(broker, other)
        recounts: list[str] = []
        assert isinstance(broker.store, EmbeddedStore | PostgresStore)
        quotas = broker.store.quotas
        real = quotas.bytes_of

        def freed(namespace: str, *, recount: bool = False) -> int:
            if recount:
                recounts.append(namespace)
                return 100  # a compaction that no call has seen yet
            return real(namespace)

        monkeypatch.setattr(quotas, "bytes_of", freed)
        for _ in range(50):
            with pytest.raises(QuotaExceeded):
                await _publish(broker, other)
        assert recounts == []  # not again in the same second
        await asyncio.sleep(1.1)
        await _publish(broker, other)
        assert recounts == ["n"]


@pytest.mark.parametrize("max_bytes", [20_000, 5_000_000])
async def test_a_full_namespace_has_room_again_after_consuming_and_compacting(
    open_broker: OpenBroker, max_bytes: int
) -> None:
    queue = QueueName("shop", "a")
    async with open_broker() as broker:
        await broker.namespaces.create(INSIDE, "shop", max_bytes=max_bytes)
        for _ in range(3):
            await broker.publish(INSIDE, queue, [b"there is room"])
            with pytest.raises(QuotaExceeded):
                while True:
                    await broker.publish(INSIDE, queue, [bytes(max_bytes // 50)] * 5)
            while leased := await broker.lease(INSIDE, queue, n=5):
                await broker.settle(INSIDE, [Settlement("ack", one.receipt) for one in leased])
            await broker.run(INSIDE, Compact(), queue)
            await asyncio.sleep(2)  # a recount is made once a second
