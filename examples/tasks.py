"""Functions as jobs: retries, results, a workflow, and a worker."""

import tempfile

from penstock.tasks import Retry, Tasks, TasksWorker, TasksWorkerOptions, chord, current

tasks = Tasks(tempfile.mkdtemp(), backoff_base_s=0.01)


@tasks.task(keep_result_s=60)
def flaky(n: int) -> str:
    if current().number < 3:
        raise Retry("not yet", delay=0)
    return f"{n} at attempt {current().number}"


@tasks.task
async def square(n: int) -> int:
    return n * n


@tasks.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


job = flaky.enqueue(7)
run = chord([square.s(n) for n in range(4)], total.s()).enqueue()
counts = TasksWorker(tasks, options=TasksWorkerOptions(idle_s=0.1)).run()
print("flaky:", job.result())
print("sum of squares:", run.result())
print("done:", counts.done, "failed:", counts.failed)
tasks.close()
