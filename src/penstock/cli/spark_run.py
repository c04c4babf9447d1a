"""One run of a job on Spark: its session, its progress bar, and its figures."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import Progress, TaskID

from penstock.checking import check_local
from penstock.cli.options import option
from penstock.cli.terminal import progress_bar
from penstock.clock import SystemClock
from penstock.errors import InvalidInput, PenstockError
from penstock.extras import requires_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.25  # Spark does not notify Python of its progress
_PROGRESS_POLL_S = 1  # a streaming query runs far fewer than 100 batches in this time
_FIGURES = ("spark_jobs", "stages", "tasks", "failed_tasks")
_OWN_ERROR = re.compile(r"penstock\.[\w.]+: ")  # in a line of a stack trace
_JAVA_ERROR = re.compile(r": [\w.$]+: ")  # before the message of an error of the JVM
_SPARK_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")  # of errors in queries
_MASTERS = ("local", "spark", "k8s")  # beginnings that spark-submit accepts, beside yarn

Metrics = Annotated[
    Path | None,
    option("Write the figures of this run to a file, as JSON.", "--metrics", metavar="FILE"),
]


class JobRun:
    """A run as its command sees it. `result` becomes part of the figures."""

    def __init__(self, spark: "SparkSession", progress: Progress, bar: TaskID) -> None:
        self.spark = spark
        self.result: Any = None
        self._progress = progress
        self._bar = bar
        self._job_reports = False

    def on_progress(self, done: int, total: int) -> None:
        """Show the progress that the job itself reports."""
        self._job_reports = True
        self._progress.update(self._bar, completed=done, total=total)

    def poll(self) -> None:
        """Show the progress of Spark's active stages, unless the job reports its own."""
        tracker = self.spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        total = sum(stage.numTasks for stage in stages if stage is not None)
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        if total and not self._job_reports:
            self._progress.update(self._bar, completed=done, total=total)

    def figures(self) -> dict[str, int]:
        """Return the counts of Spark jobs, stages and tasks, as far as Spark remembers them."""
        tracker = self.spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(None)]
        ids = {stage for job in jobs if job is not None for stage in job.stageIds}
        stages = [stage for stage in map(tracker.getStageInfo, sorted(ids)) if stage is not None]
        tasks = sum(stage.numCompletedTasks for stage in stages)
        failed = sum(stage.numFailedTasks for stage in stages)
        return dict(zip(_FIGURES, (len(jobs), len(stages), tasks, failed), strict=True))


@contextmanager
def job_run(
    job: str,
    master: str,
    metrics: Path | None,
    check: Callable[[], object],
    settings: Mapping[str, str] | None = None,
) -> Iterator[JobRun]:
    """Run a job in a Spark session, and write its figures at the end.

    `check` checks the arguments of the job before Spark is started. `settings` are Spark settings.
    """
    if metrics is not None:
        _check_writable(metrics)
    clock = SystemClock()
    started_ns, began_ns = clock.now_ns(), clock.monotonic_ns()
    figures: dict[str, Any] = dict.fromkeys(_FIGURES, 0) | {"result": None}
    error: BaseException | None = None
    try:
        _check_master(master)
        check()
        with _session(master, settings or {}) as spark, progress_bar() as progress:
            run = JobRun(spark, progress, progress.add_task(job, total=None))
            try:
                with _polling(run, shown=not progress.disable), _short_errors():
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


def count_batches(query: Any) -> dict[str, int]:
    """Wait until a streaming query ends or Ctrl-C. Return its numbers of batches and rows.

    Spark keeps only the last 100 progress reports, so they are read while the query runs. Batch
    ids only grow. A report without rows is of a batch that did not run, or not yet.
    """
    batches = rows = 0
    last_id = -1
    newest_read = None

    def read() -> None:
        nonlocal batches, rows, last_id, newest_read
        newest = query.lastProgress
        if newest is None or newest == newest_read:
            return
        for report in query.recentProgress:
            if report["batchId"] > last_id and report["numInputRows"]:
                last_id = report["batchId"]
                batches += 1
                rows += report["numInputRows"]
        newest_read = newest

    try:
        while not query.awaitTermination(_PROGRESS_POLL_S):
            read()
    except KeyboardInterrupt:
        query.stop()
    read()
    return {"batches": batches, "rows": rows}


@contextmanager
def _short_errors() -> Iterator[None]:
    """Raise Spark's errors as one sentence, without pages of stack traces and of logs."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _SPARK_LOGGERS]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    except PySparkException as error:
        raise PenstockError(_sentence(error)) from None
    finally:
        for logger in loggers:
            logger.disabled = False


def _sentence(error: Exception) -> str:
    """Return the message of one of Spark's errors, without stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line.partition(": ")[2] for line in lines if _OWN_ERROR.match(line)]
    java = [_JAVA_ERROR.sub("", line) for line in lines if _JAVA_ERROR.match(line)]
    return [*own, *java, *lines, "Spark failed without a message"][0]


@contextmanager
def _polling(run: JobRun, *, shown: bool) -> Iterator[None]:
    if not shown:
        yield
        return
    ended = Event()

    def poll() -> None:
        while not ended.wait(_POLL_S):
            run.poll()

    thread = Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _check_master(master: str) -> None:
    """Raise InvalidInput for a master that spark-submit would refuse, with pages of output."""
    if master != "yarn" and not master.startswith(_MASTERS):
        raise InvalidInput(
            f"--master is {master!r}; it must be yarn, or begin with local, spark:// or k8s://"
        )


def _check_writable(path: Path) -> None:
    """Raise InvalidInput if the figures cannot be written to a file. Leave no file behind."""
    check_local(str(path))
    is_new = not os.path.lexists(path)
    try:
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise InvalidInput(
            f"--metrics is {str(path)!r}, which cannot be written ({error.strerror}): name a file, "
            f"in a directory that exists"
        ) from None


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
def _session(master: str, settings: Mapping[str, str]) -> "Iterator[SparkSession]":
    with requires_extra("spark"):
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from penstock.spark import session

    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    try:
        spark = session(master, app_name="penstock spark", settings={**quiet, **settings})
    except (PySparkException, Py4JError) as error:
        raise PenstockError(
            f"Spark did not start with --master {master}: {_sentence(error)} (check the master, "
            f"and that Java 17 or newer is installed)"
        ) from None
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
