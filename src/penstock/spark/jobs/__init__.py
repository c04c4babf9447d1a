"""Jobs over queues: each a function here, a command of `penstock spark`, and an example."""

from penstock.spark.jobs.archive import archive
from penstock.spark.jobs.audit import audit
from penstock.spark.jobs.redrive import redrive
from penstock.spark.jobs.report import report
from penstock.spark.jobs.restore import archived, live_and_archived, restore
from penstock.spark.jobs.stream import stream

__all__ = [
    "archive",
    "archived",
    "audit",
    "live_and_archived",
    "redrive",
    "report",
    "restore",
    "stream",
]
