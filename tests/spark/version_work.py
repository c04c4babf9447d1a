"""What the test of each PySpark version does with it; a program of its own, with its own Spark.

    python -m tests.spark.version_work DIRECTORY

Prints what works as one line of JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.spark import read, session
from penstock.spark.jobs import archive, audit, report, restore, stream
from penstock.spark.jobs import archived as archived_frame
from penstock.spark.versions import HAS_FILTERS, HAS_READ_LIMITS
from tests.spark.finishing import finish

COUNT = 3000


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row[0]) for row in frame.selectExpr("cast(payload as string)").collect())


def copy(spark: SparkSession, place: Path, **options: str) -> list[int]:
    """Stream the source to a queue as far as it goes, and return what is in it."""
    finish(
        lambda: stream(
            spark,
            str(place / "source"),
            str(place / "copy"),
            to="queue",
            checkpoint=str(place / "checkpoint"),
            once=True,
            options=options,
        )
    )
    return numbers(read(spark, place / "copy"))


def refusal(spark: SparkSession, place: Path) -> str:
    """Return why a limit of a micro-batch is refused, or an empty text."""
    try:
        copy(spark, place, maxOffsetsPerTrigger="100", group="copier")
    except Exception as error:
        lines = [line for line in str(error).splitlines() if "maxOffsetsPerTrigger" in line]
        return lines[0] if lines else str(error)
    return ""


def main(place: Path) -> dict[str, Any]:
    spark = session(
        "local[2,4]",
        settings={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.python.authenticate.socketTimeout": "120s",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    source = place / "source"
    with penstock.open(str(source), segment_bytes=65536) as queue:
        queue.enqueue_batch([str(number) for number in range(COUNT)])
    done: dict[str, Any] = {"version": pyspark.__version__}
    table = read(spark, source, columns=["seq", "timestamp", "payload", "headers"])
    done["read"] = numbers(table) == list(range(COUNT))
    counts = (table.where("seq > 2990").count(), table.count(), table.where("seq <= 7").count())
    done["filter"] = counts == (10, COUNT, 7)

    frame = spark.range(0, COUNT, 1, 3).selectExpr(
        *("cast(id as string) payload", "map('n', cast(id as string)) headers", "'k' key")
    )
    for _ in range(2):  # the second is recognised
        writer = frame.write.format("penstock").mode("append").option("txnAppId", "job")
        writer.option("txnVersion", "1").save(str(place / "sink"))
    done["write once"] = numbers(read(spark, place / "sink")) == list(range(COUNT))

    with penstock.open(str(place / "typed")) as queue:
        queue.enqueue_batch([b'{"n": 1}', b"no"])
    typed = read(spark, place / "typed", columns=["seq", "data"], payload_schema="n BIGINT")
    done["typed"] = sorted(row["n"] or 0 for row in typed.select("data.n").collect()) == [0, 1]

    first = copy(spark, place)
    with penstock.open(str(source)) as queue:
        queue.enqueue_batch([str(number) for number in range(COUNT, COUNT + 100)])
    done["stream"] = first == list(range(COUNT)) and copy(spark, place) == list(range(COUNT + 100))
    done["limit refused"] = refusal(spark, place)
    done["limits"], done["filters"] = HAS_READ_LIMITS, HAS_FILTERS

    (archived,) = archive(spark, str(source), str(place / "archive"))
    sound = audit(spark, str(source), archive=str(place / "archive")).is_sound
    done["jobs"] = archived.rows > 0 and sound
    frame = archived_frame(spark, str(place / "archive"), end_seq=archived.next_seq)
    done["archived"] = frame.count() == archived.rows
    restored = restore(spark, str(place / "archive"), str(place / "again"))
    done["restore"] = (
        restored == archived.rows and len(numbers(read(spark, place / "again"))) == restored
    )
    report(spark, str(source), str(place / "page"))
    done["report"] = (place / "page" / "report.html").exists()
    spark.stop()
    return done


if __name__ == "__main__":
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    print(json.dumps(main(Path(sys.argv[1]))))
