"""Report on a queue: an HTML page for people, figures for programs."""

from pathlib import Path
from tempfile import TemporaryDirectory

import penstock
from penstock.spark import session
from penstock.spark.jobs import report

with TemporaryDirectory() as directory:
    with penstock.open(f"{directory}/orders", max_attempts=1) as queue:
        queue.enqueue_batch([f"order {number}" for number in range(100)])
        for job in queue.lease(100):
            if job.seq % 25 == 0:
                queue.nack(job, "no such customer")
            else:
                queue.ack(job)

    spark = session("local[2]")
    (made,) = report(spark, f"{directory}/orders", f"{directory}/report", sla_s=3600)
    print("done:", made.totals["acked"], "dead:", made.totals["dead"])
    print("why:", made.reasons[0]["reason"], made.reasons[0]["times"])
    page = Path(f"{directory}/report/report.html").read_text()
    print("a page by itself:", page.startswith("<!doctype html>") and "src=" not in page)
    spark.stop()
