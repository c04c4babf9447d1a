"""Queues on Spark: a source, a sink, and jobs over the same files that the queue itself uses.

>>> from penstock.spark import read, session
>>> read(session(), "./orders", since="2026-01-31").count()  # doctest: +SKIP
"""

from penstock.spark.errors import DamagedSegment, DataLoss
from penstock.spark.reading import read
from penstock.spark.source import PenstockDataSource
from penstock.spark.spark_session import session

__all__ = ["DamagedSegment", "DataLoss", "PenstockDataSource", "read", "session"]
