"""An error of Spark leaves the logs that later tests of the process capture as they are."""

import logging

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


@pytest.mark.parametrize("run", [1, 2])
def test_captured_logs_keep_their_format_after_an_error_in_sql(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, run: int
) -> None:
    """The second run has the logger that PySpark made in the first one."""
    with pytest.raises(PySparkException):
        spark.sql("select missing")
    logging.getLogger("penstock.test").warning("run %d", run)
    assert f"WARNING  penstock.test:test_captured_logs.py:17 run {run}" in caplog.text
