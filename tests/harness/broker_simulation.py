"""A broker and its clients on a virtual clock: days in seconds, and the same seed, the same run.

A simulation is a row of lives. In each, producers and consumers do as they please, until the broker
is stopped, killed, or its machine loses power, at any step of what it does to its files. What was
answered before that step is marked in the journal of the files; what came after did not happen.
At the end everything is consumed, and what was promised is compared with what came.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.broker import Broker, BrokerSettings, Caller, EmbeddedStore, QueueName, Settlement
from penstock.errors import PenstockError
from penstock.model import LeasedMessage, NewMessage
from penstock.operations import Compact, GetStats, ListDead
from tests.harness.disk import Disk
from tests.harness.journal import Mark, RecordedFiles
from tests.harness.power_cuts import Shredded
from tests.harness.virtual_loop import LoopClock, LoopThreads, run_virtually

ANN = Caller("ip:ann")
QUEUES = [QueueName("shop", "orders"), QueueName("shop", "mail")]
MAX_ATTEMPTS = 4
_LAST_STEPS = 40  # a crash is at one of so many steps of the files
_SETTINGS: dict[str, Any] = {
    "max_attempts": MAX_ATTEMPTS,
    "lease_s": 8.0,
    "backoff_base_s": 0.5,
    "segment_bytes": 1 << 16,
    "snapshot_every": 40,
    "auto_compact": False,  # by a thread; the simulation asks for it itself
    "min_free_bytes": 0,
}


@dataclass
class Facts:
    """What clients know: the marks, in order."""

    asked: Counter[str] = field(default_factory=Counter)  # messages to publish, by queue
    answered: Counter[str] = field(default_factory=Counter)  # of those
    published: dict[str, bytes] = field(default_factory=dict)  # answered, by id
    mortal: set[str] = field(default_factory=set)  # of those, which may expire
    acks_asked: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)  # answered

    def note(self, mark: tuple[Any, ...]) -> None:
        kind, id_, *rest = mark
        if kind == "publish asked":
            self.asked[id_] += rest[0]
        elif kind == "published":
            self.published[id_] = rest[0]
            if rest[1]:
                self.mortal.add(id_)
            self.answered[rest[2]] += 1
        elif kind == "ack asked":
            self.acks_asked.add(id_)
        elif kind == "acked":
            assert id_ not in self.acked, f"{id_} was acked twice, by two holders"
            self.acked.add(id_)
        elif kind == "leased":
            assert id_ not in self.acked, f"{id_} was acked, and came again"


class Simulation:
    """One seed's story."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        self.files = RecordedFiles()
        self.marks: list[tuple[Any, ...]] = []  # of the lives before
        self.clock = LoopClock()

    def run(self, lives: int) -> Facts:
        for _ in range(lives):
            self._live()
            self._end()
        return self._consume_all()

    # -- a life ------------------------------------------------------------------------------------

    def _live(self) -> None:
        async def life(clock: LoopClock) -> None:
            broker = await self._start(clock)
            clients = [self._producer, self._producer, self._consumer, self._consumer]
            tasks = [
                asyncio.ensure_future(client(broker, Random(self.random.random())))
                for client in (*clients, self._quitter, self._keeper)
            ]
            await asyncio.sleep(self.random.expovariate(1 / 40))
            self._ends_well = self.random.random() < 0.3
            if self._ends_well:
                await broker.stop()
            for task in tasks:
                task.cancel()
            for failed in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(failed, AssertionError):
                    raise failed

        run_virtually(life, clock=self.clock, inline=True)

    async def _start(self, clock: LoopClock) -> Broker:
        store = EmbeddedStore(
            "/data",
            files=self.files,
            clock=clock,
            max_open=8,
            idle_close_s=20,
            sync_threads=LoopThreads,
        )
        settings = BrokerSettings(queues=_SETTINGS, max_wait_s=600)
        broker = Broker(store, settings, clock=clock)
        await broker.start()
        return broker

    def _end(self) -> None:
        """Keep what is left after a stop, a kill or a power cut, and what was answered by then."""
        self.files.mark(None)
        steps = self.files.journal.steps
        upto = len(steps)
        power = False
        if not self._ends_well:
            upto -= self.random.randrange(min(_LAST_STEPS, upto))
            power = self.random.random() < 0.5
        disk = self.files.journal.start.copy()
        for step in steps[:upto]:
            if isinstance(step, Mark):
                if step.value is not None:
                    self.marks.append(step.value)
            else:
                disk.apply(step)
        self.files = RecordedFiles(self._after(disk, power=power))
        self.clock = LoopClock(now_s=self.clock.now_ns() / 1e9 + self.random.choice([0, 1, 3600]))

    def _after(self, disk: Disk, *, power: bool) -> Disk:
        return disk.after(Shredded(Random(self.random.random()))) if power else disk

    # -- clients -----------------------------------------------------------------------------------

    async def _producer(self, broker: Broker, random: Random) -> None:
        async def publish() -> None:
            mortal = random.random() < 0.1
            new = NewMessage(
                payload=random.randbytes(random.choice([5, 50, 500])),
                priority=random.choice([None, None, 0, 9]),
                delay=random.choice([None, None, 5.0, 40.0]),
                ttl=20.0 if mortal else None,
                key=random.choice([None, None, "a", "b"]),
            )
            many = [new] * random.choice([1, 1, 3])
            queue = random.choice(QUEUES)
            self.files.mark(("publish asked", str(queue), len(many)))
            for one in await broker.publish(ANN, queue, many):
                self.files.mark(("published", one.id, bytes(new.payload), mortal, str(queue)))  # type: ignore[arg-type]

        await self._again_and_again(publish, random, every_s=2.0)

    async def _consumer(self, broker: Broker, random: Random) -> None:
        async def consume() -> None:
            wait_s = random.choice([0.0, 10.0])
            leased = await broker.lease(
                ANN, random.choice(QUEUES), n=random.choice([1, 3]), wait_s=wait_s
            )
            for one in leased:
                self.files.mark(("leased", one.id))
                assert one.attempt <= MAX_ATTEMPTS, f"attempt {one.attempt} of {one.id}"
            for one in leased:
                await asyncio.sleep(random.expovariate(1 / 0.5))
                await self._settle(broker, random, one)

        await self._again_and_again(consume, random, every_s=0.2)

    async def _settle(self, broker: Broker, random: Random, one: LeasedMessage) -> None:
        what = random.choice(["ack"] * 5 + ["nack", "release", "extend", "vanish"])
        receipt = one.receipt
        if what == "extend":
            await broker.settle(ANN, [Settlement("extend", receipt, lease_s=30.0)])
            await asyncio.sleep(20)
            what = "ack"
        if what == "ack":
            self.files.mark(("ack asked", one.id))
            (outcome,) = await broker.settle(ANN, [Settlement("ack", receipt)])
            if outcome.status == "done":
                self.files.mark(("acked", one.id))
        elif what == "nack":
            await broker.settle(ANN, [Settlement("nack", receipt, reason="no")])
        elif what == "release":
            await broker.settle(ANN, [Settlement("release", receipt)])

    async def _quitter(self, broker: Broker, random: Random) -> None:
        """Asks for messages and goes away, before or while it is answered."""

        async def quit_early() -> None:
            answer = broker.lease(ANN, random.choice(QUEUES), n=2, wait_s=30)
            await asyncio.sleep(random.choice([0, 0, 0.001, 3]))
            answer.cancel()
            with suppress(asyncio.CancelledError):
                broker.give_back(await answer)

        await self._again_and_again(quit_early, random, every_s=3.0)

    async def _keeper(self, broker: Broker, random: Random) -> None:
        async def keep() -> None:
            queue = random.choice(QUEUES)
            if random.random() < 0.5:
                await broker.run(ANN, Compact(), queue)
            else:
                await broker.run(ANN, GetStats(), queue)

        await self._again_and_again(keep, random, every_s=20.0)

    async def _again_and_again(
        self, do: Callable[[], Awaitable[None]], random: Random, *, every_s: float
    ) -> None:
        while True:
            await asyncio.sleep(random.expovariate(1 / every_s))
            with suppress(PenstockError):
                await do()

    # -- the end -----------------------------------------------------------------------------------

    def _consume_all(self) -> Facts:
        """Let time pass and consume, until nothing is left but dead letters; judge."""
        facts = Facts()
        for mark in self.marks:
            facts.note(mark)

        async def consume(clock: LoopClock) -> None:
            broker = await self._start(clock)
            seen: dict[str, bytes] = {}
            for queue in QUEUES:
                if not broker.has_queue(queue):
                    continue
                while leased := await broker.lease(ANN, queue, n=100, wait_s=120):
                    for one in leased:
                        facts.note(("leased", one.id))
                        seen[one.id] = one.payload
                    await broker.settle(ANN, [Settlement("ack", one.receipt) for one in leased])
                page = await broker.run(ANN, ListDead(limit=1000), queue)
                seen.update({letter.id: letter.payload for letter in page.letters})
                stats = await broker.run(ANN, GetStats(), queue)
                left = stats.ready + stats.scheduled + stats.leased + stats.parked
                ends = stats.acked + stats.dead + stats.expired + stats.cancelled
                assert left == 0, f"{queue}: {stats}"
                # A number that was given out and not answered may be lost with the power.
                unanswered = facts.asked[str(queue)] - facts.answered[str(queue)]
                assert 0 <= stats.published - ends <= unanswered, f"{queue}: {stats}"
            self._judge(facts, seen)
            await broker.stop()

        run_virtually(consume, clock=self.clock, inline=True)
        return facts

    @staticmethod
    def _judge(facts: Facts, seen: dict[str, bytes]) -> None:
        for id_, payload in facts.published.items():
            if id_ in seen:
                assert seen[id_] == payload, f"{id_} has another payload"
            else:
                ended = id_ in facts.acks_asked or id_ in facts.mortal
                assert ended, f"{id_} was published and answered, and is lost"
