"""A broker with webhooks, for one story."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.broker.access import INSIDE
from penstock.broker.broker import Broker
from penstock.broker.embedded import EmbeddedStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.webhooks import Webhooks
from penstock.broker.webhooks.sending import Answer, Sender
from penstock.clock import Clock
from penstock.model import NewMessage, Stats
from penstock.names import QueueName
from penstock.operations import GetStats
from tests.broker.webhooks.scripted import Scripted
from tests.harness.virtual_loop import LoopClock, LoopThreads, run_virtually

ORDERS = QueueName("default", "orders")


class Life:
    """What runs from a start to a stop."""

    def __init__(self, broker: Broker, webhooks: Webhooks) -> None:
        self.broker = broker
        self.webhooks = webhooks

    async def publish(self, *payloads: Any) -> list[str]:
        new = [one if isinstance(one, NewMessage) else NewMessage(payload=one) for one in payloads]
        return [one.id for one in await self.broker.publish(INSIDE, ORDERS, new)]

    async def stats(self) -> Stats:
        return await self.broker.run(INSIDE, GetStats(), ORDERS)

    async def until(self, check: Callable[[Stats], bool]) -> Stats:
        """The counts, as soon as they are so. A loop turn at a time: no time is guessed."""
        async with asyncio.timeout(30):
            while not check(stats := await self.stats()):
                await asyncio.sleep(0)
        return stats


@asynccontextmanager
async def life(
    path: Path, *, sender: Sender | None = None, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Life]:
    path.mkdir(parents=True, exist_ok=True)
    settings.setdefault("webhook_allow_private", True)
    store = EmbeddedStore(str(path / "data"), clock=clock, sync_threads=LoopThreads)
    broker = Broker(store, BrokerSettings(**settings), clock=clock)
    await broker.start()
    webhooks = Webhooks(broker, sender=sender)
    await webhooks.start()
    try:
        yield Life(broker, webhooks)
    finally:
        await webhooks.stop(grace_s=0)
        await broker.stop()


def play(path: Path, story: Callable[[Life], Awaitable[None]], **settings: Any) -> None:
    """In real time, against real sockets."""

    async def main() -> None:
        async with life(path, **settings) as one, asyncio.timeout(60):
            await story(one)

    asyncio.run(main())


def play_virtually(
    path: Path,
    story: Callable[[Life, Scripted, LoopClock], Awaitable[None]],
    *answers: Answer,
    **settings: Any,
) -> None:
    """On a virtual clock, against an endpoint that answers as scripted."""

    async def main(clock: LoopClock) -> None:
        sender = Scripted(clock, answers)
        async with life(path, sender=sender, clock=clock, **settings) as one:
            await story(one, sender, clock)

    run_virtually(main)
