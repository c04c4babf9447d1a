"""Write to a queue atomically, and only once if the job is repeated."""

from tempfile import TemporaryDirectory

import penstock
from penstock.spark import session

with TemporaryDirectory() as directory:
    spark = session("local[2]")
    invoices = spark.range(1000).selectExpr(
        "concat('invoice ', id) AS payload",
        "cast(CASE WHEN id % 100 = 0 THEN 9 ELSE 5 END AS int) AS priority",
        "map('customer', cast(id % 7 AS string)) AS headers",
    )
    for attempt in ("first run", "again, after a crash, say"):
        (
            invoices.write.format("penstock")
            .mode("append")
            .option("txnAppId", "monthly invoices")
            .option("txnVersion", 202611)
            .save(f"{directory}/invoices")
        )
        with penstock.open(f"{directory}/invoices") as queue:
            print(f"{attempt}: {queue.stats().ready} messages")
    with penstock.open(f"{directory}/invoices") as queue, queue.lease_one() as job:
        assert job is not None
        print("most urgent first:", job.priority, job.payload.decode()[:8])
    spark.stop()
