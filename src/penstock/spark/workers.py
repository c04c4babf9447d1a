"""Spark's Python workers: run a function in tasks, and keep memory cheap in them."""

import ctypes
import gc
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import TypeVar

from pyspark.errors import PySparkAttributeError, PySparkException
from pyspark.sql import SparkSession

from penstock.archive.faults import ArchiveError
from penstock.arrow.loss import DataLoss
from penstock.errors import InvalidInput

_WORKER_PROGRAM = "pyspark.daemon"  # all workers are forked from it
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of mallopt, from malloc.h
_KEPT_BYTES = 32 << 20  # several batches; the largest threshold that mallopt accepts
# In a stack trace.
_OWN_ERROR = re.compile(r"penstock\.(?:archive\.faults|arrow\.loss)\.(ArchiveError|DataLoss): (.+)")
_OWN_TYPES = {one.__name__: one for one in (ArchiveError, DataLoss)}
TASKS_PER_CORE = 4  # in a wave, so that few cores wait for the slowest task

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@cache
def tune_worker() -> None:
    """Make memory cheap in this worker. Do nothing in other programs.

    Spark collects garbage after each task and each planning step. Visiting every object of every
    module takes 25 ms, as long as decoding half a million messages, so modules are excluded.

    By default the allocator gives each freed batch back to the system and gets the next one page
    by page. That is 60 % of the cost of reading messages of 1 KB, so it keeps some free memory.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name == _WORKER_PROGRAM:
        gc.freeze()
        _keep_freed_memory()


def _keep_freed_memory() -> None:
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # only in the GNU C library
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _KEPT_BYTES)
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)


def run_tasks(
    spark: SparkSession, work: Callable[[_Task], _Result], tasks: Sequence[_Task]
) -> Iterator[_Result]:
    """Run `work` for each item of `tasks` in a Spark task. Yield the results in order."""
    for wave in run_waves(spark, work, tasks):
        yield from wave


def run_waves(
    spark: SparkSession,
    work: Callable[[_Task], _Result],
    tasks: Sequence[_Task],
    *,
    tasks_per_core: int = TASKS_PER_CORE,
) -> Iterator[list[_Result]]:
    """Run `work` for each item of `tasks` in a Spark task. Yield the results in waves, in order.

    The caller can save its progress between two waves. Jobs that read whole segments use this
    instead of DataFrames: no rows pass through the JVM.
    """

    def frozen(task: _Task) -> _Result:
        tune_worker()
        return work(task)

    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        raise InvalidInput(
            "archive, compact and audit run Python in Spark tasks, which Spark Connect does not "
            "support: use a classic session, such as penstock.spark.session()"
        ) from None
    for wave in waves(tasks, tasks_per_core * context.defaultParallelism):
        with own_errors():
            results = context.parallelize(wave, len(wave)).map(frozen).collect()
        yield results


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise what a task said of an archive or of loss without Spark's stack traces."""
    try:
        yield
    except PySparkException as error:
        found = _OWN_ERROR.search(str(error))
        if found is None:
            raise
        raise _OWN_TYPES[found[1]](found[2]) from None


def waves(tasks: Sequence[_Task], size: int) -> Iterator[Sequence[_Task]]:
    """Split tasks into waves of about `size`, without a small last one: each costs 40 ms."""
    count = max(round(len(tasks) / size), 1)
    ends = [len(tasks) * number // count for number in range(count + 1)]
    return (tasks[start:end] for start, end in pairwise(ends) if start < end)
