"""What the test of Spark Connect does; a program of its own, with a server of its own.

    python -m tests.spark.connect_work DIRECTORY

Prints what works as one line of JSON. DIRECTORY has the archive of a queue of COUNT messages.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.errors import InvalidInput
from penstock.spark import PenstockDataSource, read
from penstock.spark.jobs import archive, archived, redrive, report, restore, stream
from tests.spark.finishing import finish

COUNT = 300


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row[0]) for row in frame.selectExpr("cast(payload as string)").collect())


def main(place: Path) -> dict[str, Any]:
    builder = SparkSession.builder.remote("local[2]")
    # On a busy machine a worker needs more than Spark's 15 s to start.
    builder = builder.config("spark.python.authenticate.socketTimeout", "120s")
    spark = builder.getOrCreate()
    spark.dataSource.register(PenstockDataSource)
    source, wanted = str(place / "source"), list(range(COUNT))
    done: dict[str, Any] = {"remote": "connect" in type(spark).__module__}
    done["read"] = numbers(read(spark, source)) == wanted
    spark.sql(f"CREATE TEMPORARY VIEW orders USING penstock OPTIONS (path '{source}')")
    done["view"] = spark.sql("SELECT count(*) FROM orders").collect()[0][0] == COUNT

    frame = spark.range(0, COUNT, 1, 3).selectExpr("cast(id as string) payload")
    for _ in range(2):  # the second is recognised
        writer = frame.write.format("penstock").mode("append").option("txnAppId", "job")
        writer.option("txnVersion", "1").save(str(place / "sink"))
    done["write once"] = numbers(read(spark, place / "sink")) == wanted

    def copy(to: str) -> StreamingQuery:
        target, checkpoint = str(place / to), str(place / f"{to} checkpoint")
        return stream(spark, source, target, to=to, checkpoint=checkpoint, once=True)

    for to in ("queue", "delta"):
        for _ in range(2):
            finish(partial(copy, to))
    done["stream"] = numbers(read(spark, place / "queue")) == wanted
    found = DeltaTable(str(place / "delta")).to_pyarrow_table()["payload"].to_pylist()
    done["delta"] = sorted(int(one) for one in found) == wanted

    done["archived"] = archived(spark, str(place / "archive"), end_seq=11).count() == 10
    done["restore"] = restore(spark, str(place / "archive"), str(place / "again"), end_seq=11) == 10
    report(spark, source, str(place / "page"))
    done["report"] = (place / "page" / "report.html").exists()
    done["redrive"] = redrive(spark, source).chosen == 0
    try:
        archive(spark, source, str(place / "elsewhere"))
    except InvalidInput as error:
        done["archive refused"] = str(error)
    spark.stop()
    return done


def prepare(place: Path) -> None:
    """Fill the queue. The archive job needs a classic session, so the test runs it."""
    with penstock.open(str(place / "source"), segment_bytes=65536, min_free_bytes=0) as queue:
        queue.enqueue_batch([b"%d" % number for number in range(COUNT)])


if __name__ == "__main__":
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    print(json.dumps(main(Path(sys.argv[1]))))
