"""Spark's Python workers: run a function in tasks, and keep garbage collection cheap in them."""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TypeVar

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from penstock.errors import InvalidInput

_WORKER_PROGRAM = "pyspark.daemon"  # all workers are forked from it
TASKS_PER_CORE = 4  # in a wave, so that few cores wait for the slowest task

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@cache
def freeze_modules() -> None:
    """Exclude imported modules from garbage collection in this worker. Do nothing elsewhere.

    Spark collects garbage after each task and each planning step. Visiting every object of every
    module takes 25 ms, as long as decoding half a million messages.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name == _WORKER_PROGRAM:
        gc.freeze()


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
        freeze_modules()
        return work(task)

    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        raise InvalidInput(
            "archive, compact and audit run Python in Spark tasks, which Spark Connect does not "
            "support: use a classic session, such as penstock.spark.session()"
        ) from None
    for wave in waves(tasks, tasks_per_core * context.defaultParallelism):
        yield context.parallelize(wave, len(wave)).map(frozen).collect()


def waves(tasks: Sequence[_Task], size: int) -> Iterator[Sequence[_Task]]:
    """Split tasks into waves of about `size`, without a small last one: each costs 40 ms."""
    count = max(round(len(tasks) / size), 1)
    ends = [len(tasks) * number // count for number in range(count + 1)]
    return (tasks[start:end] for start, end in pairwise(ends) if start < end)
