"""Stream from one queue to another, exactly once, across restarts."""

from tempfile import TemporaryDirectory

import penstock
from penstock.spark import session
from penstock.spark.jobs import stream

with TemporaryDirectory() as directory:
    spark = session("local[2]")
    for day in ("monday", "tuesday"):
        with penstock.open(f"{directory}/orders") as queue:
            queue.enqueue_batch([f"{day} {number}" for number in range(50)])
        query = stream(
            spark,
            f"{directory}/orders",
            f"{directory}/copy",
            to="queue",
            checkpoint=f"{directory}/checkpoint",
            once=True,  # without it, the query goes on as the queue grows
        )
        query.awaitTermination()
        with penstock.open(f"{directory}/copy") as queue:
            print(f"after {day}: {queue.stats().ready} messages")
    spark.stop()
