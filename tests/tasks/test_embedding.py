"""A worker inside a program: in its event loop, or in a thread."""

import asyncio
from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.tasks import Tasks, TasksWorkerOptions, worker_running, worker_thread


def test_a_worker_in_the_event_loop_of_the_program(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path)

    @tasks.task(keep_result_s=60)
    async def double(n: int) -> int:
        return 2 * n

    @tasks.task(keep_result_s=60)
    def triple(n: int) -> int:
        return 3 * n

    async def main() -> list[int]:
        async with worker_running(tasks, TasksWorkerOptions(stop_s=1)):
            found = [await double.aenqueue(1), await triple.aenqueue(1)]
            return [await job.aresult(wait_s=60) for job in found]

    assert asyncio.run(main()) == [2, 3]
    assert asyncio.run(main()) == [2, 3]  # the directory was closed


def test_the_end_of_the_block_hands_back_what_runs(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path)

    @tasks.task
    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    began = asyncio.Event()

    async def main() -> str:
        async with worker_running(tasks, TasksWorkerOptions(stop_s=0)):
            job = endless.enqueue()
            await began.wait()
        return job.state()

    assert asyncio.run(main()) == "ready"
    tasks.close()


def test_a_worker_that_fails_says_so_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text("not a directory")
    tasks = Tasks(tmp_path)
    tasks.add(lambda: None, name="x")
    with pytest.raises(Exception, match="tasks"), worker_thread(tasks):
        pass
    with pytest.raises(InvalidInput, match="no tasks"), worker_thread(Tasks(tmp_path)):
        pass
