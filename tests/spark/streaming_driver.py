"""A driver in a process of its own, to be killed: it copies a queue to another.

    python -m tests.spark.streaming_driver SOURCE TARGET CHECKPOINT WAY

Says `reading` when its first micro-batch is done. WAY is `on` (as the queue grows) or `once`.
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession

from penstock.arrow.locations import location_options
from penstock.spark import session


def main(source: str, target: str, checkpoint: str, way: str) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = session(
        "local[1]",
        settings={
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.python.authenticate.socketTimeout": "120s",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    writer = (
        read(spark, source)
        .select("payload")
        .writeStream.format("penstock")
        .options(**location_options(target, None))
        .option("checkpointLocation", checkpoint)
    )
    if way == "once":
        writer.trigger(availableNow=True).start().awaitTermination()
        print("done", flush=True)
        return
    query = writer.trigger(processingTime="0 seconds").start()
    while query.isActive and not query.recentProgress:
        query.awaitTermination(1)
    print("reading", flush=True)
    query.awaitTermination()


def read(spark: SparkSession, source: str) -> DataFrame:
    reader = spark.readStream.format("penstock").options(**location_options(source, None))
    return reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="60").load()


if __name__ == "__main__":
    main(*sys.argv[1:])
