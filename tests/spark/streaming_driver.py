"""A driver in a process of its own, to be killed: it copies a queue to others, or to tables.

    python -m tests.spark.streaming_driver SOURCE CHECKPOINTS WAY KIND=TARGET...

Says `reading` when the first micro-batch of each target is done. WAY is `on` (as the queue grows)
or `once`. Each KIND (queue, delta, iceberg) has one target, and a checkpoint below CHECKPOINTS.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark import session
from penstock.spark.jobs import stream
from tests.spark.finishing import finish, first_batch


def main(source: str, checkpoints: str, way: str, *targets: str) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = session(
        f"local[{len(targets)}]",
        settings={
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.python.authenticate.socketTimeout": "120s",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    once = way == "once"
    starts = [
        partial(start, spark, source, target, f"{checkpoints}/{kind}", kind, once=once)
        for kind, _, target in (one.partition("=") for one in targets)
    ]
    with ThreadPoolExecutor() as threads:
        list(threads.map(finish if once else first_batch, starts))
    print("done" if once else "reading", flush=True)
    if not once:
        spark.streams.awaitAnyTermination()


def start(
    spark: SparkSession, source: str, target: str, checkpoint: str, kind: str, *, once: bool
) -> StreamingQuery:
    """Start one stream."""
    options = {"columns": "seq,timestamp,payload,key,headers"}
    if not once:
        options["maxOffsetsPerTrigger"] = "60" if kind == "queue" else "20"
    return stream(
        spark,
        source,
        target,
        to=kind,
        checkpoint=checkpoint,
        once=once,
        interval_s=0,
        options=options,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
