"""Does this Spark keep a pushed filter to the scan that it was pushed for?

Up to 4.3, `spark.sql.python.filterPushdown.enabled` gives wrong results with any Python data
source: Spark stores the plan of a filtered scan on the relation, and the next scan of the relation
without a filter uses it. `df.where("seq > 990").count()` is 10, and so is `df.count()` after it.
"""

from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
KNOWN_BROKEN = ("4.2.", "4.3.")  # without a probe, which costs a second or more

_verdicts: dict[str, bool] = {}  # by Spark version


def filters_are_scoped(spark: SparkSession) -> bool:
    """Return whether filters can be pushed to a reader in this Spark. Probe once per version."""
    version = spark.version
    if version.startswith(KNOWN_BROKEN):
        return False
    if version not in _verdicts:
        _verdicts[version] = scopes_filters(spark)
    return _verdicts[version]


def scopes_filters(spark: SparkSession) -> bool:
    """Return whether scans with and without a filter give the right rows, together and in turn."""
    before = spark.conf.get(PUSHDOWN, "false") or "false"
    spark.dataSource.register(_Probe)
    spark.conf.set(PUSHDOWN, "true")
    try:
        table = spark.read.format(_Probe.name()).load()
        together = table.where("n > 1").union(table).count()
        return (together, table.where("n > 1").count(), table.count()) == (3, 1, 2)
    finally:
        spark.conf.set(PUSHDOWN, before)


class _Probe(DataSource):
    """A table of two rows, 1 and 2, whose reader leaves out 1 for any filter."""

    @classmethod
    def name(cls) -> str:
        return "penstock-probe"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ProbeReader()


class _ProbeReader(DataSourceReader):
    first = 1

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self.first = 2
        return filters

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.first)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((n,) for n in range(partition.value, 3))
