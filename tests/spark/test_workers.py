"""What the Python workers of Spark are spared."""

import gc
import platform
import resource

import pytest
from pyspark.sql import SparkSession

from penstock.spark.workers import run_tasks, tune_worker

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


def _frozen(_: int) -> int:
    return gc.get_freeze_count()


def test_collections_in_a_worker_leave_its_modules_out(spark: SparkSession) -> None:
    (count,) = run_tasks(spark, _frozen, [1])
    assert count > 10_000  # the objects of pyspark, pyarrow and penstock


def test_outside_of_a_task_nothing_is_kept_from_collections() -> None:
    before = gc.get_freeze_count()
    tune_worker.cache_clear()
    tune_worker()
    assert gc.get_freeze_count() == before


def _pages_of_batches(count: int) -> int:
    """Return the pages that the system handed out for buffers as large as a batch, one by one."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        bytearray(4 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of the GNU C library")
def test_a_worker_uses_the_memory_of_one_batch_for_the_next(spark: SparkSession) -> None:
    (pages,) = run_tasks(spark, _pages_of_batches, [50])
    assert pages < 10 * 1024  # a batch is 1,024 pages: without reuse, 50 times as many
