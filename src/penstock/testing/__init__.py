"""Test code that uses tasks: real queues in memory, a virtual clock, assertions.

>>> from penstock.tasks import Tasks
>>> from penstock.testing import in_memory
>>> tasks = Tasks("./data")
>>> @tasks.task
... def welcome(user_id: int) -> None: ...
>>> with in_memory(tasks) as box:
...     job = welcome.with_options(delay=60).enqueue(7)
...     found = box.assert_enqueued(welcome, 7)
...     box.run_pending(), box.advance(60), job.state()
(0, 1, 'done')

As a fixture of pytest, `penstock_testing(tasks)` does the same until the end of the test.
"""

from penstock.testing.box import EnqueuedJob, TaskBox, in_memory

__all__ = ["EnqueuedJob", "TaskBox", "in_memory"]
