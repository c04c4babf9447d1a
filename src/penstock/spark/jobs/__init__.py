"""Jobs over queues: each is a function, a command of `penstock spark`, and an example.

The `check_…` functions check the arguments of a job without Spark: a command calls them before it
starts a JVM.
"""

from penstock.spark.archive_stores import shown_place
from penstock.spark.jobs.archive import archive, check_archive
from penstock.spark.jobs.audit import audit, check_audit
from penstock.spark.jobs.bridge import (
    check_from_kafka,
    check_kafka,
    check_to_kafka,
    from_kafka,
    to_kafka,
)
from penstock.spark.jobs.keep_archive import check_compact, check_retain, compact, retain
from penstock.spark.jobs.queries import check_query
from penstock.spark.jobs.redrive import check_redrive, redrive
from penstock.spark.jobs.report import check_report, report
from penstock.spark.jobs.restore import archived, check_restore, live_and_archived, restore
from penstock.spark.jobs.stream import check_stream, stream
from penstock.spark.table_formats import check_asked as check_tables

__all__ = [
    "archive",
    "archived",
    "audit",
    "check_archive",
    "check_audit",
    "check_compact",
    "check_from_kafka",
    "check_kafka",
    "check_query",
    "check_redrive",
    "check_report",
    "check_restore",
    "check_retain",
    "check_stream",
    "check_tables",
    "check_to_kafka",
    "compact",
    "from_kafka",
    "live_and_archived",
    "redrive",
    "report",
    "restore",
    "retain",
    "shown_place",
    "stream",
    "to_kafka",
]
