"""Select dead letters with SQL and redrive them, unchanged or modified."""

from tempfile import TemporaryDirectory

import penstock
from penstock.spark import session
from penstock.spark.jobs import redrive

with TemporaryDirectory() as directory:
    path = f"{directory}/orders"
    with penstock.open(path, max_attempts=1) as queue:
        queue.enqueue_batch(["amount=-1", "amount=5", "amount=-3"])
        for job in queue.lease(3):
            reason = "negative amount" if b"-" in job.payload else "provider did not answer"
            queue.nack(job, reason)

    spark = session("local[2]")
    again = redrive(spark, path, where="reason LIKE '%did not answer%'")
    print(f"{again.redriven} tried again, {again.dead_after} left")
    mended = redrive(
        spark,
        path,
        where="reason = 'negative amount'",
        transform="replace(cast(payload AS string), '-', '')",
    )
    print(f"{mended.replaced} mended, {mended.dead_after} left")
    with penstock.open(path) as queue:
        print("ready:", sorted(message.payload.decode() for message in queue.browse("ready")))
    spark.stop()
