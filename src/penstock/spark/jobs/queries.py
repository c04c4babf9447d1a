"""Arguments and names of the streaming queries that jobs start."""

import hashlib
from collections.abc import Mapping

from pyspark.sql import SparkSession

from penstock.arrow.locations import absolute_path
from penstock.arrow.selection import switch_in
from penstock.checking import check_not_empty, check_number
from penstock.errors import InvalidInput
from penstock.spark.sessions import make_active


def check_query(
    checkpoint: str,
    interval_s: float,
    *,
    once: bool = False,
    options: Mapping[str, str] | None = None,
) -> None:
    """Raise InvalidInput for arguments with which no query can start."""
    check_not_empty("checkpoint", checkpoint)
    check_number("interval_s", interval_s, 0, 86400)
    switch_in("once", once)
    is_mapping = isinstance(options, Mapping) and all(isinstance(name, str) for name in options)
    if options is not None and not is_mapping:
        raise InvalidInput(f"options is {options!r}; it must be a mapping of names to values")


def name_query(spark: SparkSession, what: str, checkpoint: str) -> str:
    """Return the name of a query that is about to start, and make its session the thread's.

    The checkpoint is what makes a query: the name has a digest of it. So a session may run several
    queries with one target, and a restarted query has the name that it had before. Raise
    InvalidInput if a query of the session uses the checkpoint.
    """
    digest = hashlib.sha256(absolute_path(checkpoint).encode()).hexdigest()[:8]
    for query in spark.streams.active:
        if query.name and query.name.endswith(f" {digest}"):
            raise InvalidInput(
                f"the checkpoint {checkpoint} is in use by the query {query.name!r} of this "
                f"session: stop that one, or give another checkpoint"
            )
    make_active(spark)
    return f"{what} {digest}"
