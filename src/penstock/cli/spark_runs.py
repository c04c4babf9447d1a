"""One run of a job on Spark: its session, a bar that shows how far it is, and its figures."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, TaskID

from penstock.checking import check_local
from penstock.cli.extras import needing
from penstock.cli.terminal import open_progress
from penstock.clock import SystemClock
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY_S = 0.25  # at Spark, which tells nobody in Python by itself
_FIGURES = ("spark_jobs", "stages", "tasks", "failed_tasks")
_OURS = re.compile(r"penstock\.[\w.]+: ")  # a line of a stack trace that is one of our errors

Metrics = Annotated[
    Path | None,
    typer.Option("--metrics", metavar="FILE", help="Write the figures of this run there, as JSON."),
]


class JobRun:
    """What a command has of its run. `result` is what the figures show of its outcome."""

    def __init__(self, spark: "SparkSession", progress: Progress, bar: TaskID) -> None:
        self.spark = spark
        self.result: Any = None
        self._progress = progress
        self._bar = bar
        self._counts_itself = False

    def on_progress(self, done: int, total: int) -> None:
        """For jobs that know best how far they are."""
        self._counts_itself = True
        self._progress.update(self._bar, completed=done, total=total)

    def look(self) -> None:
        """Show the tasks of the stages that Spark is at."""
        tracker = self.spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        total = sum(stage.numTasks for stage in stages if stage is not None)
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        if total and not self._counts_itself:
            self._progress.update(self._bar, completed=done, total=total)

    def figures(self) -> dict[str, int]:
        """What Spark did for it, as far as it remembers."""
        tracker = self.spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(None)]
        ids = {stage for job in jobs if job is not None for stage in job.stageIds}
        stages = [stage for stage in map(tracker.getStageInfo, sorted(ids)) if stage is not None]
        tasks = sum(stage.numCompletedTasks for stage in stages)
        failed = sum(stage.numFailedTasks for stage in stages)
        return dict(zip(_FIGURES, (len(jobs), len(stages), tasks, failed), strict=True))


@contextmanager
def job_run(
    job: str, master: str, metrics: Path | None, check: Callable[[], object]
) -> Iterator[JobRun]:
    """Run a job: within it there is a session, and at its end its figures are written.

    `check` looks at what the job was given, before Spark is started.
    """
    if metrics is not None:
        check_local(str(metrics))
    clock = SystemClock()
    started_ns, began_ns = clock.now_ns(), clock.monotonic_ns()
    figures: dict[str, Any] = dict.fromkeys(_FIGURES, 0) | {"result": None}
    error: BaseException | None = None
    try:
        check()
        with _session(master) as spark, open_progress() as progress:
            run = JobRun(spark, progress, progress.add_task(job, total=None))
            try:
                with _looking(run, shown=not progress.disable), _in_short():
                    yield run
            finally:
                figures = {**run.figures(), "result": run.result}
    except BaseException as caught:
        error = caught
        raise
    finally:
        if metrics is not None:
            seconds = (clock.monotonic_ns() - began_ns) / 1e9
            _write(metrics, job, started_ns, seconds, figures, error)


@contextmanager
def _in_short() -> Iterator[None]:
    """Raise Spark's errors as one sentence: its own are pages of two stack traces."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        ours = [line.partition(": ")[2] for line in lines if _OURS.match(line)]
        raise PenstockError([*ours, *lines, "Spark failed, and did not say why"][0]) from None


@contextmanager
def _looking(run: JobRun, *, shown: bool) -> Iterator[None]:
    if not shown:
        yield
        return
    ended = Event()

    def look() -> None:
        while not ended.wait(_LOOK_EVERY_S):
            run.look()

    thread = Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(
    path: Path,
    job: str,
    started_ns: int,
    seconds: float,
    figures: Mapping[str, Any],
    error: BaseException | None,
) -> None:
    content = {
        "job": job,
        "started_at": datetime.fromtimestamp(started_ns / 1e9, UTC).isoformat(),
        "seconds": round(seconds, 3),
        "succeeded": error is None,
        "error": None if error is None else str(error) or type(error).__name__,
        **figures,
    }
    path.write_text(json.dumps(content, indent=1, default=str) + "\n")


@contextmanager
def _session(master: str) -> "Iterator[SparkSession]":
    with needing("spark"):
        from penstock.spark import session

    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = session(master, app_name="penstock spark", settings=quiet)
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
