"""What the test of `--py-files` submits: the Python that runs it has no Penstock installed.

spark-submit --master URL --py-files penstock.zip py_files_work.py DIRECTORY
"""

import sys

import penstock
from penstock import codec
from penstock.spark import PenstockDataSource, read, session
from penstock.spark.jobs import archive


def main(directory: str) -> None:
    assert ".zip" in penstock.__file__, penstock.__file__
    spark = session(settings={"spark.ui.enabled": "false"})
    spark.dataSource.register(PenstockDataSource)
    with penstock.open(f"{directory}/source", segment_bytes=65536) as queue:
        for start in range(0, 3000, 500):  # a batch is in one segment
            queue.enqueue_batch([str(number) for number in range(start, start + 500)])
    frame = read(spark, f"{directory}/source", columns=["payload"])
    frame.repartition(2).write.format("penstock").mode("append").save(f"{directory}/sink")
    found = read(spark, f"{directory}/sink", columns=["payload"]).collect()
    assert sorted(int(row.payload) for row in found) == list(range(3000))
    (archived,) = archive(spark, f"{directory}/source", f"{directory}/archive")
    assert archived.rows > 0

    def used(_: int) -> tuple[str, bool]:
        return codec.IMPLEMENTATION, ".zip" in str(penstock.__file__)

    executors = set(spark.sparkContext.parallelize(range(4), 4).map(used).collect())
    print(f"copied {len(found)}, executors {executors}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
