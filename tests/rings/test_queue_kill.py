"""A child publishes, leases and settles from threads, is killed, and the queue is held to its word.

The next child goes on in the same directory, so that recovery is killed too.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.queue import Queue
from penstock.queue.queue import open_queue
from tests.harness.queue_kill import SETTINGS, Told

CYCLES = 201
PARTS = 3  # of the cycles: a test is short on a slow machine too
LONG_CYCLES = 5001
CYCLES_PER_DIRECTORY = 5
MOST_ANSWERS = 200  # in one life


class Template:
    """The warm process, and the pipe from its children."""

    def __init__(self) -> None:
        path = os.pathsep.join(each or "." for each in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.queue_kill"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def run_and_kill(self, orders: str, told: Told, after_answers: int) -> None:
        """One life, ended after so many answers; 0: while it opens, or soon after."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(orders + "\n")
        self._process.stdin.flush()
        last_answer = told.answers + after_answers
        pid = killed = 0
        for line in self._process.stdout:
            words = line.split()
            if words[0] == "child":
                pid = int(words[1])
            elif words[0] == "ended":
                assert int(words[1]) == signal.SIGKILL
                return
            told.hear(line)
            if not killed and told.answers >= last_answer:
                os.kill(pid, signal.SIGKILL)
                killed = pid
        raise AssertionError("the template process ended")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    template = Template()
    yield template
    template.close()


def check(queue: Queue, told: Told) -> None:
    """Everything that was answered is true, and nothing is there that was not asked for."""
    for id_, payload in told.published.items():
        assert queue.get(id_).payload.decode() == payload
        state = queue.state(id_)
        if id_ in told.acked or id_ in told.cancelled:
            assert state == "done", f"{payload} came back"
        elif id_ not in told.acking and id_ not in told.cancelling:
            assert state != "done", f"{payload} is lost"
    flights = queue.core.state.groups[0].deliveries
    for id_, attempt in told.nacked.items():
        if id_ not in told.cancelling and queue.state(id_) != "done":
            assert flights[queue.get(id_).seq].attempt >= attempt, "an attempt is forgotten"
    found = [message.payload.decode() for message in queue.browse()]
    for ended in ("done", "cancelled"):
        found += [message.payload.decode() for message in queue.browse(ended)]
    assert len(found) == len(set(found)), "a message is there twice"
    assert set(found) <= told.attempted
    stats = queue.stats()
    waiting = stats.ready + stats.scheduled + stats.leased + stats.parked + stats.dead
    assert stats.published == waiting + stats.acked + stats.cancelled == len(found)


def run_cycles(template: Template, root: Path, sync: str, cycles: int, part: int = 0) -> int:
    """Kill a child in each cycle. Return how many answers were checked."""
    random, told, answers = Random(f"{sync} {part}"), Told(), 0
    for cycle in range(cycles):
        if cycle % CYCLES_PER_DIRECTORY == 0:
            answers += told.answers
            told = Told()
        path = root / str(cycle // CYCLES_PER_DIRECTORY)
        after = random.choice((0, random.randint(1, MOST_ANSWERS)))
        template.run_and_kill(f"{path} {sync} {cycle}", told, after)
        with open_queue(str(path), {**SETTINGS, "sync": sync}) as queue:
            check(queue, told)
    return answers + told.answers


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("sync", ["always", "interval", "never"])
def test_a_killed_queue_keeps_its_word(
    template: Template, tmp_path: Path, sync: str, part: int
) -> None:
    cycles = CYCLES // 3 // PARTS
    assert run_cycles(template, tmp_path, sync, cycles, part) > 10 * cycles


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sync", ["always", "interval", "never"])
def test_a_queue_killed_again_and_again_keeps_its_word(
    template: Template, tmp_path: Path, sync: str
) -> None:
    cycles = LONG_CYCLES // 3
    assert run_cycles(template, tmp_path, sync, cycles) > 10 * cycles
