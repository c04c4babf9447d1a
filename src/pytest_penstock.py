"""The plugin of pytest: fixtures for tests of code that uses Penstock.

pytest imports it in every run of an environment where Penstock is installed, so it imports nothing
of Penstock before a fixture is used.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock import Queue
    from penstock.tasks import Tasks
    from penstock.testing import TaskBox


@pytest.fixture
def penstock_testing() -> Iterator["Callable[..., TaskBox]"]:
    """A function that puts a `Tasks` into a box until the end of the test, and returns the box."""
    from penstock.testing import in_memory

    with ExitStack() as stack:

        def put(tasks: "Tasks", **settings: Any) -> "TaskBox":
            return stack.enter_context(in_memory(tasks, **settings))

        yield put


@pytest.fixture
def penstock_queue() -> Iterator["Queue"]:
    """An empty queue in memory."""
    from penstock.queue.queue import open_queue

    with open_queue("memory:", {}) as queue:
        yield queue
