"""A worker inside another program: in its event loop, or in a thread beside it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Thread

from penstock.tasks.registry import Tasks
from penstock.tasks.worker import TasksWorker, TasksWorkerOptions


@asynccontextmanager
async def worker_running(
    tasks: Tasks, options: TasksWorkerOptions | None = None
) -> AsyncIterator[TasksWorker]:
    """Run a worker in this event loop during a block: for the lifespan of FastAPI or Starlette.

    At the end of the block it finishes its jobs within `stop_s`, and the queues are closed. If it
    fails, the block goes on, and the error is raised at its end.
    """
    worker = TasksWorker(tasks, options=options)
    working = asyncio.ensure_future(worker.work())
    try:
        yield worker
    finally:
        worker.stop()
        try:
            await working
        finally:
            await asyncio.to_thread(tasks.close)


@contextmanager
def worker_thread(tasks: Tasks, options: TasksWorkerOptions | None = None) -> Iterator[TasksWorker]:
    """Run a worker in a thread of its own during a block, and close the queues at its end."""
    worker = TasksWorker(tasks, options=options)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(worker.work())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=work, name="penstock tasks worker")
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()
        tasks.close()
    if errors:
        raise errors[0]
