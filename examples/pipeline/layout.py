"""Where the pipeline's queues and tables are, and the two rules about time that all parts share."""

import json
import os
from dataclasses import asdict, dataclass

from pyspark.sql import DataFrame, SparkSession

ORDERS, REJECTED, SALES = "shop/orders", "shop/orders-rejected", "shop/sales"
NIGHTLY = "shop/nightly"  # ticks of the schedule

BRONZE = (
    "seq BIGINT, id STRING, timestamp TIMESTAMP, key STRING, headers MAP<STRING,STRING>, "
    "payload BINARY, date DATE"
)
SILVER = (
    "seq BIGINT, timestamp TIMESTAMP, order_id STRING, customer STRING, product STRING, "
    "quantity INT, cents BIGINT, ordered_at TIMESTAMP, date DATE"
)
GOLD = (
    "window_start TIMESTAMP, window_end TIMESTAMP, product STRING, orders BIGINT, "
    "quantity BIGINT, cents BIGINT"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One pipeline. Its rules about time are stored in the lake, so that all parts use the same.

    An order is late if it was published more than `lateness_s` after it was made. It is from the
    future if it was published more than `skew_s` before. Both are rejected, by its own two times
    only, so a second run decides the same.
    """

    url: str  # of the broker
    lake: str  # directory or URL where Spark keeps the tables
    window_s: int = 60
    lateness_s: int = 600
    skew_s: int = 1

    @property
    def watermark_s(self) -> int:
        """Return Spark's delay of the watermark: one with which it drops no order that is not late.

        Messages of a queue are in the order of their times. Orders accepted so far are at most
        `skew_s` newer than the newest message, and all that follow are at most `lateness_s` older.
        One more second, because Spark drops what is equal to the watermark.
        """
        return self.lateness_s + self.skew_s + 1

    def table(self, name: str) -> str:
        return f"{self.lake}/{name}"

    def checkpoint(self, name: str) -> str:
        return f"{self.lake}/checkpoints/{name}"

    def queue(self, name: str) -> dict[str, str]:
        """Return the options of the Spark source and sink for a queue."""
        return {"url": self.url, "queue": name}

    def read(self, spark: SparkSession, name: str, schema: str) -> DataFrame:
        """Return a table as it is now. It is empty before the first order."""
        os.makedirs(self.table(name), exist_ok=True)
        return spark.read.schema(schema).parquet(self.table(name))

    def save(self) -> None:
        """Store the layout in the lake. Raise ValueError if another one is stored there."""
        os.makedirs(self.lake, exist_ok=True)
        path = f"{self.lake}/pipeline.json"
        if os.path.exists(path):
            stored = load(self.lake)
            if _rules(stored) != _rules(self):
                raise ValueError(
                    f"{path} has the rules {_rules(stored)}, not {_rules(self)}: the tables were "
                    f"made by those. Use them, or another directory."
                )
        with open(f"{path}.new", "w") as file:
            json.dump(asdict(self), file, indent=1)
        os.replace(f"{path}.new", path)


def load(lake: str) -> Layout:
    """Return the layout of a lake."""
    with open(f"{lake}/pipeline.json") as file:
        return Layout(**{**json.load(file), "lake": lake})


def _rules(layout: Layout) -> dict[str, int]:
    return {name: getattr(layout, name) for name in ("window_s", "lateness_s", "skew_s")}
