"""Redrive: dead letters chosen by SQL, put back as they are or changed first."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME
from penstock.spark.jobs.inputs import check_redrive
from penstock.spark.writers import open_to_change

_TAKEN = ("payload", "priority", "key", "headers", "content_type", "expires_at", "max_attempts")
_COLUMNS = ",".join(("seq", "id", "timestamp", *_TAKEN, "attempts", "reason", "last_failure"))


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """Dead letters before, chosen, and after."""

    dead_before: int
    chosen: int
    redriven: int  # made ready again, as they were
    replaced: int  # published anew, changed; the old ones discarded
    dead_after: int


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
    """Choose dead letters with a SQL condition (over the columns of the table `state`).

    Without `transform` they become ready again, attempts counted anew. With it (a function of a
    DataFrame, or a SQL expression for the payload) changed messages are published in their
    place, and then the old ones are discarded: should the job die in between, running it again
    publishes nothing twice.
    """
    place = check_redrive(path, queue, group)
    dead = (
        spark.read.format("penstock")
        .options(**place.options())
        .option("table", "state")
        .option("group", group)
        .option("columns", f"state,{_COLUMNS}")
        .load()
        .where("state = 'dead'")
        .drop("state")
    )
    selected = dead if where is None else dead.where(where)
    failed = f.expr("unix_micros(last_failure)")
    letters = selected.select("id", "attempts", failed).orderBy("id").collect()
    ids = [row.id for row in letters]
    before = dead.count()
    if dry_run or not ids:
        return RedriveResult(before, len(ids), 0, 0, before)
    if transform is None:
        with open_to_change(place) as it:
            count = it.redrive(ids, group=group)
            return RedriveResult(before, len(ids), count, 0, it.stats().groups[group].dead)
    # What is published is fixed by the ids that were chosen: the name of the transaction has them.
    fixed = selected.where(f.col("id").isin(ids))
    changed = _changed(fixed, transform)
    replaced = changed.count()
    # These letters, as they failed now: chosen otherwise, or dead again, they are others.
    digest = sha256(repr([tuple(row) for row in letters]).encode()).hexdigest()
    name = f"redrive {digest[:32]} of {len(ids)} in {group}"
    writer = changed.write.format("penstock").mode("append").options(**place.options())
    writer.option("txnAppId", name).option("txnVersion", "1").save()
    with open_to_change(place) as it:
        it.discard(ids, group=group)
        return RedriveResult(before, len(ids), 0, replaced, it.stats().groups[group].dead)


def _changed(frame: DataFrame, transform: Callable[[DataFrame], DataFrame] | str) -> DataFrame:
    if isinstance(transform, str):
        made = frame.withColumn("payload", f.expr(transform))
    else:
        made = transform(frame)
        if not isinstance(made, DataFrame):
            raise InvalidInput("transform must give a DataFrame back")
    kept = [name for name in _TAKEN if name in made.columns]
    return made.select(*kept)
