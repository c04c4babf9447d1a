"""Progress of jobs: in threads, coroutines, child processes, at a broker and in a directory."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.tasks import JobProgress, Tasks, TasksWorker, TasksWorkerOptions, current
from tests.server.running import RunningServer
from tests.tasks import jobs


@pytest.fixture(params=["memory", "directory", "shared", "broker", "broker over gRPC"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tasks]:
    kind = request.param
    if kind.startswith("broker"):
        server: RunningServer = request.getfixturevalue("server")
        url = server.url if kind == "broker" else server.server.urls[-1]
        with Tasks(f"{url}/ns-{tmp_path.name[:40].lower().replace('_', '-')}") as made:
            yield made
        return
    where: Any = "memory:" if kind == "memory" else tmp_path
    with Tasks(where, shared=kind == "shared") as made:
        yield made


def run(tasks: Tasks, target: str | None = None, **options: Any) -> None:
    made = TasksWorkerOptions(**{"idle_s": 0, **options})
    TasksWorker(tasks, options=made, target=target).run()


def test_run_pending_reports_progress(place: Tasks) -> None:
    seen: list[JobProgress | None] = []

    @place.task
    def resize() -> None:
        seen.append(place.job(current().id).progress())
        current().progress(0.4, "resizing")
        seen.append(place.job(current().id).progress())

    job = resize.enqueue()
    place.run_pending()
    assert seen[0] is None and seen[1] is not None
    assert seen[1][:2] == (0.4, "resizing")
    assert job.progress() is None


def test_a_worker_reports_the_newest(place: Tasks) -> None:
    seen: list[JobProgress] = []

    @place.task
    def resize() -> None:
        for number in range(1, 1000):
            current().progress(number / 1000, f"{number}")
        pause = Event()
        for _ in range(3000):
            found = place.job(current().id).progress()
            if found is not None and found.note == "999":
                seen.append(found)
                return
            pause.wait(0.01)

    job = resize.enqueue()
    run(place)
    assert [found[:2] for found in seen] == [(0.999, "999")]
    told = [event for event in place.queue().history(job.id) if event.event == "progressed"]
    assert len(told) <= 5  # of 999: they are coalesced


def test_bad_progress_is_refused(tasks: Tasks) -> None:
    @tasks.task(max_attempts=1)
    def resize() -> None:
        with pytest.raises(InvalidInput, match="share is 40"):
            current().progress(40)
        with pytest.raises(InvalidInput, match="note is text"):
            current().progress(0.4, 5)  # type: ignore[arg-type]

    job = resize.enqueue()
    tasks.run_pending()
    assert job.state() == "done"


def test_progress_in_a_child_process() -> None:
    with jobs.tasks:
        job = jobs.report.enqueue()
        run(jobs.tasks, "tests.tasks.jobs:tasks", processes=1)
        assert job.state() == "done"
        queue = jobs.tasks.queue()
        told = [event for event in queue.history(job.id) if event.event == "progressed"]
        assert told and told[-1].reason == "half"
