"""A call that is cancelled at any moment was carried out, or was not begun."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from penstock.broker import (
    Broker,
    BrokerSettings,
    Caller,
    EmbeddedStore,
    QueueName,
    Settlement,
)
from penstock.broker.webhooks import Webhooks
from penstock.operations import Compact, CreateGroup, GetMessage, GetStats, ListGroups
from tests.harness.journal import RecordedFiles
from tests.harness.virtual_loop import LoopClock, LoopThreads, VirtualLoop

_T = TypeVar("_T")
ANN = Caller("ip:ann")
OLD = QueueName("shop", "old")
NEW = QueueName("shop", "new")
_STEPS = 1  # of the loop, before a thread begins and before it is known to have ended

_MOST = 40  # steps after which every call has ended, but for one that waits for messages


class _LateLoop(VirtualLoop):
    """Work for a thread is done some steps later, in the loop, and told of some steps later.

    Like a thread it is carried out although the future is cancelled meanwhile.
    """

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., _T], *args: Any
    ) -> "asyncio.Future[_T]":
        done: asyncio.Future[_T] = self.create_future()

        def later(steps: int, then: Callable[[], None]) -> None:
            self.call_soon(then if not steps else lambda: later(steps - 1, then))

        def tell(result: Any, error: Exception | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def work() -> None:
            try:
                outcome = func(*args), None
            except Exception as error:
                later(_STEPS, partial(tell, None, error))
            else:
                later(_STEPS, partial(tell, *outcome))

        later(_STEPS, work)
        return done


@asynccontextmanager
async def _broker_on(files: RecordedFiles, clock: LoopClock) -> AsyncIterator[Broker]:
    broker = _new_broker(files, clock)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def _new_broker(files: RecordedFiles, clock: LoopClock) -> Broker:
    store = EmbeddedStore(
        "/data", files=files, clock=clock, sync_threads=LoopThreads, idle_close_s=100
    )
    return Broker(store, BrokerSettings(queues={"min_free_bytes": 0}), clock=clock)


def _run(main: Callable[[LoopClock], Any]) -> Any:
    loop = _LateLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop.clock))


async def _cancel_after(steps: int, call: Awaitable[Any]) -> bool:
    """Return whether the call was cancelled, before it had ended by itself."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    was_cancelled = task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return was_cancelled


async def _check_usable(broker: Broker, queue: QueueName) -> None:
    """A message goes through it, and looking at it agrees with using it."""
    await broker.publish(ANN, queue, [b"after"])
    leased = await broker.lease(ANN, queue, n=100)
    assert b"after" in [one.payload for one in leased]
    await broker.settle(ANN, [Settlement("ack", one.receipt) for one in leased])
    assert (await broker.queue_info(ANN, queue)).queue == queue
    assert (await broker.run(ANN, GetStats(), queue)).groups["main"].ready == 0


_CALLS: dict[str, Callable[[Broker, str], Awaitable[Any]]] = {
    "a waiting lease makes its queue": lambda b, _: b.lease(ANN, NEW, wait_s=20),
    "a publish makes its queue": lambda b, _: b.publish(ANN, NEW, [b"x"]),
    "create_queue": lambda b, _: b.create_queue(ANN, NEW, {"lease_s": 77.0}),
    "create_namespace": lambda b, _: b.namespaces.create(ANN, "other", max_queues=5),
    "change_namespace": lambda b, _: b.namespaces.change(ANN, "shop", {"max_queues": 7}),
    "change_queue": lambda b, _: b.change_queue(ANN, OLD, {"lease_s": 77.0}),
    "delete_queue": lambda b, _: b.delete_queue(ANN, OLD),
    "delete_namespace": lambda b, _: b.namespaces.delete(ANN, "shop", force=True),
    "delete_empty_namespace": lambda b, _: b.namespaces.delete_empty(ANN, "shop"),
    "get": lambda b, id_: b.run(ANN, GetMessage(id_)),
    "compact": lambda b, _: b.run(ANN, Compact(), OLD),
    "create_group": lambda b, _: b.run(ANN, CreateGroup("late", to="end"), OLD),
    "stats": lambda b, _: b.run(ANN, GetStats(), OLD),
}


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("name", _CALLS)
def test_a_call_cancelled_at_any_step_leaves_every_queue_usable(name: str, is_closed: bool) -> None:
    call = _CALLS[name]

    async def cancelled_after(steps: int, clock: LoopClock) -> bool:
        files = RecordedFiles()
        async with _broker_on(files, clock) as broker:
            (published,) = await broker.publish(ANN, OLD, [b"old"])
            leased = await broker.lease(ANN, OLD)
            await broker.settle(ANN, [Settlement("ack", one.receipt) for one in leased])
            if is_closed:
                await asyncio.sleep(200)
            was_cancelled = await _cancel_after(steps, call(broker, published.id))
            if name.startswith("delete"):
                await broker.background.finished()  # before that, calls are told of no such queue
            else:
                await broker.change_queue(ANN, OLD, {"max_messages": 1000})  # it is closed by this
            for queue in (OLD, NEW):
                await _check_usable(broker, queue)
            queues = broker.queues(ANN)
            namespaces = broker.namespaces.list(ANN)
            infos = [await broker.queue_info(ANN, queue) for queue in queues]
        async with _broker_on(files, clock) as broker:
            assert broker.queues(ANN) == queues
            assert broker.namespaces.list(ANN) == namespaces
            assert [await broker.queue_info(ANN, queue) for queue in queues] == infos
        return was_cancelled

    for steps in range(_MOST):
        if not _run(lambda clock: cancelled_after(steps, clock)):  # noqa: B023
            break


def test_a_start_or_stop_cancelled_at_any_step_leaves_the_directory_free() -> None:
    async def cancelled_after(steps: int, what: str, clock: LoopClock) -> bool:
        files = RecordedFiles()
        async with _broker_on(files, clock) as broker:
            await broker.publish(ANN, OLD, [b"old"])
        broker = _new_broker(files, clock)
        if what == "start":
            was_cancelled = await _cancel_after(steps, broker.start())
            if not was_cancelled:
                await broker.stop()
        else:
            await broker.start()
            was_cancelled = await _cancel_after(steps, broker.stop())
            await broker.stop()
        async with _broker_on(files, clock) as broker:
            await _check_usable(broker, OLD)
        return was_cancelled

    for what in ("start", "stop"):
        for steps in range(_MOST):
            if not _run(lambda clock: cancelled_after(steps, what, clock)):  # noqa: B023
                break


def test_webhooks_changed_by_calls_that_are_cancelled_are_as_they_stand_on_disk() -> None:
    async def cancelled_after(steps: int, clock: LoopClock) -> bool:
        files = RecordedFiles()
        async with _broker_on(files, clock) as broker:
            broker.change_settings(replace(broker.settings, webhook_allow_private=True))
            webhooks = Webhooks(broker)
            await webhooks.start()
            was_cancelled = await _cancel_after(
                steps, webhooks.create(ANN, OLD, "http://127.0.0.1:9/", retry_s=[1])
            )
            await webhooks.create(ANN, OLD, "http://127.0.0.1:9/second", retry_s=[1])
            seen = webhooks.list(ANN, OLD)
            await webhooks.stop()
        async with _broker_on(files, clock) as broker:
            webhooks = Webhooks(broker)
            await webhooks.start()
            assert webhooks.list(ANN, OLD) == seen
            assert set(await broker.run(ANN, ListGroups(), OLD)) == {
                "main",
                *(one.group for one in seen),
            }
            await webhooks.stop()
        return was_cancelled

    for steps in range(_MOST):
        if not _run(lambda clock: cancelled_after(steps, clock)):  # noqa: B023
            break
