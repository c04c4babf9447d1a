"""A Spark session with what Penstock needs set."""

import logging
import os
import sys
from collections.abc import Mapping
from functools import cache

from pyspark.sql import SparkSession

from penstock.spark.probe import PUSHDOWN, filters_are_scoped
from penstock.spark.source import FilteringDataSource

log = logging.getLogger("penstock.spark")

SETTINGS = {
    # Python and the JVM exchange every row: 15 to 30 % less time than over TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # Times are stored in UTC; shown in another zone they would not be those of the command line.
    "spark.sql.session.timeZone": "UTC",
    # What Python receives at once: for more than a few MB it gets fresh memory each time, and
    # clearing that costs a writing job more than all that Python does with it.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
}


def session(
    master: str | None = None,
    *,
    app_name: str = "penstock",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session that there is, or a new one, ready to read and write queues.

    `settings` are Spark's own and go before ours. Spark runs on this machine's cores unless a
    master is named here or in Spark's configuration.

    Filters are pushed to the reader only if this Spark does it right: see `penstock.spark.probe`.
    """
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    # Else workers run the first `python3` of the search path, which need not have Penstock.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()  # which finds the source by itself: see `pyspark_penstock`
    if filters_are_scoped(spark):
        # Workers see neither the session nor its settings: the class that Spark makes tells them.
        spark.dataSource.register(FilteringDataSource)
        spark.conf.set(PUSHDOWN, "true")
        _say_once("filters on seq and time reach the reader")
    else:
        _say_once(
            f"Spark {spark.version} does not push filters correctly, so readers take none: "
            f"narrow a read with penstock.spark.read(…, since=…, first_seq=…)"
        )
    return spark


@cache
def _say_once(sentence: str) -> None:
    log.info(sentence)
