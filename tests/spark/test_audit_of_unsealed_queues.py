"""Audits of queues of which nothing is archived, run in this process: tasks need no JVM."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock.archive import archive_at
from penstock.spark.jobs import archive, audit
from penstock.spark.jobs.audit import AuditResult
from tests.spark.random_queues import open_small

# Of a session, the audit of archived files asks only for the number of cores.
IN_PROCESS: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_waves(
        _: object, work: Callable[[Any], Any], tasks: Sequence[Any], *, tasks_per_core: int
    ) -> Iterator[list[Any]]:
        if tasks:
            yield [work(task) for task in tasks]

    def run_tasks(_: object, work: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        return map(work, tasks)

    jobs = "penstock.spark.jobs"
    monkeypatch.setattr(importlib.import_module(f"{jobs}.archive"), "run_waves", run_waves)
    monkeypatch.setattr(importlib.import_module(f"{jobs}.audit"), "run_tasks", run_tasks)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a queue of several segments, and one of a single segment."""
    place = tmp_path / "data"
    with open_small(place / "shop" / "orders") as queue:
        for _ in range(5):
            queue.enqueue_batch([b"x" * 50] * 50)
    with penstock.open(place / "shop" / "small") as queue:
        queue.enqueue(b"a")
    return place


def audited(data: Path, target: Path) -> AuditResult:
    return audit(IN_PROCESS, str(data), archive=str(target))


def test_an_audit_right_after_an_archive_run_is_sound(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    results = archive(IN_PROCESS, str(data), str(target))
    assert {one.queue: one.files > 0 for one in results} == {
        "shop/orders": True,
        "shop/small": False,
    }
    found = audited(data, target)
    assert found.problems == []
    assert found.is_sound
    assert found.messages == 251
    assert 0 < found.archived_rows < 250


def test_sealed_segments_of_which_nothing_is_archived_are_a_problem(
    data: Path, tmp_path: Path
) -> None:
    target = tmp_path / "archive"
    archive(IN_PROCESS, str(data), str(target))
    with open_small(data / "shop" / "small") as queue:
        for _ in range(5):
            queue.enqueue_batch([b"x" * 50] * 50)
    assert archive_at(str(target)).manifest("shop/small") is None
    (problem,) = audited(data, target).problems
    assert (problem.queue, problem.what) == ("shop/small", "archive")
    assert "nothing of this queue is archived" in problem.detail
