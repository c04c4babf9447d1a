"""A broker with webhooks, for one story."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.broker.access import INSIDE
from penstock.broker.broker import Broker
from penstock.broker.embedded import EmbeddedStore
from penstock.broker.names import QueueName
from penstock.broker.settings import BrokerSettings
from penstock.broker.webhooks import Webhooks
from penstock.broker.webhooks.sending import Sender
from penstock.model import NewMessage, Stats

ORDERS = QueueName("default", "orders")


class Life:
    """From a start to a stop. Stopped abruptly, it leaves what a killed process leaves."""

    def __init__(self, broker: Broker, webhooks: Webhooks) -> None:
        self.broker = broker
        self.webhooks = webhooks

    async def publish(self, *payloads: Any) -> list[str]:
        new = [one if isinstance(one, NewMessage) else NewMessage(payload=one) for one in payloads]
        return [one.id for one in await self.broker.publish(INSIDE, ORDERS, new)]

    async def stats(self) -> Stats:
        return await self.broker.stats(INSIDE, ORDERS)

    async def until(self, check: Callable[[Stats], bool]) -> Stats:
        """The counts, as soon as they are so. A loop turn at a time: no time is guessed."""
        async with asyncio.timeout(30):
            while not check(stats := await self.stats()):
                await asyncio.sleep(0)
        return stats


@asynccontextmanager
async def life(path: Path, *, sender: Sender | None = None, **settings: Any) -> AsyncIterator[Life]:
    settings.setdefault("webhook_allow_private", True)
    broker = Broker(EmbeddedStore(str(path / "data")), BrokerSettings(**settings))
    await broker.start()
    webhooks = Webhooks(broker, sender=sender)
    await webhooks.start()
    try:
        yield Life(broker, webhooks)
    finally:
        await webhooks.stop(grace_s=0)
        await broker.stop()


def play(path: Path, story: Callable[[Life], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with life(path, **settings) as one, asyncio.timeout(60):
            await story(one)

    asyncio.run(main())
