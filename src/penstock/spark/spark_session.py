"""A Spark session with what Penstock needs set."""

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

SETTINGS = {
    # A reader that takes filters is offered only where Spark hands them down.
    "spark.sql.python.filterPushdown.enabled": "true",
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
    """
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    # Else workers run the first `python3` of the search path, which need not have Penstock.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()  # which finds the source by itself: see `pyspark_penstock`
