"""Queues on Spark: a source, a sink, and jobs over the same files that the queue itself uses.

>>> from penstock.spark import session
>>> spark = session()                                                       # doctest: +SKIP
>>> spark.read.format("penstock").option("path", "./orders").load().count()  # doctest: +SKIP
"""

from penstock.spark.errors import DamagedSegment, DataLoss
from penstock.spark.source import PenstockDataSource
from penstock.spark.spark_session import session

__all__ = ["DamagedSegment", "DataLoss", "PenstockDataSource", "session"]
