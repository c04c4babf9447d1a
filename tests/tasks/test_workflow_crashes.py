"""Workflows over queues, and crashes: whatever is left on the disks, all steps run or none."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import NoSuchMessage
from penstock.ledger.files import Files
from penstock.queue.facade import AnyQueue
from penstock.queue.queue import open_queue
from penstock.tasks import Tasks, Workflow, chain
from tests.harness.crash_states import crash_states
from tests.harness.journal import RecordedFiles

QUEUES = ("mail", "web")
STEPS = ["1 one", "2 two", "3 one", "4 two"]


class OnFiles:
    """Queues on the files of a test, which may lose their power."""

    follows = False

    def __init__(self, files: Files, clock: ManualClock, sync: str) -> None:
        self._files = files
        self._clock = clock
        self._settings = {"sync": sync, "min_free_bytes": 0, "auto_compact": False}

    def open(self, queue: str, limits: Mapping[str, Any]) -> AnyQueue:
        return open_queue(f"/{queue}", self._settings, files=self._files, clock=self._clock)

    def prepare(self, queue: str, limits: Mapping[str, Any]) -> None:
        pass

    def queues(self) -> list[str]:
        return []


@contextmanager
def tasks_on(
    files: Files, ran: list[str], sync: str, clock: ManualClock | None = None
) -> Iterator[tuple[Tasks, Workflow]]:
    """Tasks in two queues that note what ran, and a workflow from one to the other and back."""
    tasks = Tasks("memory:")

    def one(value: str = "") -> str:
        ran.append("one")
        if isinstance(files, RecordedFiles):
            files.mark("ran")
        return value + "1"

    def two(value: str) -> str:
        ran.append("two")
        return value + "2"

    first = tasks.add(one, queue="web")
    second = tasks.add(two, queue="mail")
    with tasks.at(OnFiles(files, clock or ManualClock(), sync)):
        yield tasks, chain(first.s(), second.s(), first.s(), second.s())


@pytest.mark.parametrize("sync", ["always", "never"])
def test_after_any_crash_all_steps_run_or_none(sync: str) -> None:
    made = RecordedFiles()
    with tasks_on(made, [], sync) as (tasks, _):
        for name in QUEUES:
            tasks.queue(name)
    recorded = RecordedFiles(made.journal.end())
    with tasks_on(recorded, [], sync) as (tasks, flow):
        flow.enqueue(id="order")
        recorded.mark("published")
        tasks.run_pending()
        recorded.mark("done")
    outcomes: Counter[str] = Counter()
    for state in crash_states(recorded.journal, life="workflow", cuts=1, tears=1):
        # Without a sync, a loss of power may undo what was answered. It is all or none still.
        marks = state.marks if sync == "always" or state.cause == "kill" else ()
        outcomes[judge(state.files(), sync, marks, state.name)] += 1
    assert set(outcomes) == {"none", "some were left", "all were done"}


def judge(files: Files, sync: str, marks: tuple[Any, ...], name: str) -> str:
    """Reopen what a crash left, run what is ready, and return what there was to run."""
    ran: list[str] = []
    clock = ManualClock()
    with tasks_on(files, ran, sync, clock) as (tasks, flow):
        for _ in range(4):
            tasks.run_pending()
            clock.advance(600)  # leases of the life before end, and retries are due
        is_done = _is_done(tasks)
        if "published" not in marks and not ran and not is_done:
            assert "ran" not in marks, name  # none, before the crash and after it
            is_begun = _is_begun(tasks, "order")
            again = flow.enqueue(id="order")
            assert tasks.run_pending() == 4 and again.result() == "1212", name
            assert again.is_duplicate is is_begun, name
            return "none"
        run = tasks.workflow("order", queue="web")
        assert run.states() == dict.fromkeys(STEPS, "done"), name
        assert run.result() == "1212", name
        assert flow.enqueue(id="order").is_duplicate and tasks.run_pending() == 0, name
        # An ack counts only with its result: without a sync, a loss of power may undo it.
        for step in run.steps() if marks else ():
            events = [event.event for event in tasks.queue(step.queue).history(step.id)]
            assert events.count("acked") == 1, (name, events)
        return "some were left" if ran else "all were done"


def _is_done(tasks: Tasks) -> bool:
    try:
        return tasks.workflow("order", queue="web").state() == "done"
    except NoSuchMessage:
        return False


def _is_begun(tasks: Tasks, flow: str) -> bool:
    """Return whether a workflow has its plan."""
    try:
        return bool(tasks.workflow(flow, queue="web").steps())
    except NoSuchMessage:
        return False


# -- kill -9 ---------------------------------------------------------------------------------------

_CHILD = """
import sys
from pathlib import Path
from tests.tasks.test_workflow_crashes import kill_tasks

tasks, flow = kill_tasks(Path(sys.argv[1]))
for name in ("web", "mail"):
    tasks.queue(name)
for number in range(int(sys.argv[2]), 1_000_000):
    print(f"begins {number}", flush=True)
    flow.enqueue(id=f"order-{number}")
    print(f"published {number}", flush=True)
"""


def kill_tasks(path: Path) -> tuple[Tasks, Workflow]:
    """Tasks in a directory, and a workflow over two of its queues."""
    tasks = Tasks(path, shared=False, sync="never")

    def one(value: str = "") -> str:
        return value + "1"

    first, second = tasks.add(one, queue="web"), tasks.add(one, name="two", queue="mail")
    return tasks, chain(first.s(), second.s(), first.s(), second.s())


@pytest.mark.parametrize("seed", range(3))
def test_a_publisher_that_is_killed_leaves_whole_workflows_and_ones_that_never_ran(
    tmp_path: Path, seed: int
) -> None:
    random, begun, published = Random(seed), 0, set[int]()
    for _ in range(3):
        lines = _killed_after(tmp_path, begun, random.randrange(1, 60))
        begun = max(int(line.split()[1]) for line in lines) + 1
        published |= {int(line.split()[1]) for line in lines if line.startswith("published")}
    tasks, flow = kill_tasks(tmp_path)
    with tasks:
        tasks.run_pending(limit=1_000_000)
        half = []
        for number in range(begun):
            run = tasks.workflow(f"order-{number}", queue="web")
            try:
                states = set(run.states().values())
            except NoSuchMessage:
                states = set()
            if number in published:
                assert states == {"done"}, (number, states)
            elif states != {"done"}:
                assert states <= {"blocked"}, (number, states)
                half.append(number)
        assert len(half) <= 3
        for number in half:
            is_begun = _is_begun(tasks, f"order-{number}")
            assert flow.enqueue(id=f"order-{number}").is_duplicate is is_begun
        assert tasks.run_pending() == 4 * len(half)
        assert tasks.queue("mail").stats().dead == tasks.queue("web").stats().dead == 0


def _killed_after(path: Path, first: int, count: int) -> list[str]:
    """Let a child publish workflows, and kill it after some lines. Return what it said."""
    command = [sys.executable, "-c", _CHILD, str(path), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(count)]
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.readlines()
    return [line for line in lines if line.endswith("\n")]
