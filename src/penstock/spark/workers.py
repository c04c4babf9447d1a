"""The processes in which Spark runs Python: one is used for many tasks."""

import gc
from functools import cache

from pyspark import TaskContext


@cache
def settle_worker() -> None:
    """Once in a worker, when all that it needs is imported: keep its modules out of collections.

    Spark collects garbage after each task, which goes through every object of every module: 25 ms,
    as long as decoding half a million messages takes.
    """
    if TaskContext.get() is not None:
        gc.freeze()
