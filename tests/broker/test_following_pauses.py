"""How long a broker rests between two looks at what messages of other queues wait for."""

import asyncio
from typing import Any, cast

from penstock.broker.background import Background
from penstock.broker.following import MAX_REST_S, Following
from penstock.broker.store import Store
from penstock.codec import make_id
from penstock.errors import LedgerError
from penstock.names import QueueName
from penstock.operations.following import Ending, GetEndings, ListAwaited, Resolve
from penstock.queue.events import Outcome

EARLIER, LATER = QueueName("shop", "first"), QueueName("shop", "second")
BROKEN = QueueName("shop", "broken")
AWAITED = make_id(1, 7, 1)


class SlowStore:
    """Two queues: one message of the second comes after one of the first."""

    def __init__(self, *, listing_s: float = 0.0, disk_s: float = 0.0) -> None:
        self._listing_s, self._disk_s = listing_s, disk_s
        self.following = Following(cast(Store, self), Background())
        self.outcome = Outcome.WAITING
        self.resolved = asyncio.Event()
        self.busy_until_s = 0.0
        self.looks_s: list[float] = []  # when each began

    async def load_document(self, name: str) -> bytes | None:
        return b'[["shop", "second"], ["shop", "broken"]]'

    async def find(self, identity: int) -> QueueName | None:
        return EARLIER

    def watch(self, queue: QueueName) -> None: ...

    def unwatch(self, queue: QueueName) -> None: ...

    async def run(self, queue: QueueName, operation: object) -> Any:
        loop = asyncio.get_running_loop()
        match operation:
            case ListAwaited() if queue == BROKEN:
                raise LedgerError("it cannot be read")
            case ListAwaited():
                self.looks_s.append(loop.time())
                await asyncio.sleep(self._listing_s)
                return [Ending(AWAITED, Outcome.WAITING)]
            case GetEndings():
                await asyncio.sleep(self._disk_s)
                if loop.time() < self.busy_until_s:  # other messages of that queue
                    self.following.on_ready(EARLIER)
                return [Ending(AWAITED, self.outcome)]
            case Resolve():
                self.resolved.set()
                return True
        raise AssertionError(operation)

    async def rest_s(self) -> float:
        """Let the message end. Return how long it takes until the other queue knows."""
        loop = asyncio.get_running_loop()
        began_s, self.outcome = loop.time(), Outcome.DONE
        self.following.on_ready(EARLIER)
        await self.resolved.wait()
        return loop.time() - began_s


async def test_a_burst_is_followed_by_no_rest_of_its_length() -> None:
    store = SlowStore(disk_s=0.01)
    store.busy_until_s = asyncio.get_running_loop().time() + 30
    await store.following.start()
    await asyncio.sleep(30.5)
    assert await store.rest_s() < 0.1
    await store.following.close()


async def test_waiting_for_the_disk_is_not_work_that_asks_for_a_rest() -> None:
    store = SlowStore(disk_s=5.0)
    await store.following.start()
    await asyncio.sleep(5.1)
    assert await store.rest_s() <= 5.0
    await store.following.close()


async def test_however_long_a_look_takes_the_rest_is_a_fraction_of_a_second() -> None:
    store = SlowStore(listing_s=2.0)
    store.busy_until_s = asyncio.get_running_loop().time() + 60
    await store.following.start()
    await asyncio.sleep(60)
    gaps = [b - a for a, b in zip(store.looks_s, store.looks_s[1:], strict=False)]
    assert len(gaps) > 20
    assert {round(gap, 3) for gap in gaps} == {2.0 + MAX_REST_S}
    await store.following.close()


async def test_a_queue_that_cannot_be_asked_does_not_hold_up_others() -> None:
    store = SlowStore()
    await store.following.start()
    await asyncio.sleep(0.5)
    assert await store.rest_s() <= MAX_REST_S
    await store.following.close()
