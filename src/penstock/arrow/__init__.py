"""Queues as Arrow tables: for pandas, polars, DuckDB and everything else that reads Arrow.

>>> import penstock.arrow
>>> penstock.arrow.read("./orders").read_all()  # doctest: +SKIP
"""

from penstock.extras import requires_extra

with requires_extra("arrow", "penstock.arrow", ModuleNotFoundError):
    from penstock.arrow.loss import DamagedSegment, DataLoss
    from penstock.arrow.reading import read

__all__ = ["DamagedSegment", "DataLoss", "read"]
