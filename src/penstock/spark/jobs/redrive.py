"""Redrive: put dead letters back that match a SQL condition, as they are or changed."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.arrow.locations import QueueLocation, queues_of_job
from penstock.arrow.logs import groups_of
from penstock.arrow.selection import switch_in
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME
from penstock.spark.writers import open_for_change

_COPIED = (
    *("payload", "priority", "key", "headers"),
    *("content_type", "expires_at", "max_attempts", "tenant"),
)
_EXPIRY = "_penstock_expires_at_ns"  # exact; a function that changes letters need not know of it
_EXACT_EXPIRY = f"""CASE
    WHEN expires_at <=> timestamp_micros(div({_EXPIRY}, 1000)) THEN {_EXPIRY}
    WHEN expires_at IS NOT NULL THEN coalesce(
        try_multiply(unix_micros(expires_at), 1000L),
        raise_error('an expires_at is not between 1970 and 2262'))
    END"""
_COLUMNS = (
    *("state", "seq", "id", "timestamp", *_COPIED, "expires_at_ns"),
    *("attempts", "reason", "last_failure"),
)


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """Numbers of dead letters."""

    dead_before: int
    chosen: int
    redriven: int  # made ready again, unchanged
    replaced: int  # published again, changed; the old ones were discarded
    dead_after: int


def check_redrive(
    location: str, queue: str | None, group: str, transform: object = None
) -> QueueLocation:
    """Return the queue whose dead letters are meant. Raise InvalidInput for a bad `transform`."""
    is_sql = isinstance(transform, str) and transform.strip()
    if transform is not None and not is_sql and not callable(transform):
        raise InvalidInput(
            f"transform is {transform!r}; it must be a function of a DataFrame, or a SQL "
            f"expression for the payload"
        )
    found = queues_of_job(location, queue)
    if len(found) != 1:
        raise InvalidInput(f"name one queue: there are {', '.join(each.key for each in found)}")
    known = groups_of(found[0])
    if group not in known:
        raise InvalidInput(f"there is no group {group!r}; there are {', '.join(sorted(known))}")
    return found[0]


def redrive(
    spark: SparkSession,
    path: str,
    *,
    queue: str | None = None,
    group: str = MAIN_GROUP_NAME,
    where: str | None = None,
    transform: Callable[[DataFrame], DataFrame] | str | None = None,
    dry_run: bool = False,
) -> RedriveResult:
    """Redrive the dead letters that match `where`, a SQL condition on the table `state`.

    Without `transform` they become ready again, with attempts counted from 0. `transform` is a
    function of a DataFrame, or a SQL expression for the payload. The changed messages are
    published, and then the old ones are discarded. If the job dies in between, running it again
    publishes nothing twice.
    """
    switch_in("dry_run", dry_run)
    target = check_redrive(path, queue, group, transform)
    options = {**target.options(), "table": "state", "group": group, "columns": ",".join(_COLUMNS)}
    state = spark.read.format("penstock").options(**options).load()
    dead = state.where("state = 'dead'").drop("state")
    dead = dead.withColumnRenamed("expires_at_ns", _EXPIRY)
    selected = dead if where is None else dead.where(where)
    if isinstance(transform, str):
        _changed(selected, transform)  # Spark checks the SQL, also if there are no dead letters
    failed = f.expr("unix_micros(last_failure)")
    letters = selected.select("id", "attempts", failed).orderBy("id").collect()
    ids = [row.id for row in letters]
    before = dead.count()
    if dry_run or not ids:
        return RedriveResult(before, len(ids), 0, 0, before)
    if transform is None:
        with open_for_change(target) as it:
            count = it.redrive(ids, group=group)
            return RedriveResult(before, len(ids), count, 0, it.stats().groups[group].dead)
    changed = _changed(selected.where(f.col("id").isin(ids)), transform)
    replaced = changed.count()
    # The transaction's name stands for these letters and their last failures: other letters, or the
    # same ones dead again, are another transaction.
    digest = sha256(repr([tuple(row) for row in letters]).encode()).hexdigest()
    name = f"redrive {digest[:32]} of {len(ids)} in {group}"
    writer = changed.write.format("penstock").mode("append").options(**target.options())
    writer.option("txnAppId", name).option("txnVersion", "1").save()
    with open_for_change(target) as it:
        it.discard(ids, group=group)
        return RedriveResult(before, len(ids), 0, replaced, it.stats().groups[group].dead)


def _changed(frame: DataFrame, transform: Callable[[DataFrame], DataFrame] | str) -> DataFrame:
    if isinstance(transform, str):
        made = frame.withColumn("payload", f.expr(transform))
    else:
        made = transform(frame)
        if not isinstance(made, DataFrame):
            raise InvalidInput("transform must return a DataFrame")
    if "expires_at" in made.columns and _EXPIRY in made.columns:
        made = made.withColumn("expires_at_ns", f.expr(_EXACT_EXPIRY)).drop("expires_at")
    copied = (*_COPIED, "expires_at_ns")
    return made.select(*[name for name in copied if name in made.columns])
