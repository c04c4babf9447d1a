"""Steps and jobs whose messages compaction has removed: how they ended is still told truly."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import NoSuchMessage
from penstock.tasks import Discard, GiveUp, JobFailed, NoResult, Tasks, chain
from penstock.tasks.run import WorkflowRun

SEGMENT_BYTES = 65_536


class Removing:
    """Tasks in a directory with small segments, so that compaction removes what has ended."""

    def __init__(self, tasks: Tasks, second: str) -> None:
        self.tasks, self.queues = tasks, sorted({"a", second})

        def first(fails: bool) -> int:
            if fails:
                raise GiveUp("it is broken")
            return 1

        def twice(value: int) -> int:
            return value * 2

        def skip() -> None:
            raise Discard

        self.first = tasks.add(first, queue="a", keep_result_s=60)
        self.twice = tasks.add(twice, queue=second)
        self.skip = tasks.add(skip, queue="a")

    def run(self, *, fails: bool = False) -> WorkflowRun:
        return chain(self.first.s(fails), self.twice.s()).enqueue(id="order-7")

    def compact(self) -> None:
        """Remove all messages that have ended."""
        for name in self.queues:
            queue = self.tasks.queue(name)
            for _ in range(8):
                queue.enqueue_batch([b"x" * 30_000] * 2)
                for leased in queue.lease(2):
                    queue.ack(leased)
            assert queue.compact().bytes_freed


@pytest.fixture(params=["a", "b"], ids=["one queue", "two queues"])
def removing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Removing]:
    with Tasks(tmp_path, shared=False, segment_bytes=SEGMENT_BYTES) as tasks:
        yield Removing(tasks, request.param)


def is_removed(removing: Removing, run: WorkflowRun, step: str) -> bool:
    job = run.job(step)
    try:
        removing.tasks.queue(job.queue_name).get(job.id)
    except NoSuchMessage:
        return True
    return False


def test_a_cancelled_workflow_stays_cancelled(removing: Removing) -> None:
    run = removing.run()
    assert run.cancel() == 2
    before = run.states()
    removing.compact()
    assert is_removed(removing, run, "1 first") and is_removed(removing, run, "2 twice")
    assert run.states() == before == {"1 first": "cancelled", "2 twice": "cancelled"}
    assert run.state() == "failed"
    with pytest.raises(JobFailed, match="is cancelled"):
        run.result()
    assert run.cancel() == run.retry() == 0


def test_a_workflow_that_is_done_stays_done(removing: Removing) -> None:
    run = removing.run()
    removing.tasks.run_pending()
    removing.compact()
    assert is_removed(removing, run, "1 first")
    assert run.state() == "done" and run.result() == 2


def test_a_discarded_step_is_not_done(removing: Removing) -> None:
    run = removing.run(fails=True)
    removing.tasks.run_pending()
    assert run.states() == {"1 first": "dead", "2 twice": "dead"}
    for step in run.steps():
        assert removing.tasks.queue(step.queue).discard([step.id])
    assert run.states() == {"1 first": "cancelled", "2 twice": "cancelled"}
    with pytest.raises(JobFailed, match="is cancelled"):
        run.result("1 first")
    removing.compact()
    assert is_removed(removing, run, "1 first")
    assert run.states() == {"1 first": "cancelled", "2 twice": "cancelled"}
    assert [step.reason for step in run.steps()] == ["discarded", "discarded"]
    with pytest.raises(JobFailed, match="is cancelled: discarded"):
        run.result("1 first")


def test_a_step_that_asked_to_be_discarded_is_done_without_a_result(removing: Removing) -> None:
    run = chain(removing.skip.si(), removing.first.si(False)).enqueue(id="order-7")
    removing.tasks.run_pending()
    removing.compact()
    assert run.states() == {"1 skip": "done", "2 first": "done"}
    with pytest.raises(NoResult):
        run.result("1 skip")


def test_what_the_queue_has_forgotten_is_not_done(
    removing: Removing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.dependencies.MOST_GONE", 1)
    run = removing.run()
    run.cancel()
    for name in removing.queues:  # the queue forgets the oldest cancelled messages
        queue = removing.tasks.queue(name)
        for _ in range(2):
            queue.enqueue(b"x")
            queue.cancel(queue.enqueue(b"y"))
            queue.ack(queue.lease())
    removing.compact()
    assert is_removed(removing, run, "1 first")
    assert set(run.states().values()) == {"forgotten"} and run.state() == "forgotten"
    with pytest.raises(NoResult, match="not known any more"):
        run.result()
    assert run.cancel() == run.retry() == 0


def test_a_removed_job_says_how_it_ended(removing: Removing) -> None:
    cancelled, done = removing.first.enqueue(False), removing.skip.enqueue()
    cancelled.cancel()
    removing.tasks.run_pending()
    removing.compact()
    with pytest.raises(JobFailed, match="is cancelled"):
        cancelled.result()
    with pytest.raises(NoResult):
        done.result()
