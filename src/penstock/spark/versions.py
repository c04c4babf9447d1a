"""The classes of PySpark that older versions lack.

| PySpark | what is missing |
|---|---|
| 4.0 | filters of push-down; a streaming writer of Arrow batches; `decode_payloads` |
| 4.0, 4.1 | the start and the limit of a micro-batch, which `latestOffset` gets since 4.2 |

Everything else works with all of them. Import the names from here instead of from PySpark.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import datasource
from pyspark.sql.pandas import functions

from penstock.errors import InvalidInput

VERSION = pyspark.__version__
HAS_FILTERS = hasattr(datasource, "Filter")  # since 4.1
HAS_ARROW_UDFS = hasattr(functions, "arrow_udf")  # since 4.1
HAS_READ_LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None  # since 4.2

if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(
        datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
    ):
        """A streaming writer that gets Arrow batches: Spark 4.0 looks only for the second base."""


if TYPE_CHECKING or HAS_ARROW_UDFS:
    from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
else:
    ArrowUDFType = arrow_udf = None

if TYPE_CHECKING or HAS_FILTERS:
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )
else:

    class Filter:
        """A filter. Spark 4.0 pushes none."""

    class EqualNullSafe(Filter): ...

    class EqualTo(Filter): ...

    class GreaterThan(Filter): ...

    class GreaterThanOrEqual(Filter): ...

    class In(Filter): ...

    class LessThan(Filter): ...

    class LessThanOrEqual(Filter): ...


if TYPE_CHECKING or HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """A limit of a micro-batch. Spark before 4.2 asks for none."""

    class ReadAllAvailable(ReadLimit): ...

    class ReadMaxBytes(ReadLimit): ...

    class ReadMaxRows(ReadLimit): ...

    class SupportsTriggerAvailableNow:
        """Spark before 4.2 makes one micro-batch of what Trigger.AvailableNow reads."""


__all__ = [
    "HAS_ARROW_UDFS",
    "HAS_FILTERS",
    "HAS_READ_LIMITS",
    "VERSION",
    "ArrowUDFType",
    "DataSourceStreamArrowWriter",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_udf",
    "refuse_limits",
]


def refuse_limits(names: list[str]) -> None:
    """Raise InvalidInput for options of a stream that this PySpark cannot apply."""
    if names:
        raise InvalidInput(
            f"{' and '.join(names)} cannot be applied: PySpark {VERSION} does not tell a source "
            f"where a micro-batch starts. Install PySpark 4.2 or newer, or leave the option out; "
            f"each micro-batch then reads all that is new."
        )
