"""A lease whose client is gone, or whose deadline passed, gives its messages back."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import grpc
import pytest

from penstock.protobuf.descriptors import METHODS
from penstock.server.grpc.leasing import ends_before, lease
from tests.server.grpc.calling import Caller, address_of
from tests.server.grpc.fake_context import Aborted, FakeContext, run_with
from tests.server.running import RunningServer


def test_a_cancelled_wait_takes_no_message(
    server: RunningServer, grpc_client: Caller, queue: str
) -> None:
    waiting = server.server.broker.waiting
    call = grpc_client.future("Lease", queue=queue, wait_s=20)
    server.until(lambda: len(waiting) == 1)
    call.cancel()
    server.until(lambda: len(waiting) == 0)
    grpc_client.publish(queue, b"x")
    (leased,) = grpc_client.lease(queue)
    assert leased.attempt == 1


@pytest.mark.parametrize(
    ("wait_s", "left_s", "waited_s"),
    [
        (20.0, None, 20.0),
        (20.0, 60.0, 20.0),
        (20.0, 10.0, 9.5),
        (20.0, 1.0, 0.9),
        (20.0, 0.0, 0.001),
        (0.0, 1.0, 0.0),
    ],
)
def test_a_wait_ends_before_the_deadline_of_the_call(
    wait_s: float, left_s: float | None, waited_s: float
) -> None:
    assert ends_before(wait_s, left_s) == pytest.approx(waited_s)


def test_a_closed_connection_ends_its_waits(server: RunningServer, queue: str) -> None:
    waiting = server.server.broker.waiting
    with Caller(address_of(server)) as caller:
        call = caller.future("Lease", timeout_s=None, queue=queue, wait_s=20)
        server.until(lambda: len(waiting) == 1)
    assert call.code() is grpc.StatusCode.CANCELLED
    server.until(lambda: len(waiting) == 0)


def test_messages_that_cannot_be_sent_are_released(
    server: RunningServer, grpc_client: Caller, queue: str
) -> None:
    async def broken() -> None:
        raise grpc.aio.UsageError("the client is gone")

    grpc_client.publish(queue, b"a", b"b")
    request = METHODS["Lease"].request(queue=queue, max=2).SerializeToString()
    with pytest.raises(grpc.aio.UsageError):
        server.call(run_with(server, lease, FakeContext([request], on_write=broken)))
    leased = grpc_client.lease(queue, max=2, wait_s=20)
    assert [one.attempt for one in leased] == [1, 1]


def test_messages_that_arrive_at_the_moment_of_a_cancellation_are_released(
    server: RunningServer, grpc_client: Caller, queue: str
) -> None:
    """The task is cancelled while its future has a result already."""
    grpc_client.publish(queue, b"x")
    request = METHODS["Lease"].request(queue=queue).SerializeToString()
    broker = server.server.broker

    async def race() -> None:
        original, task = broker.lease, asyncio.current_task()
        assert task is not None

        def lease_then_cancel(*arguments: Any, **options: Any) -> Any:
            leasing = asyncio.get_running_loop().create_future()

            def done(leased: Any) -> None:
                leasing.set_result(leased.result())
                task.cancel()

            original(*arguments, **options).add_done_callback(done)
            return leasing

        broker.lease = lease_then_cancel  # type: ignore[method-assign]
        try:
            with pytest.raises(asyncio.CancelledError):
                await run_with(server, lease, FakeContext([request]))
            task.uncancel()
        finally:
            del broker.lease

    server.call(race())
    (leased,) = grpc_client.lease(queue, wait_s=20)
    assert leased.attempt == 1


def test_a_deadline_that_passed_while_the_answer_was_sent_gives_it_back(
    server: RunningServer, grpc_client: Caller, queue: str
) -> None:
    async def send_slowly() -> None:
        context.left_s = 0.0

    grpc_client.publish(queue, b"x")
    request = METHODS["Lease"].request(queue=queue).SerializeToString()
    context = FakeContext([request], on_write=send_slowly, left_s=5.0)
    with pytest.raises(Aborted, match="DEADLINE_EXCEEDED"):
        server.call(run_with(server, lease, context))
    (leased,) = grpc_client.lease(queue, wait_s=20)
    assert leased.attempt == 1


def test_a_cancellation_that_arrived_while_the_answer_was_sent_gives_it_back(
    server: RunningServer, grpc_client: Caller, queue: str
) -> None:
    async def race() -> None:
        task = asyncio.current_task()
        assert task is not None

        async def cancel_soon() -> None:
            asyncio.get_running_loop().call_soon(task.cancel)

        with pytest.raises(asyncio.CancelledError):
            await run_with(server, lease, FakeContext([request], on_write=cancel_soon))
        task.uncancel()

    grpc_client.publish(queue, b"x")
    request = METHODS["Lease"].request(queue=queue).SerializeToString()
    server.call(race())
    (leased,) = grpc_client.lease(queue, wait_s=20)
    assert leased.attempt == 1


def test_a_client_that_does_not_take_the_answer_loses_it(
    server: RunningServer, grpc_client: Caller, queue: str
) -> None:
    never = threading.Event()

    async def blocked() -> None:
        never.set()
        await asyncio.Event().wait()

    grpc_client.publish(queue, b"x")
    request = METHODS["Lease"].request(queue=queue).SerializeToString()
    service = server.server.service
    settings = service.settings
    held = service.held.bytes

    async def lease_slowly() -> None:
        service.settings = replace(settings, idle_timeout_s=0.01)
        try:
            await run_with(server, lease, FakeContext([request], on_write=blocked))
        finally:
            service.settings = settings

    with pytest.raises(Exception, match="did not take the answer"):
        server.call(lease_slowly())
    assert never.is_set()
    (leased,) = grpc_client.lease(queue, wait_s=20)
    assert leased.attempt == 1
    assert service.held.bytes <= held + len(request)
