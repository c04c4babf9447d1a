"""What makes one table from another: plain DataFrames, the same in streams and in batches."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from examples.pipeline.layout import Layout

ORDER = (
    "order_id STRING, customer STRING, product STRING, quantity INT, cents BIGINT, "
    "ordered_at TIMESTAMP"
)


def bronze(messages: DataFrame) -> DataFrame:
    """Return messages of the queue as they came, with the day as a partition."""
    return messages.withColumn("date", f.to_date("timestamp"))


def judged(bronze: DataFrame, layout: Layout) -> DataFrame:
    """Return each message with its order, and `reason`: why it is rejected, or null."""
    parsed = bronze.withColumn("order", f.from_json(f.col("payload").cast("string"), ORDER))
    order = f.col("order")
    oldest = f.col("timestamp") - f.make_interval(secs=f.lit(layout.lateness_s))
    newest = f.col("timestamp") + f.make_interval(secs=f.lit(layout.skew_s))
    reason = (
        f.when(order.isNull() | order["order_id"].isNull(), "no order in JSON with an order_id")
        .when(order["customer"].isNull() | order["product"].isNull(), "no customer or product")
        .when(order["quantity"].isNull() | (order["quantity"] < 1), "quantity is not 1 or more")
        .when(order["cents"].isNull() | (order["cents"] < 0), "cents is not 0 or more")
        .when(order["ordered_at"].isNull(), "ordered_at is not a time")
        .when(order["ordered_at"] < oldest, "late")
        .when(order["ordered_at"] > newest, "from the future")
    )
    return parsed.withColumn("reason", reason)


def orders(judged: DataFrame) -> DataFrame:
    """Return the typed orders, duplicates included."""
    return judged.where("reason IS NULL").select("seq", "timestamp", "order.*", "date")


def silver(judged: DataFrame, layout: Layout) -> DataFrame:
    """Return each order once. For streams: Spark remembers ids as long as the watermark needs."""
    watched = orders(judged).withWatermark("ordered_at", f"{layout.watermark_s} seconds")
    return watched.dropDuplicatesWithinWatermark(["order_id"])


def rejected(judged: DataFrame) -> DataFrame:
    """Return rejected messages for the sink: the payload as it came, and why in the headers."""
    headers = f.create_map(
        f.lit("reason"), f.col("reason"), f.lit("seq"), f.col("seq").cast("string")
    )
    return judged.where("reason IS NOT NULL").select("payload", "key", headers.alias("headers"))


def gold(silver: DataFrame, layout: Layout) -> DataFrame:
    """Return the sales of each product in each window of time."""
    window = f.window("ordered_at", f"{layout.window_s} seconds")
    sums = silver.groupBy(window, "product").agg(
        f.count("*").alias("orders"),
        f.sum("quantity").alias("quantity"),
        f.sum(f.col("cents") * f.col("quantity")).alias("cents"),
    )
    return sums.selectExpr(
        *("window.start AS window_start", "window.end AS window_end", "product"),
        *("orders", "quantity", "cents"),
    )


def sales_messages(gold: DataFrame) -> DataFrame:
    """Return the sales as messages for the sink. Those of one product are delivered in order."""
    return gold.select(
        f.to_json(f.struct(*gold.columns)).alias("payload"),
        f.col("product").alias("key"),
        f.lit("application/json").alias("content_type"),
    )
