"""Results are kept with the ack: found by the job's id, exact over a crash, and never delivered."""

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.tasks import Job, JobFailed, NoResult, NotFinished, Tasks


@dataclass
class Report:
    pages: int


def test_a_result_is_read_by_the_annotation_of_the_function(tasks: Tasks) -> None:
    @tasks.task(keep_result_s=60)
    def report(pages: int) -> Report:
        return Report(pages)

    job = report.enqueue(3)
    with pytest.raises(NotFinished, match="not finished"):
        job.result()
    tasks.run_pending()
    assert job.result() == Report(3)
    assert report.job(job.id).result() == Report(3)
    assert tasks.job(job.id).result() == {"pages": 3}


def test_nothing_is_kept_unless_asked_for(tasks: Tasks) -> None:
    @tasks.task
    def one() -> int:
        return 1

    job, kept = one.enqueue(), one.with_options(keep_result_s=60).enqueue()
    tasks.run_pending()
    with pytest.raises(NoResult, match="keep_result_s"):
        job.result()
    assert kept.result() == 1
    assert tasks.queue().stats().published == 3


def test_a_result_is_forgotten_in_time_and_is_never_delivered(
    tasks: Tasks, clock: ManualClock
) -> None:
    @tasks.task(keep_result_s=60)
    def one() -> int:
        return 1

    job = one.enqueue()
    assert tasks.run_pending() == 1
    clock.advance(59.9)
    assert job.result() == 1
    assert tasks.run_pending() == 0
    clock.advance(0.1)
    with pytest.raises(NoResult):
        job.result()
    assert tasks.run_pending() == 0
    stats = tasks.queue().stats()
    assert (stats.expired, stats.acked, stats.ready) == (1, 1, 0)


def test_a_result_that_is_too_large_or_no_json_does_not_fail_the_job(tasks: Tasks) -> None:
    @tasks.task(keep_result_s=60)
    def make(kind: str) -> object:
        return {"large": "x" * 70_000, "odd": object(), "fits": "x" * 60_000}[kind]

    large, odd, fits = make.enqueue("large"), make.enqueue("odd"), make.enqueue("fits")
    tasks.run_pending()
    with pytest.raises(NoResult, match="at most 65536"):
        large.result()
    with pytest.raises(NoResult, match="not JSON"):
        odd.result()
    assert fits.result() == "x" * 60_000
    assert large.state() == "done"


RETURNED: dict[str, tuple[Any, object]] = {
    "nan": (float | None, math.nan),
    "untyped nan": (Any, {"x": [math.inf]}),
    "bytes as text": (str, b"secret"),
    "text as bytes": (bytes, "c2VjcmV0"),
    "untyped bytes": (Any, [b"x"]),
    "float": (float, 1.5),
    "bytes": (bytes, b"x"),
    "tuple": (tuple[int, int], (1, 2)),
    "untyped tuple": (Any, (1, [2])),
    "untyped date": (Any, date(2026, 5, 1)),
    "untyped report": (Any, [Report(1)]),
    "sequence": (Sequence[int], (1, 2)),
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nan", None),
        ("untyped nan", None),
        ("bytes as text", None),
        ("text as bytes", None),
        ("untyped bytes", None),
        ("float", 1.5),
        ("bytes", b"x"),
        ("tuple", (1, 2)),
        ("untyped tuple", [1, [2]]),
        ("untyped date", "2026-05-01"),
        ("untyped report", [{"pages": 1}]),
        ("sequence", [1, 2]),
    ],
)
def test_a_result_that_would_come_back_changed_is_not_kept(
    tasks: Tasks, name: str, expected: object
) -> None:
    kind, value = RETURNED[name]

    def make() -> Any:
        return value

    make.__annotations__["return"] = kind
    job = tasks.add(make, keep_result_s=60).enqueue()
    tasks.run_pending()
    assert job.state() == "done"
    if expected is None:
        with pytest.raises(NoResult, match="would not come back"):
            job.result()
    else:
        assert job.result() == expected


def test_a_job_that_failed_has_its_reason_instead(tasks: Tasks) -> None:
    @tasks.task(max_attempts=1)
    def fail() -> None:
        raise ValueError("no")

    job, cancelled = fail.enqueue(), fail.with_options(delay=60).enqueue()
    tasks.run_pending()
    with pytest.raises(JobFailed, match="is dead: ValueError: no$"):
        job.result()
    assert cancelled.cancel()
    assert not cancelled.cancel()
    with pytest.raises(JobFailed, match="is cancelled"):
        cancelled.result()


def test_a_result_and_its_ack_are_there_together_after_a_restart(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, sync="always")

    @tasks.task(keep_result_s=3600)
    def one() -> int:
        return 1

    job = one.enqueue()
    assert tasks.run_pending() == 1
    tasks.close()
    assert job.result() == 1  # opened again
    tasks.close()


def test_a_job_that_ran_twice_keeps_the_result_of_the_first_ack(tmp_path: Path) -> None:
    """A lease that ran out is acked late: the result is published once."""
    tasks = Tasks(tmp_path)

    @tasks.task(keep_result_s=3600)
    def one() -> int:
        return 1

    job = one.enqueue()
    tasks.run_pending()
    tasks.queue().seek("beginning")
    tasks.run_pending()
    assert job.result() == 1
    assert tasks.queue().stats().published == 2
    tasks.close()


def test_waiting_ends_when_the_result_is_there(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path)

    @tasks.task(keep_result_s=60)
    def one() -> int:
        return 1

    job = one.enqueue()
    with pytest.raises(NotFinished):
        job.result(wait_s=0.01)
    tasks.run_pending()
    assert job.result(wait_s=60) == 1
    tasks.close()


@pytest.mark.parametrize("kind", ["memory", "directory", "shared", "broker"])
def test_waiting_is_woken_by_the_end_of_the_job(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where: str | Path = tmp_path
    if kind == "broker":
        where = f"{request.getfixturevalue('server').url}/results"
    elif kind == "memory":
        where = "memory:"
    with Tasks(where, shared=kind == "shared") as tasks:

        @tasks.task(keep_result_s=60)
        def one() -> int:
            return 1

        @tasks.task(max_attempts=1)
        def fail() -> None:
            raise ValueError("no")

        waits = ThreadPoolExecutor(3)
        jobs: list[Job[Any]] = [one.enqueue(), one.enqueue(), fail.enqueue()]
        found = [waits.submit(job.result, 60) for job in jobs]

        async def wait() -> int:
            later = asyncio.ensure_future(jobs[0].aresult(60))
            await asyncio.sleep(0)
            await asyncio.to_thread(tasks.run_pending)
            found: int = await later
            return found

        assert asyncio.run(wait()) == 1
        assert [one.result(60) for one in found[:2]] == [1, 1]
        with pytest.raises(JobFailed, match="ValueError: no"):
            found[2].result(60)
        waits.shutdown()


def test_the_time_has_a_limit(tasks: Tasks) -> None:
    with pytest.raises(InvalidInput, match="keep_result_s"):
        tasks.add(lambda: None, name="x", keep_result_s=10**9)
    assert penstock.open("memory:").find("penstock.result:x") is None
