"""What the test of a real cluster does on it; a program of its own, with its own Spark.

python cluster_work.py MASTER DIRECTORY
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import penstock
from penstock.spark import session
from penstock.spark.jobs import archive, audit


def main(master: str, directory: Path) -> None:
    spark = session(
        master,
        settings={
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "700m",
            "spark.cores.max": "2",
            "spark.speculation": "true",  # a slow task gets a twin on the other host
            "spark.speculation.multiplier": "1.2",
            "spark.speculation.quantile": "0.3",
            "spark.speculation.interval": "50ms",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    with penstock.open(str(directory / "source"), segment_bytes=65536) as queue:
        for start in range(0, 20_000, 1000):
            queue.enqueue_batch([str(number) for number in range(start, start + 1000)])
    source = spark.read.format("penstock").option("maxPartitionBytes", "64k")
    frame = source.load(str(directory / "source"))
    found = [int(row.payload) for row in frame.orderBy("seq").select("payload").collect()]
    assert found == list(range(20_000)), "the source"

    def slow_once(rows: Iterable[object]) -> Iterable[object]:
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from rows
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            time.sleep(20)  # long enough for its twin to be done first

    slow = frame.select("payload").repartition(4).rdd.mapPartitions(slow_once)
    out = spark.createDataFrame(slow, frame.select("payload").schema)
    out.write.format("penstock").mode("append").save(str(directory / "sink"))
    with penstock.open(str(directory / "sink")) as queue:
        written = sorted(int(message.payload) for message in queue.browse())
    assert written == list(range(20_000)), "the sink"

    (result,) = archive(spark, str(directory / "source"), str(directory / "archive"))
    sound = audit(spark, str(directory / "source"), archive=str(directory / "archive"))
    assert sound.is_sound, "the jobs"
    context = spark.sparkContext._jsc.sc()
    executors = context.getExecutorMemoryStatus().size() - 1  # the driver is among them
    print(f"executors {executors}, archived {result.rows > 0}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
