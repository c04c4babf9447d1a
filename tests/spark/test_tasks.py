"""Python in tasks needs a classic session, and says so."""

from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError

from penstock.errors import InvalidInput
from penstock.spark.tasks import run_tasks


class ConnectSession:
    """A session of Spark Connect, as far as it matters here."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED",
            messageParameters={"attr_name": "sparkContext"},
        )


def test_spark_connect_is_told_that_it_cannot_run_them() -> None:
    session: Any = ConnectSession()
    with pytest.raises(InvalidInput, match="use a classic session"):
        list(run_tasks(session, str, [1]))
