"""The processes in which Spark runs Python: one is used for many tasks, or to plan many reads."""

import gc
import sys
from functools import cache

_PROGRAM = "pyspark.daemon"  # from which all of them are forked


@cache
def settle_worker() -> None:
    """Once in a worker, when all that it needs is imported: keep its modules out of collections.

    Spark collects garbage after each task and each step of planning, which goes through every
    object of every module: 25 ms, as long as decoding half a million messages takes.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name == _PROGRAM:
        gc.freeze()
