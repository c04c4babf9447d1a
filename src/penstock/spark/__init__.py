"""Queues on Spark: a data source, a sink, and jobs over the files of queues.

>>> from penstock.spark import read, session
>>> read(session(), "./orders", since="2026-01-31").count()  # doctest: +SKIP
"""

from penstock.arrow.loss import DamagedSegment, DataLoss
from penstock.spark.lag import LagListener, lag_of, publish_lag
from penstock.spark.sessions import read, session
from penstock.spark.source import PenstockDataSource

__all__ = [
    "DamagedSegment",
    "DataLoss",
    "LagListener",
    "PenstockDataSource",
    "lag_of",
    "publish_lag",
    "read",
    "session",
]
