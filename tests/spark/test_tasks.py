"""Python in tasks: in waves without leftovers; it needs a classic session, and says so."""

from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError

from penstock.errors import InvalidInput
from penstock.spark.workers import run_tasks, waves


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


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 11, 12, 17, 100, 1001])
def test_waves_are_of_one_size_and_leave_nothing_out(count: int) -> None:
    found = list(waves(range(count), 8))
    assert [task for wave in found for task in wave] == list(range(count))
    sizes = [len(wave) for wave in found]
    assert max(sizes, default=0) <= 12
    assert count <= 8 or min(sizes) >= 5
    assert count == 0 or max(sizes) - min(sizes) <= 1
