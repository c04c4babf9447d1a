"""Dead-letter queues, as SQS's users see them.

In Penstock a dead letter stays in its own queue, where dead is a state. In SQS it is moved to
another queue. The dead-letter queue here is a queue like any other, and shows in addition the dead
letters of its sources: the queues whose RedrivePolicy names it. To receive from it is to lease dead
letters of the sources, and to delete one is to settle it where it is. Nothing is copied, so a dead
letter is never lost or doubled on its way.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.broker import QueueName
from penstock.broker.access import INSIDE
from penstock.errors import NoSuchQueue
from penstock.model import LeasedMessage
from penstock.operations import Discard, GetStats, ListConsumers
from penstock.server.sqs.request import Request

HOLDER = "SQS dead-letter queue"  # of leased dead letters, for their count


def lease(
    request: Request,
    queue: QueueName,
    sources: Sequence[QueueName],
    n: int,
    lease_s: float | None,
    wait_s: float,
) -> "Future[list[LeasedMessage]]":
    """Lease messages of a dead-letter queue: those sent to it, and dead letters of its sources.

    Cancel the future if the answer is not needed: its messages are released.
    """
    return asyncio.ensure_future(_lease(request, queue, sources, n, lease_s, wait_s))


async def _lease(
    request: Request,
    queue: QueueName,
    sources: Sequence[QueueName],
    n: int,
    lease_s: float | None,
    wait_s: float,
) -> list[LeasedMessage]:
    broker, caller = request.broker, request.caller
    lease_dead = partial(broker.lease_dead, caller, lease_s=lease_s, holder=HOLDER)
    leased: list[LeasedMessage] = []
    try:
        leased += await taken(broker.lease(caller, queue, n=n, lease_s=lease_s), broker.give_back)
        for source in sources:
            if len(leased) < n:
                try:
                    left = n - len(leased)
                    leased += await taken(lease_dead(source, n=left), broker.give_back)
                except NoSuchQueue:
                    pass  # it was deleted since
    except BaseException:
        broker.give_back(leased)
        raise
    if leased or not wait_s:
        return leased
    waits: list[Future[list[LeasedMessage]]] = []
    try:
        waits.append(broker.lease(caller, queue, n=n, lease_s=lease_s, wait_s=wait_s))
        for source in sources:
            waits.append(lease_dead(source, n=n, wait_s=wait_s))  # noqa: PERF401
    except BaseException:  # too many calls wait: the first ones must not take a message
        for one in waits:
            one.cancel()
        raise
    return await first_of(waits, n, broker.give_back)


GiveBack = Callable[[list[LeasedMessage]], None]


async def taken(leasing: "Future[list[LeasedMessage]]", give_back: GiveBack) -> list[LeasedMessage]:
    """Return what is leased. If this is cancelled as it comes, give it back."""
    try:
        return await leasing
    except asyncio.CancelledError:
        give_back(_got(leasing))
        raise


async def first_of(
    waits: "Sequence[Future[list[LeasedMessage]]]", n: int, give_back: GiveBack
) -> list[LeasedMessage]:
    """Return what comes first, at most `n`. What comes at the same moment is returned as well, or
    given back."""
    try:
        while not any(map(_got, waits)):
            pending = [one for one in waits if not one.done()]
            if not pending:
                break
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                error = None if one.cancelled() else one.exception()
                if error is not None and not isinstance(error, NoSuchQueue):
                    raise error
        leased = [message for one in waits for message in _got(one)]
    except BaseException:
        give_back([message for one in waits for message in _got(one)])
        raise
    finally:
        for one in waits:
            one.cancel()  # no effect on those that are done
    give_back(leased[n:])
    return leased[:n]


def _got(leasing: "Future[list[LeasedMessage]]") -> list[LeasedMessage]:
    """Return what a lease has got; nothing if it is under way, was cancelled, or failed."""
    if not leasing.done() or leasing.cancelled() or leasing.exception() is not None:
        return []
    return leasing.result()


class Counts(NamedTuple):
    """Messages that a queue shows: those that can be received, are received, or are delayed."""

    visible: int
    hidden: int
    delayed: int


async def counts(request: Request, queue: QueueName) -> Counts:
    """Return the counts of a queue, where a dead letter counts in the dead-letter queue."""
    stats = await request.broker.run(request.caller, GetStats(), queue)
    visible, hidden = stats.ready + stats.parked + stats.blocked, stats.leased
    if hidden and request.record(queue).dead_queue:
        hidden -= await _leased_dead(request, queue)
    for source in request.records.sources(queue):
        try:
            visible += (await request.broker.run(INSIDE, GetStats(), source)).dead
            hidden += await _leased_dead(request, source)
        except NoSuchQueue:
            pass
    return Counts(visible, max(hidden, 0), stats.scheduled)


async def _leased_dead(request: Request, source: QueueName) -> int:
    """Return how many dead letters of a queue were received and not deleted."""
    consumers = await request.broker.run(INSIDE, ListConsumers(), source)
    return sum([one.leases for one in consumers.holders if one.holder == HOLDER])


async def discard(request: Request, sources: Sequence[QueueName]) -> None:
    """Remove the dead letters of the sources, for PurgeQueue."""
    for source in sources:
        try:
            await request.broker.run(request.caller, Discard(), source)
        except NoSuchQueue:
            pass
