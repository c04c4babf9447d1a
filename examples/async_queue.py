"""The same queue for asyncio: many tasks share one fsync."""

import asyncio
from tempfile import TemporaryDirectory

import penstock.aio


async def main(folder: str) -> None:
    # With sync="always" an answer means that it is on disk; tasks that wait share one sync.
    async with await penstock.aio.open(folder, sync="always") as queue:
        ids = await asyncio.gather(*(queue.enqueue(f"job {n}") for n in range(100)))
        print("published:", len(set(ids)))

        done: list[str] = []

        async def work() -> None:
            async for job in queue.stream(idle_s=0.2, batch=10):
                done.append(job.payload.decode())
                await queue.ack(job)

        await asyncio.gather(work(), work())
        print("done:", len(set(done)))

        waiting = asyncio.create_task(queue.dequeue(wait_s=5))  # holds up nothing else
        await queue.enqueue("at last")
        message = await waiting
        print(message.payload.decode() if message else None)


with TemporaryDirectory() as folder:
    asyncio.run(main(folder))
