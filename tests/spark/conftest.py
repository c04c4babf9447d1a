"""One Spark session for the whole run: it takes longer to start than most tests to run."""

import logging
import os
from collections.abc import Iterator

import pytest
from pyspark.logger.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.arrow.locations import close_connections
from penstock.spark import session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process run all tests that use the session: another would start a second one."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


_ADD_HANDLER = PySparkLogger.addHandler


def _add_handler(logger: PySparkLogger, handler: logging.Handler) -> None:
    """Add a handler to one of PySpark's loggers, without changing a format that it has.

    PySpark's loggers set their own format, JSON. From pytest 9.1 on they get the handlers that
    capture logs, whose texts would be JSON in all later tests of the process.
    """
    if handler.formatter is None:
        _ADD_HANDLER(logger, handler)
    else:
        logging.Logger.addHandler(logger, handler)


PySparkLogger.addHandler = _add_handler  # type: ignore[assignment,method-assign]


@pytest.fixture(autouse=True)
def no_connections() -> Iterator[None]:
    """A broker that is gone leaves no open socket here."""
    yield
    close_connections()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores, in which a failed task is tried again."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    made = session(
        "local[2,4]",
        app_name="penstock tests",
        settings={
            "spark.ui.enabled": "false",
            # What takes longest here is not the data: fewer tasks, and no compiling of queries.
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.driver.memory": "1g",
            # On a busy machine a worker needs more than Spark's 15 s to start.
            "spark.python.authenticate.socketTimeout": "120s",
        },
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
