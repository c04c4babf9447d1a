"""Running a Python function over many things on the executors, without rows in between.

Jobs that read whole segments (archive, audit) do their work inside a task, with the codec and
pyarrow: only what they found travels.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from penstock.errors import InvalidInput
from penstock.spark.workers import settle_worker

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")
_TASKS_PER_CORE = 4  # in a row, so that few cores wait for the slowest task of a wave


def run_tasks(
    spark: SparkSession, work: Callable[[_Task], _Found], tasks: Sequence[_Task]
) -> Iterator[_Found]:
    """What `work` says of each task, in their order; a Spark task for each, in waves.

    Between two waves the caller can note how far it has come.
    """

    def settled(task: _Task) -> _Found:
        settle_worker()
        return work(task)

    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        raise InvalidInput(
            "archive and audit run Python in tasks, which Spark Connect has no way for: use a "
            "classic session, as penstock.spark.session() gives"
        ) from None
    for wave in _waves(tasks, _TASKS_PER_CORE * context.defaultParallelism):
        yield from context.parallelize(wave, len(wave)).map(settled).collect()


def _waves(tasks: Sequence[_Task], size: int) -> Iterator[Sequence[_Task]]:
    """Of about that size, and none with a few leftovers: a wave costs a job of Spark, 40 ms."""
    waves = max(round(len(tasks) / size), 1)
    ends = [len(tasks) * number // waves for number in range(waves + 1)]
    return (tasks[start:end] for start, end in pairwise(ends) if start < end)
