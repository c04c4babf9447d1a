"""`penstock demo`: lively traffic at a broker, so that every page of the dashboard shows something.

A small shop: customers order, workers pack, charge cards and send mail, and some of them fail.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock import aio
from penstock.client import AsyncRemoteBroker, ClientOptions, connect_broker_async
from penstock.errors import AddressRefused, InvalidInput, NotAllowed
from penstock.model import NewMessage
from penstock.operations.scheduling import Schedule
from penstock.queue.facade import AnyAsyncQueue
from penstock.tasks import Tasks, TasksWorker, TasksWorkerOptions, Workflow

QUEUES: dict[str, dict[str, Any]] = {  # and their settings
    "orders": {"max_messages": 5000, "lease_s": 10.0},
    "payments": {"lease_s": 5.0, "max_attempts": 3},
    "emails": {},
    "thumbnails": {},
    "search-index": {"max_messages": 20_000},
    "invoices": {},
    "reports": {},
    "newsletter": {},
}
REASONS = (
    "TimeoutError: the card gateway did not answer in 30 s",
    "ValueError: the amount is negative",
    "ConnectionError: 10.0.0.7:443 refused the connection",
    "CardDeclined: insufficient funds",
)
CUSTOMERS = 12  # each is a key: orders of one customer are packed one after the other
FIRST_BACKLOG = 300
MOST_PUBLISHED = 1_000_000  # in one run
_STOP_S = 2.0


@dataclass
class Counts:
    """What the traffic amounted to."""

    published: int = 0
    acked: int = 0
    failed: int = 0
    abandoned: int = 0  # leased and left, until the lease ran out
    redriven: int = 0
    workflows: int = 0
    called: int = 0  # webhook calls that arrived
    notes: list[str] = field(default_factory=list)  # what could not be shown, and why


async def run_demo(
    url: str,
    *,
    namespace: str,
    seconds: float,
    counts: Counts,
    key: str | None = None,
    seed: int = 7,
) -> None:
    """Send traffic to a broker for a time, or until cancelled. `counts` follows what is done.

    Raise InvalidInput if the namespace has queues already: they would be mixed up with ours.
    """
    options = ClientOptions(key=key)
    async with connect_broker_async(url, options=options) as broker:
        if namespace in [one.name for one in await broker.namespaces()] and await broker.queues(
            namespace
        ):
            raise InvalidInput(
                f"namespace {namespace!r} of {url} has queues already; name another with "
                f"--namespace, or remove it: penstock namespaces delete {url} {namespace} --force"
            )
        shop = _Shop(url, namespace, key, broker, Random(seed), counts)
        try:
            await shop.open()
            async with asyncio.timeout(seconds):
                await shop.trade()
        except TimeoutError:
            pass
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the others were cancelled
        finally:
            await shop.close()


class _Shop:
    def __init__(
        self,
        url: str,
        namespace: str,
        key: str | None,
        broker: AsyncRemoteBroker,
        random: Random,
        counts: Counts,
    ) -> None:
        self.counts = counts
        self._url, self._namespace, self._key = url, namespace, key
        self._broker, self._random = broker, random
        self._queues: dict[str, AnyAsyncQueue] = {}
        place = f"{url.rstrip('/')}/{namespace}"
        self._tasks, self._workflow = _shop_tasks(place, key, Random(random.random()))
        self._worker = TasksWorker(self._tasks, options=TasksWorkerOptions(concurrency=2))
        self._orders = 0

    async def open(self) -> None:
        """Create the queues, and what stays the same."""
        for name, settings in QUEUES.items():
            queue = f"{self._namespace}/{name}"
            await self._broker.create_queue(queue, **settings)
            self._queues[name] = await aio.open(self._url, queue=queue, key=self._key)
        queues = self._queues
        await queues["orders"].groups.create("audit", to="beginning")
        for name in ("orders", "search-index", "newsletter"):
            await self._publish(name, [self._order() for _ in range(FIRST_BACKLOG)])
        later = [NewMessage(payload={"mail": n}, delay=20.0 * n) for n in range(1, 120)]
        await self._publish("emails", later)
        beat = NewMessage(payload={"report": "stock"}, ttl=3600)
        nightly = NewMessage(payload={"report": "daily"}, priority=7)
        await self._publish("reports", [beat])
        await queues["reports"].put_schedule(Schedule("stock", beat, every_s=10))
        await queues["reports"].put_schedule(
            Schedule("daily", nightly, cron="30 6 * * mon-fri", time_zone="Europe/Berlin")
        )
        await queues["reports"].put_schedule(Schedule("yearly", nightly, cron="@yearly"))
        await queues["reports"].pause_schedule("yearly")
        await queues["newsletter"].pause()

    async def trade(self) -> None:
        """Run publishers, workers and all the rest until cancelled."""
        async with self._receiver() as port, asyncio.TaskGroup() as group:
            await self._add_webhook(port)
            for job in (
                *(self._every(0.2, self._publish_orders), self._every(0.5, self._publish_others)),
                *(self._work("orders", f"packer-{n}", fails=0.04) for n in (1, 2)),
                *(self._work("payments", f"cashier-{n}", fails=0.3, dies=0.03) for n in (1, 2)),
                self._work("emails", "postman", fails=0.02),
                self._work("thumbnails", "painter", fails=0.1),
                self._work("search-index", "indexer", fails=0.0, pause_s=1.0),
                self._work("orders", "auditor", fails=0.0, pause_s=0.8, group="audit"),
                self._work("reports", "writer", fails=0.05),
                *(self._every(6, self._redrive), self._every(4, self._start_workflow)),
                self._worker.work(),
            ):
                group.create_task(job)

    async def close(self) -> None:
        """Stop the worker of tasks and close the connections; the queues stay."""
        self._worker.stop()
        for queue in self._queues.values():
            await queue.close()
        await asyncio.to_thread(self._tasks.close)

    # -- publishing --------------------------------------------------------------------------------

    async def _publish(self, name: str, messages: list[NewMessage]) -> None:
        if self.counts.published < MOST_PUBLISHED:
            await self._queues[name].enqueue_batch(messages)
            self.counts.published += len(messages)

    async def _publish_orders(self) -> None:
        random = self._random
        await self._publish("orders", [self._order() for _ in range(random.randint(1, 9))])
        payments = [self._order(max_attempts=random.choice((1, 3))) for _ in range(2)]
        await self._publish("payments", payments)

    async def _publish_others(self) -> None:
        random = self._random
        await self._publish("invoices", [self._order()])
        await self._publish("thumbnails", [NewMessage(payload=random.randbytes(300), ttl=60)])
        await self._publish("search-index", [self._order() for _ in range(random.randint(5, 20))])
        delay = random.choice((0.0, 2.0, 30.0, 300.0))
        await self._publish("emails", [NewMessage(payload={"to": self._customer()}, delay=delay)])

    def _order(self, **options: Any) -> NewMessage:
        self._orders += 1
        random = self._random
        item = {"sku": f"S-{random.randint(100, 999)}", "n": random.randint(1, 4)}
        return NewMessage(
            payload={"order": self._orders, "total": random.randint(5, 900), "items": [item]},
            priority=random.choice((0, 5, 5, 5, 7, 9)),
            key=self._customer() if random.random() < 0.3 else None,
            headers={"tenant": "acme", "trace": f"{random.getrandbits(64):016x}"},
            **options,
        )

    def _customer(self) -> str:
        return f"customer-{self._random.randint(1, CUSTOMERS)}"

    # -- consuming ---------------------------------------------------------------------------------

    async def _work(
        self,
        name: str,
        holder: str,
        *,
        fails: float,
        dies: float = 0.0,
        pause_s: float = 0.1,
        group: str = "main",
    ) -> None:
        """Lease and settle. A worker fails at times, or forgets what it has leased."""
        queue, random = self._queues[name], self._random
        while True:
            for job in await queue.lease(8, wait_s=5, holder=holder, group=group):
                await asyncio.sleep(random.uniform(0.0, pause_s / 4))
                chance = random.random()
                if chance < dies:
                    self.counts.abandoned += 1
                elif chance < dies + fails:
                    await queue.nack(job, random.choice(REASONS))
                    self.counts.failed += 1
                else:
                    await queue.ack(job)
                    self.counts.acked += 1
            await asyncio.sleep(pause_s)

    async def _redrive(self) -> None:
        queue = self._queues["payments"]
        letters = [letter.message.id async for letter in queue.dead()]
        if some := letters[: len(letters) // 4]:
            await queue.redrive(some)
            self.counts.redriven += len(some)

    async def _every(self, pause_s: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await act()
            await asyncio.sleep(pause_s * self._random.uniform(0.5, 1.5))

    # -- workflows ---------------------------------------------------------------------------------

    async def _start_workflow(self) -> None:
        self.counts.workflows += 1
        number = self.counts.workflows
        await asyncio.to_thread(self._workflow(number).enqueue, id=f"product-{number}")

    # -- webhooks ----------------------------------------------------------------------------------

    async def _add_webhook(self, port: int) -> None:
        address = f"http://127.0.0.1:{port}/invoices"
        try:
            await self._broker.create_webhook(
                f"{self._namespace}/invoices", address, retry_s=[1.0, 5.0]
            )
        except (AddressRefused, InvalidInput, NotAllowed) as error:
            self.counts.notes.append(f"no webhook: {error}")

    @asynccontextmanager
    async def _receiver(self) -> AsyncIterator[int]:
        """Answer webhook calls on a port of this machine, one in eight with an error."""

        open_calls: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task: Any = asyncio.current_task()
            open_calls[task] = writer
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
                    await reader.readexactly(int(length or 0))
                    self.counts.called += 1
                    bad = self._random.random() < 0.12
                    status = b"503 Service Unavailable" if bad else b"200 OK"
                    writer.write(b"HTTP/1.1 %s\r\ncontent-length: 0\r\n\r\n" % status)
                    await writer.drain()
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
                pass
            finally:
                writer.close()
                del open_calls[task]

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for writer in open_calls.values():
                writer.close()  # its task reads the end, and returns
            if open_calls:
                await asyncio.wait(list(open_calls), timeout=_STOP_S)


def _shop_tasks(
    place: str, key: str | None, random: Random
) -> tuple[Tasks, Callable[[int], Workflow]]:
    """Return the tasks of the shop, and a function that makes a workflow of them."""
    tasks = Tasks(place) if key is None else Tasks(place, key=key)

    @tasks.task(name="fetch", queue="pictures", max_attempts=3)
    def fetch(name: str) -> str:
        if random.random() < 0.15:
            raise ConnectionError(f"the camera did not send {name}")
        return name

    @tasks.task(name="resize", queue="pictures")
    def resize(front: str, back: str) -> list[str]:
        return [f"small-{front}", f"small-{back}"]

    @tasks.task(name="publish", queue="pictures", max_attempts=1)
    def publish(names: list[str]) -> str:
        if random.random() < 0.1:
            raise PermissionError("the shop window is locked")
        return " and ".join(names)

    def workflow(number: int) -> Workflow:
        flow = Workflow()
        front = flow.step("fetch front", fetch.s(f"front-{number}.jpg"))
        back = flow.step("fetch back", fetch.s(f"back-{number}.jpg"))
        both = flow.step("resize", resize.s(front.result, back.result))
        flow.step("publish", publish.s(both.result))
        return flow

    return tasks, workflow
