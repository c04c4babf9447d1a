"""What the Python workers of Spark are spared."""

import gc

import pytest
from pyspark.sql import SparkSession

from penstock.spark.workers import freeze_modules, run_tasks

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


def _frozen(_: int) -> int:
    return gc.get_freeze_count()


def test_collections_in_a_worker_leave_its_modules_out(spark: SparkSession) -> None:
    (count,) = run_tasks(spark, _frozen, [1])
    assert count > 10_000  # the objects of pyspark, pyarrow and penstock


def test_outside_of_a_task_nothing_is_kept_from_collections() -> None:
    before = gc.get_freeze_count()
    freeze_modules.cache_clear()
    freeze_modules()
    assert gc.get_freeze_count() == before
