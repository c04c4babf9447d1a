"""Read a queue as a table: columns, filters, SQL, and the events of its messages."""

from tempfile import TemporaryDirectory

import penstock
from penstock.spark import read, session

with TemporaryDirectory() as directory:
    with penstock.open(f"{directory}/orders") as queue:
        for number in range(100):
            queue.enqueue(f"order {number}", priority=9 if number % 10 == 0 else 5)
        queue.dequeue_batch(30)

    spark = session("local[2]")
    orders = spark.read.format("penstock").load(f"{directory}/orders")
    print("messages:", orders.count())
    print("urgent:", orders.where("priority = 9").count())
    few = read(spark, f"{directory}/orders", end_seq=3)  # of the files, no more than these are in
    first = few.selectExpr("cast(payload as string) as text").orderBy("text")
    print("first:", [row.text for row in first.collect()])

    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW states USING penstock "
        f"OPTIONS (path '{directory}/orders', table 'state', columns 'state')"
    )
    for row in spark.sql("SELECT state, count(*) AS n FROM states GROUP BY 1 ORDER BY 1").collect():
        print(f"{row.state}: {row.n}")
    spark.stop()
