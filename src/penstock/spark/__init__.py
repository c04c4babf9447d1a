"""Queues on Spark: a data source, a sink, and jobs over the files of queues.

>>> from penstock.spark import read, session
>>> read(session(), "./orders", since="2026-01-31").count()  # doctest: +SKIP
"""

from penstock.extras import requires_extra

with requires_extra("spark", "penstock.spark", ModuleNotFoundError):
    from penstock.arrow.loss import DamagedSegment, DataLoss
    from penstock.spark.lag import LagListener, lag_of, publish_lag
    from penstock.spark.payloads.columns import MalformedPayload
    from penstock.spark.payloads.frames import (
        bad_records,
        dead_letter,
        decode_payloads,
        good_records,
    )
    from penstock.spark.payloads.schemas import AvroSchema, ProtobufSchema, SchemaDirectory
    from penstock.spark.sessions import read, session
    from penstock.spark.source import PenstockDataSource

__all__ = [
    "AvroSchema",
    "DamagedSegment",
    "DataLoss",
    "LagListener",
    "MalformedPayload",
    "PenstockDataSource",
    "ProtobufSchema",
    "SchemaDirectory",
    "bad_records",
    "dead_letter",
    "decode_payloads",
    "good_records",
    "lag_of",
    "publish_lag",
    "read",
    "session",
]
