"""Run streams to their end on machines that are too busy for a fixed deadline of Spark."""

from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

_STARTS = 12


def finish(start: Callable[[], StreamingQuery]) -> None:
    """Start a stream and wait for its end. Start it again if its Python process was too slow.

    Spark 4.0 to 4.3 wait exactly 10 s for the process of a streaming source to import PySpark and
    connect, whatever the settings. Then they remove its socket and fail the query, which has read
    nothing yet.
    """
    for left in reversed(range(_STARTS)):
        try:
            start().awaitTermination()
        except PySparkException as error:
            if not left or not is_too_slow(error):
                raise
        else:
            return


def first_batch(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a stream, again as `finish` does, and return it when its first batch is done."""
    for left in reversed(range(_STARTS)):
        query = start()
        try:
            while query.isActive and not query.recentProgress:
                query.awaitTermination(1)
        except PySparkException as error:
            if not left or not is_too_slow(error):
                raise
        else:
            return query
    raise AssertionError("unreachable")


def is_too_slow(error: PySparkException) -> bool:
    return "failed to connect back" in str(error)
