"""Archive a queue as Parquet, verify it, query it together with the live log, and restore it."""

from tempfile import TemporaryDirectory

import penstock
from penstock.spark import session
from penstock.spark.jobs import archive, audit, live_and_archived, restore

with TemporaryDirectory() as directory:
    path, target = f"{directory}/orders", f"{directory}/archive"
    with penstock.open(path, segment_bytes=8192) as queue:
        for number in range(10):
            queue.enqueue_batch([f"order {number} {n}" for n in range(100)])
        queue.dequeue_batch(800)

    spark = session("local[2]")
    (made,) = archive(spark, path, target)
    print("archived some, not what is being written:", 0 < made.rows < 1000)
    print("sound:", audit(spark, path, archive=target).is_sound)

    with penstock.open(path) as queue:
        queue.compact()  # what is done with goes from the queue's own disk
    live = spark.read.format("penstock").option("archive", "none").load(path).count()
    print("still in the live log: less than before:", live < 1000)
    print("live and archive together:", live_and_archived(spark, path, target).count())

    count = restore(spark, target, f"{directory}/restored", first_seq=1, end_seq=101)
    with penstock.open(f"{directory}/restored") as queue:
        print("restored:", count, "first:", queue.peek()[0].payload.decode())
    spark.stop()
