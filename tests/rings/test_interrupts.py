"""Whatever interrupts a call of a queue, wherever: nothing answered is lost, and nothing hangs.

A trace raises at every point of every verb where CPython can deliver an interrupt. And real
signals, and exceptions raised in threads, come at random times.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.codec import notes_py, packer_py
from penstock.ledger.memory_files import MemoryFiles
from penstock.queue.core import QueueCore
from penstock.queue.queue import Queue, open_queue
from tests.harness.interrupted_life import (
    PATH,
    VERBS,
    References,
    Scene,
    interrupt_at,
    make_scene,
    references,
)
from tests.harness.interrupted_threads import Worker
from tests.harness.interrupts import Interrupter

SYNCS = ["always", "interval", "batch", "never"]
POINTS = 3  # of each verb in each policy
# By real signals and by exceptions in threads, in each policy. Together with every point of the
# trace, the long run has more than 100,000 interrupts.
SIGNALS, LONG_SIGNALS = 80, 5_000
ROOT = Path(__file__).parents[2]

# An interrupt that falls into a callback of Python's own weak references is printed, not raised.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(params=["compiled", "python"])
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        use_python_packer(monkeypatch)
    return str(request.param)


def use_python_packer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packer is what an interrupt could tear; the rest of the codec keeps nothing."""
    monkeypatch.setattr("penstock.ledger.tail.Packer", packer_py.Packer)
    monkeypatch.setattr("penstock.ledger.writer.Packer", packer_py.Packer)
    monkeypatch.setattr("penstock.ledger.log.Notes", notes_py.Notes)


def scene_of(sync: str, verb: str) -> tuple[Scene, References]:
    scene = make_scene(sync)
    return scene, references(scene, VERBS[verb])


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_call_that_is_interrupted_was_made_or_was_not(
    verb: str, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At some points, spread over the call; each policy has others."""
    number = SYNCS.index(sync)
    if (number + list(VERBS).index(verb)) % 2:
        use_python_packer(monkeypatch)
    scene, expected = scene_of(sync, verb)
    shift = number / len(SYNCS)
    step = max(expected.points / POINTS, 1)
    for at in sorted({1 + int((nth + shift) * step) for nth in range(POINTS)}):
        interrupt_at(scene, VERBS[verb], at, expected)


@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupted_call_of_a_queue_with_limits_was_made_or_was_not(verb: str) -> None:
    limits = {"tenant_max_in_flight": 4, "tenant_rate_per_s": 3, "tenant_burst": 8}
    scene = make_scene("never", fair=True, max_in_flight=9, **limits)
    expected = references(scene, VERBS[verb])
    for nth in range(POINTS):
        interrupt_at(scene, VERBS[verb], 1 + nth * expected.points // POINTS, expected)


@pytest.mark.long
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_call_that_is_interrupted_anywhere_was_made_or_was_not(
    verb: str, sync: str, codec: str
) -> None:
    scene, expected = scene_of(sync, verb)
    interrupts = sum(
        interrupt_at(scene, VERBS[verb], at, expected) for at in range(1, expected.points + 1)
    )
    assert interrupts > 0.9 * expected.points


def test_without_mending_an_interrupted_call_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring has teeth."""
    monkeypatch.setattr(QueueCore, "mend", lambda _: None)
    scene, expected = scene_of("never", "nack")
    with pytest.raises(AssertionError, match="interrupted at"):
        for at in range(expected.points // 2, expected.points + 1):
            interrupt_at(scene, VERBS["nack"], at, expected)


@pytest.mark.parametrize("sync", ["always", "interval"])
def test_a_queue_whose_opening_was_interrupted_can_be_opened(sync: str, codec: str) -> None:
    scene = make_scene(sync)
    counting, at = Interrupter(None), 0
    while at <= counting.points:
        files = MemoryFiles(scene.image, mapped_room_bytes=1 << 16)
        clock = ManualClock(now_s=scene.wall_s)

        queues: list[Queue] = []

        def opened() -> int:
            with open_queue(PATH, scene.settings, files=files, clock=clock) as queue:  # noqa: B023
                queues.append(queue)  # noqa: B023
                return queue.stats().published

        if not at:
            published = counting.run(opened)
        else:
            try:
                Interrupter(at).run(opened)
            except KeyboardInterrupt:
                for queue in queues:
                    queue.close()  # as documented: a close that was interrupted is called again
        assert opened() == published
        at += 1 + counting.points // 12


def run_interrupted(module: str, directory: Path, sync: str, seed: int, interrupts: int) -> str:
    path = os.pathsep.join(each or "." for each in sys.path)
    codec = "python" if seed % 2 else ""
    done = subprocess.run(
        [sys.executable, "-m", module, str(directory), sync, str(seed), str(interrupts)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PENSTOCK_CODEC": codec},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("module", ["interrupted_work", "interrupted_threads"])
def test_a_queue_survives_interrupts_at_random_times(
    module: str, sync: str, tmp_path: Path
) -> None:
    module = f"tests.harness.{module}"
    run_interrupted(module, tmp_path / "queue", sync, SYNCS.index(sync), SIGNALS)


@pytest.mark.timeout(30)
def test_the_ring_goes_on_after_an_interrupt_that_went_into_another_thread(tmp_path: Path) -> None:
    with open_queue(str(tmp_path / "queue"), {}) as queue:
        worker = Worker(queue, 1)
        worker.wait_until_it_works()
        worker.may_be_interrupted = False  # as before an interrupt; the worker gets none
        assert not worker.wait_until_it_works()
        worker.stop = True
        worker.thread.join()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("module", ["interrupted_work", "interrupted_threads"])
def test_a_queue_survives_many_interrupts_at_random_times(
    module: str, sync: str, seed: int, tmp_path: Path
) -> None:
    run_interrupted(f"tests.harness.{module}", tmp_path / "queue", sync, seed, LONG_SIGNALS)
