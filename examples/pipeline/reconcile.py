"""The nightly job: compare queue, bronze, silver and gold, message by message.

    python -m examples.pipeline.reconcile ./lake --until 2026-01-31T00:00Z

Exits with 1 if anything is missing, double or different. With `--until`, only messages published
before that time must have arrived in silver and among the rejected; without it, all of them. Use a
time that the streams have certainly passed, such as the last midnight. The streams may be running.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.pipeline import report_page, tables
from examples.pipeline.layout import BRONZE, GOLD, ORDERS, REJECTED, SALES, SILVER, Layout, load
from examples.pipeline.streams import SETTINGS
from penstock.errors import NoSuchQueue
from penstock.spark import read, session


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The counts of one run. `problems` has what must be 0."""

    until: str | None
    counts: dict[str, int]
    problems: dict[str, int]

    @property
    def is_exact(self) -> bool:
        return not any(self.problems.values())


def reconcile(spark: SparkSession, layout: Layout, until: datetime | None = None) -> Reconciliation:
    """Compare the tables of a pipeline.

    A table is read before the one it was made from, so that a running stream adds nothing to it
    that the comparison does not know. Spark lists files when a table is named, and reads a queue
    when it is first used.
    """
    sales = _messages(spark, layout, SALES, "seq,payload").cache()
    rejected = _messages(spark, layout, REJECTED, "seq,payload,headers").cache()
    sales.count()
    rejected.count()
    gold = layout.read(spark, "gold", f"{GOLD}, batch INT")
    silver = layout.read(spark, "silver", SILVER).cache()
    bronze = tables.judged(layout.read(spark, "bronze", BRONZE), layout).cache()
    queue = _messages(spark, layout, ORDERS, "seq,timestamp,payload")
    is_due = f.lit(True) if until is None else f.col("timestamp") < f.lit(until)
    comparisons = (
        _queue_and_bronze(queue, bronze, is_due),
        _bronze_and_silver(bronze, silver, is_due),
        _bronze_and_rejected(bronze, rejected, is_due),
        _silver_and_gold(silver, gold, layout),
        _gold_and_sales(gold, sales),
    )
    try:
        row = reduce(DataFrame.crossJoin, comparisons).first()  # one row each
        assert row is not None
    finally:
        for table in (sales, rejected, silver, bronze):
            table.unpersist()
    counts: dict[str, int] = {}
    problems: dict[str, int] = {}
    for name, count in row.asDict().items():
        kind = counts if name.startswith("n_") else problems
        kind[name.removeprefix("n_").replace("_", " ")] = count
    if until is None:
        # With everything processed the sums must agree as well.
        accounted = counts["silver"] + counts["duplicates"] + counts["rejected"]
        problems["bronze less silver, duplicates and rejected"] = abs(counts["bronze"] - accounted)
        problems["silver less gold and open windows"] = abs(
            counts["silver"] - counts["orders in gold"] - counts["orders in open windows"]
        )
    return Reconciliation(
        until=None if until is None else until.isoformat(), counts=counts, problems=problems
    )


# -- one comparison each: names with n_ are counts, the others must be 0 ---------------------------


def _queue_and_bronze(queue: DataFrame, bronze: DataFrame, is_due: Column) -> DataFrame:
    """Compare by seq. Messages that retention has removed from the queue are only counted."""
    oldest = queue.agg(f.coalesce(f.min("seq"), f.lit(sys.maxsize)).alias("oldest"))
    wanted = queue.select("seq", "timestamp", f.col("payload").alias("wanted"))
    found = bronze.groupBy("seq").agg(
        f.count("*").alias("copies"), f.first("payload").alias("found")
    )
    both = wanted.join(found, "seq", "full_outer").crossJoin(oldest)
    is_kept = f.col("seq") >= f.col("oldest")
    return _counted(
        both,
        n_queue=f.col("wanted").isNotNull(),
        n_removed_from_the_queue=~is_kept,
        n_bronze=f.coalesce("copies", f.lit(0)),
        missing_in_bronze=f.col("copies").isNull() & is_due,
        double_in_bronze=f.coalesce(f.col("copies") - 1, f.lit(0)),
        changed_in_bronze=f.col("wanted") != f.col("found"),
        in_bronze_but_not_in_the_queue=f.col("wanted").isNull() & is_kept,
    )


def _bronze_and_silver(bronze: DataFrame, silver: DataFrame, is_due: Column) -> DataFrame:
    """Compare by order id: each accepted order must be there once, as one of its messages says."""
    names = ("seq", "order_id", "customer", "product", "quantity", "cents", "ordered_at")
    order = f.struct(*names)
    wanted = (
        tables.orders(bronze)
        .groupBy("order_id")
        .agg(
            f.count("*").alias("messages"),
            f.max(is_due).alias("due"),
            f.collect_set(order).alias("wanted"),
        )
    )
    found = silver.groupBy("order_id").agg(
        f.count("*").alias("copies"), f.first(order).alias("found")
    )
    return _counted(
        wanted.join(found, "order_id", "full_outer"),
        n_silver=f.coalesce("copies", f.lit(0)),
        n_duplicates=f.coalesce(f.col("messages") - 1, f.lit(0)),
        missing_in_silver=f.col("copies").isNull() & f.col("due"),
        double_in_silver=f.coalesce(f.col("copies") - 1, f.lit(0)),
        changed_in_silver=~f.array_contains("wanted", f.col("found")),
        in_silver_but_not_in_bronze=f.col("messages").isNull(),
    )


def _bronze_and_rejected(bronze: DataFrame, rejected: DataFrame, is_due: Column) -> DataFrame:
    """Compare by seq: each message without an accepted order must be rejected once, with why."""
    wanted = bronze.where("reason IS NOT NULL").select(
        "seq", "timestamp", f.col("reason").alias("why"), f.col("payload").alias("wanted")
    )
    found = (
        rejected.select(
            f.col("headers")["seq"].cast("bigint").alias("seq"),
            f.col("headers")["reason"].alias("reason"),
            "payload",
        )
        .groupBy("seq")
        .agg(
            f.count("*").alias("copies"),
            f.first("reason").alias("reason"),
            f.first("payload").alias("found"),
        )
    )
    both = wanted.join(found, "seq", "full_outer")
    return _counted(
        both,
        n_rejected=f.coalesce("copies", f.lit(0)),
        n_rejected_as_late=f.col("reason") == "late",
        missing_among_rejected=f.col("copies").isNull() & is_due,
        double_among_rejected=f.coalesce(f.col("copies") - 1, f.lit(0)),
        changed_among_rejected=(f.col("why") != f.col("reason"))
        | (f.col("wanted") != f.col("found")),
        rejected_but_not_bad=f.col("why").isNull(),
    )


def _silver_and_gold(silver: DataFrame, gold: DataFrame, layout: Layout) -> DataFrame:
    """Sum silver up again. Windows that end after the newest one of gold are still open."""
    names, sums = ["window_start", "window_end", "product"], ["orders", "quantity", "cents"]
    newest = gold.agg(f.max("window_end").alias("newest"))
    wanted = tables.gold(silver, layout).select(*names, f.struct(*sums).alias("wanted"))
    found = gold.groupBy(names).agg(
        f.count("*").alias("copies"), f.first(f.struct(*sums)).alias("found")
    )
    both = wanted.join(found, names, "full_outer").crossJoin(newest)
    is_open = f.col("newest").isNull() | (f.col("window_end") > f.col("newest"))
    return _counted(
        both,
        n_open_windows=is_open,
        n_orders_in_open_windows=f.when(is_open, f.col("wanted.orders")),
        n_gold=f.coalesce("copies", f.lit(0)),
        n_orders_in_gold=f.coalesce("found.orders", f.lit(0)),
        missing_in_gold=f.col("copies").isNull() & ~is_open,
        double_in_gold=f.coalesce(f.col("copies") - 1, f.lit(0)),
        changed_in_gold=f.col("wanted") != f.col("found"),
        in_gold_but_not_in_silver=f.col("wanted").isNull(),
    )


def _gold_and_sales(gold: DataFrame, sales: DataFrame) -> DataFrame:
    """Compare the table with the messages: the same rows, each as often."""
    row = f.from_json(f.col("payload").cast("string"), GOLD).alias("row")
    rows = gold.drop("batch").withColumns({"n": f.lit(1), "message": f.lit(0)})
    published = sales.select(row).select("row.*").withColumns({"n": f.lit(-1), "message": f.lit(1)})
    names = [name for name in rows.columns if name not in ("n", "message")]
    both = (
        rows.union(published)
        .groupBy(names)
        .agg(f.sum("n").alias("n"), f.sum("message").alias("messages"))
    )
    return _counted(
        both,
        n_sales_messages=f.col("messages"),
        missing_among_sales_messages=f.greatest("n", f.lit(0)),
        sales_messages_that_are_not_in_gold=f.greatest(-f.col("n"), f.lit(0)),
    )


def _counted(frame: DataFrame, **columns: Column) -> DataFrame:
    """Return one row with the sum of each column: of a condition, how often it is true."""
    return frame.agg(
        *[
            f.coalesce(f.sum(f.coalesce(column.cast("bigint"), f.lit(0))), f.lit(0)).alias(name)
            for name, column in columns.items()
        ]
    )


def _messages(spark: SparkSession, layout: Layout, queue: str, columns: str) -> DataFrame:
    """Return all messages of a queue. A queue that was never written to has none."""
    names = columns.split(",")
    try:
        return read(spark, f"{layout.url}/{queue}", columns=names)
    except Exception as error:
        if NoSuchQueue.__name__ not in str(error):
            raise
    types = {"seq": "BIGINT", "timestamp": "TIMESTAMP", "payload": "BINARY"}
    schema = [f"{name} {types.get(name, 'MAP<STRING,STRING>')}" for name in names]
    return spark.createDataFrame([], ", ".join(schema))


# -- the command -----------------------------------------------------------------------------------


def sentences(result: Reconciliation) -> list[str]:
    """Return the result as lines to print."""
    lines = [f"{count:>8,}  {name}" for name, count in result.counts.items()]
    lines += [f"{n:>8,}  {name}: WRONG" for name, n in result.problems.items() if n]
    missing = sum(n for name, n in result.problems.items() if name.startswith("missing"))
    double = sum(n for name, n in result.problems.items() if name.startswith("double"))
    other = sum(result.problems.values()) - missing - double
    if result.is_exact:
        return [*lines, "Nothing is missing, and nothing is double."]
    return [*lines, f"Missing: {missing:,}. Double: {double:,}. Different: {other:,}."]


def run(spark: SparkSession, layout: Layout, until: datetime | None = None) -> Reconciliation:
    """Reconcile, and store the result and the report page in the lake."""
    result = reconcile(spark, layout, until)
    os.makedirs(layout.table("reconciliation"), exist_ok=True)
    stem = "all" if until is None else until.astimezone(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    with open(layout.table(f"reconciliation/{stem}.json"), "w") as file:
        json.dump(asdict(result), file, indent=1)
    with open(layout.table("report.html"), "w") as file:
        file.write(report_page.page(report_page.figures(spark, layout), result))
    return result


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone: write {text}Z for UTC")
    return moment


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(description="Compare queue, bronze, silver and gold.")
    parser.add_argument("lake", help="directory of the tables")
    parser.add_argument("--until", type=_time, help="what was published before must have arrived")
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    given = parsed(arguments)
    spark = session(given.master, app_name="reconcile", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    try:
        result = run(spark, load(given.lake), given.until)
    finally:
        spark.stop()
    print("\n".join(sentences(result)))
    return 0 if result.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
