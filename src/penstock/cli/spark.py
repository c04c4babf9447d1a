"""`penstock spark …`: jobs over queues, run on Spark. Needs the extra `spark`."""

from dataclasses import asdict
from datetime import UTC, datetime
from types import ModuleType
from typing import Annotated, Any

import typer

from penstock.cli.formatting import number, printable, size
from penstock.cli.options import (
    MAIN,
    AsJson,
    InGroup,
    QueuePath,
    argument,
    duration_option,
    option,
    parse_size,
    time_option,
)
from penstock.cli.spark_run import Metrics, count_batches, job_run
from penstock.cli.terminal import out, print_json, print_result, print_text, table
from penstock.errors import InvalidInput
from penstock.extras import requires_extra

app = typer.Typer(
    name="spark",
    no_args_is_help=True,
    help="Jobs on Spark: archive, restore, compact, retain, report, audit, redrive, stream, Kafka.",
)

LOCAL = "local[*]"
Master = Annotated[
    str, option("Where Spark runs: local[2], spark://host:7077, yarn, …", metavar="URL")
]
OneQueue = Annotated[
    str | None,
    option("One queue of a broker's data directory.", "--queue", "-q", metavar="NAMESPACE/NAME"),
]
TargetQueue = Annotated[
    str | None, option("Queue of the broker that is written to.", metavar="NAMESPACE/NAME")
]
Checkpoint = Annotated[str, option("Directory where Spark stores its progress.", metavar="DIR")]
Once = Annotated[bool, option("Copy the messages that exist now, then exit.", "--once")]
Interval = Annotated[float, option("Time between two batches.", metavar="SECONDS", min=0)]
Servers = Annotated[str, argument("SERVERS", "Kafka's brokers: host:port, or several with commas.")]
Topic = Annotated[str, argument("TOPIC", "Topic of Kafka.")]
KafkaOptions = Annotated[
    list[str] | None,
    option("Option of Spark's Kafka connector; may be repeated.", "--option", metavar="NAME=VALUE"),
]
Packages = Annotated[
    str | None, option("Packages that Spark fetches: the Kafka connector.", metavar="COORDINATES")
]
Jars = Annotated[str | None, option("Jars for Spark, instead of packages.", metavar="FILES")]
Archive = Annotated[str, argument("ARCHIVE", "Directory or URL of the archive.")]
Grace = Annotated[
    float, duration_option("Delete a file this long after it left the archive.", "--grace")
]
DryRun = Annotated[bool, option("Count them; change nothing.", "--dry-run")]
Since = Annotated[float | None, time_option("Only messages published at or after this time.")]
Until = Annotated[float | None, time_option("Only messages published before this time.")]


def _spark_jobs() -> ModuleType:
    """Import the jobs, with the checks of their arguments; PySpark is not imported before."""
    with requires_extra("spark"):
        from penstock.spark import jobs
    return jobs


def _utc(time: float | None) -> datetime | None:
    return None if time is None else datetime.fromtimestamp(time, UTC)


@app.command()
def archive(
    path: QueuePath,
    target: Archive,
    queue: OneQueue = None,
    delta: Annotated[bool, option("Also keep a Delta log of the archive.", "--delta")] = False,
    iceberg: Annotated[
        str | None, option("Also keep Iceberg tables, in this catalog.", metavar="CATALOG")
    ] = None,
    accept_gap: Annotated[
        bool, option("Go on behind messages that were removed unarchived.", "--accept-gap")
    ] = False,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Archive new sealed segments as Parquet, and verify the content of the archive."""
    jobs = _spark_jobs()
    if delta:
        with requires_extra("delta"):  # before Spark is started
            import deltalake  # noqa: F401

    def check() -> None:
        jobs.check_tables(delta=delta, iceberg=iceberg)
        jobs.check_archive(path, target, queue)

    with job_run("archive", master, metrics, check) as run:
        results = jobs.archive(
            run.spark,
            path,
            target,
            queue=queue,
            delta=delta,
            iceberg=iceberg,
            accept_gap=accept_gap,
            on_progress=run.on_progress,
        )
        run.result = [asdict(result) for result in results]
    if json:
        print_json(run.result)
        return
    for result in results:
        print_text(
            f"{printable(result.queue)}: {number(result.rows, 'message')} archived in "
            f"{number(result.files, 'file')} ({size(result.size_bytes)}); the archive ends at "
            f"seq {number(result.next_seq - 1)}."
        )
        if not result.files:
            print_text(
                "Nothing new was sealed. A segment is sealed when it is full (segment_bytes) or "
                "old enough (segment_age_s)."
            )
        if result.lost:
            print_text(
                f"{printable(result.queue)}: {number(result.lost, 'message')} had been removed "
                f"before they were archived. The gap is on record."
            )


@app.command()
def restore(
    target_archive: Archive,
    target: Annotated[str, argument("TARGET", "Directory or URL to restore to.")],
    queue: OneQueue = None,
    target_queue: TargetQueue = None,
    first_seq: Annotated[int | None, option("First seq.", min=1)] = None,
    end_seq: Annotated[int | None, option("Stop before this seq.", min=1)] = None,
    first_id: Annotated[
        str | None, option("Start at the message with this id.", metavar="ID")
    ] = None,
    since: Since = None,
    until: Until = None,
    time_header: Annotated[
        str | None, option("Header for the original time of publication.", metavar="NAME")
    ] = None,
    skip_removed: Annotated[
        bool, option("Skip messages that the archive does not have any more.", "--skip-removed")
    ] = False,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Publish archived messages to a queue, by seq, id or time. A range is restored only once."""
    jobs = _spark_jobs()
    wanted: dict[str, Any] = {
        "queue": queue,
        "first_seq": first_seq,
        "end_seq": end_seq,
        "first_id": first_id,
        "since": _utc(since),
        "until": _utc(until),
        "fail_on_data_loss": not skip_removed,
    }

    def check() -> None:
        jobs.check_restore(target_archive, target, target_queue, time_header=time_header, **wanted)

    with job_run("restore", master, metrics, check) as run:
        count = jobs.restore(
            run.spark,
            target_archive,
            target,
            target_queue=target_queue,
            time_header=time_header,
            **wanted,
        )
        run.result = {"restored": count}
    print_result(json, run.result, f"{number(count, 'message')} restored.")


@app.command()
def compact(
    archive: Archive,
    queue: OneQueue = None,
    file_size: Annotated[
        int, option("Maximum size of a merged file.", metavar="SIZE", parser=parse_size)
    ] = 128 << 20,
    grace: Grace = 86_400.0,
    dry_run: DryRun = False,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Merge small files of an archive, and compare the contents. Delete files left over."""
    jobs = _spark_jobs()

    def check() -> None:
        jobs.check_compact(archive, queue, file_bytes=file_size, grace_s=grace)

    with job_run("compact", master, metrics, check) as run:
        results = jobs.compact(
            run.spark,
            archive,
            queue=queue,
            file_bytes=file_size,
            grace_s=grace,
            dry_run=dry_run,
            on_progress=run.on_progress,
        )
        run.result = [asdict(result) for result in results]
    if json:
        print_json(run.result)
        return
    for one in results:
        print_text(
            f"{printable(one.queue)}: {number(one.merged, 'file')} with "
            f"{number(one.rows, 'message')} {'would be ' if dry_run else ''}merged into "
            f"{number(one.files)}; {number(one.swept)} deleted."
        )


@app.command()
def retain(
    archive: Archive,
    queue: OneQueue = None,
    max_age: Annotated[
        float | None, duration_option("Remove files whose newest message is older.", "--max-age")
    ] = None,
    max_bytes: Annotated[
        int | None,
        option(
            "Remove the oldest files of a queue beyond this size.",
            metavar="SIZE",
            parser=parse_size,
        ),
    ] = None,
    grace: Grace = 86_400.0,
    dry_run: DryRun = False,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Remove the oldest files of an archive, by age or by size."""
    jobs = _spark_jobs()
    if max_age is None and max_bytes is None:
        raise InvalidInput("give --max-age or --max-bytes, or both: otherwise nothing is too old")
    limits: dict[str, Any] = {"max_age_s": max_age, "max_bytes": max_bytes, "grace_s": grace}
    with job_run(
        "retain", master, metrics, lambda: jobs.check_retain(archive, queue, **limits)
    ) as run:
        results = jobs.retain(run.spark, archive, queue=queue, dry_run=dry_run, **limits)
        run.result = [asdict(result) for result in results]
    if json:
        print_json(run.result)
        return
    for one in results:
        print_text(
            f"{printable(one.queue)}: {number(one.files, 'file')} with "
            f"{number(one.rows, 'message')} ({size(one.size_bytes)}) "
            f"{'would be ' if dry_run else ''}removed; the archive begins at seq "
            f"{number(one.first_seq)}; {number(one.swept)} deleted."
        )


@app.command()
def report(
    path: QueuePath,
    target: Annotated[str, argument("TARGET", "Directory or URL of the report.")],
    queue: OneQueue = None,
    group: InGroup = MAIN,
    sla: Annotated[float, option("A longer wait is a breach.", metavar="SECONDS", min=0)] = 60.0,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Write a report on waiting times, failures and throughput: HTML, JSON and Parquet."""
    jobs = _spark_jobs()
    with job_run(
        "report", master, metrics, lambda: jobs.check_report(path, target, queue, group, sla)
    ) as run:
        reports = jobs.report(run.spark, path, target, queue=queue, group=group, sla_s=sla)
        run.result = {one.queue: one.totals for one in reports}
    if json:
        print_json([asdict(one) for one in reports])
        return
    for one in reports:
        print_text(
            f"{printable(one.queue)}: {number(one.totals['published'])} published, "
            f"{number(one.totals['acked'])} done, {number(one.totals['dead'])} dead."
        )
    print_text(f"The report is {jobs.shown_place(target)}/report.html.")


@app.command()
def audit(
    path: QueuePath,
    queue: OneQueue = None,
    archive: Annotated[
        str | None, option("Also audit this archive, and compare the two.", metavar="ARCHIVE")
    ] = None,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Check all checksums, gaps, order, events and the archive. Exits with 1 if any is wrong."""
    jobs = _spark_jobs()
    with job_run("audit", master, metrics, lambda: jobs.check_audit(path, queue, archive)) as run:
        result = jobs.audit(
            run.spark, path, queue=queue, archive=archive, on_progress=run.on_progress
        )
        run.result = {"sound": result.is_sound, **asdict(result)}
    if json:
        print_json(run.result)
    else:
        _print_audit(result)
    if not result.is_sound:
        raise typer.Exit(1)


def _print_audit(result: Any) -> None:
    for one in result.gaps:
        print_text(f"{printable(one.queue)}: {one.detail}; the gap is on record in {one.where}.")
    if result.problems:
        made = table("queue", "what", "where", "count", "detail", right=["count"], rest="detail")
        for one in result.problems:
            made.add_row(one.queue, one.what, one.where, number(one.count), printable(one.detail))
        out.print(made)
    print_text(
        f"{'Sound' if result.is_sound else number(len(result.problems), 'problem')}: "
        f"{number(result.messages, 'message')}, {number(result.events, 'event')}, "
        f"{number(result.archived_rows, 'archived message')}, {size(result.bytes_read)} read."
    )


@app.command()
def redrive(
    path: QueuePath,
    where: Annotated[
        str | None, option("Condition, such as \"reason like '%timeout%'\".", metavar="SQL")
    ] = None,
    payload: Annotated[
        str | None, option("Publish new messages instead, with this payload.", metavar="SQL")
    ] = None,
    queue: OneQueue = None,
    group: InGroup = MAIN,
    dry_run: DryRun = False,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Make dead letters ready again: select them, and optionally change them, with SQL."""
    jobs = _spark_jobs()
    with job_run(
        "redrive", master, metrics, lambda: jobs.check_redrive(path, queue, group, payload)
    ) as run:
        result = jobs.redrive(
            run.spark,
            path,
            queue=queue,
            group=group,
            where=where,
            transform=payload,
            dry_run=dry_run,
        )
        run.result = asdict(result)
    sentence = (
        f"{number(result.chosen)} of {number(result.dead_before, 'dead letter')} chosen: "
        f"{number(result.redriven)} redriven, {number(result.replaced)} replaced; "
        f"{number(result.dead_after)} left."
    )
    print_result(json, run.result, sentence)


@app.command()
def stream(
    path: QueuePath,
    target: Annotated[
        str, argument("TARGET", "Directory or URL; for Iceberg, catalog.namespace.table.")
    ],
    checkpoint: Checkpoint,
    to: Annotated[str, option("parquet, delta, iceberg, console or queue.")] = "parquet",
    queue: OneQueue = None,
    target_queue: TargetQueue = None,
    once: Once = False,
    interval: Interval = 1.0,
    master: Master = LOCAL,
    metrics: Metrics = None,
) -> None:
    """Copy new messages to Parquet, a table, the console or another queue, until Ctrl-C."""
    jobs = _spark_jobs()

    def check() -> None:
        jobs.check_query(checkpoint, interval)
        jobs.check_stream(path, target, to, queue, target_queue)

    with job_run("stream", master, metrics, check) as run:
        query = jobs.stream(
            run.spark,
            path,
            target,
            to=to,
            checkpoint=checkpoint,
            queue=queue,
            target_queue=target_queue,
            once=once,
            interval_s=interval,
        )
        run.result = count_batches(query)


@app.command()
def from_kafka(
    servers: Servers,
    topic: Topic,
    target: Annotated[str, argument("TARGET", "Directory or URL of a queue.")],
    checkpoint: Checkpoint,
    target_queue: TargetQueue = None,
    keys: Annotated[str, option("What happens to keys: text, base64 or none.")] = "text",
    no_headers: Annotated[bool, option("Leave Kafka's headers out.", "--no-headers")] = False,
    options: KafkaOptions = None,
    packages: Packages = None,
    jars: Jars = None,
    once: Once = False,
    interval: Interval = 1.0,
    master: Master = LOCAL,
    metrics: Metrics = None,
) -> None:
    """Copy a topic of Kafka to a queue, each record once, until Ctrl-C."""
    jobs = _spark_jobs()

    def check() -> None:
        jobs.check_query(checkpoint, interval)
        jobs.check_kafka(servers, topic, keys, _pairs(options))
        jobs.check_from_kafka(target, target_queue)

    with job_run("from-kafka", master, metrics, check, _connector(packages, jars)) as run:
        query = jobs.from_kafka(
            run.spark,
            servers,
            topic,
            target,
            checkpoint=checkpoint,
            target_queue=target_queue,
            keys=keys,
            headers=not no_headers,
            once=once,
            interval_s=interval,
            options=_pairs(options),
        )
        run.result = count_batches(query)


@app.command()
def to_kafka(
    path: QueuePath,
    servers: Servers,
    topic: Topic,
    checkpoint: Checkpoint,
    queue: OneQueue = None,
    options: KafkaOptions = None,
    packages: Packages = None,
    jars: Jars = None,
    once: Once = False,
    interval: Interval = 1.0,
    master: Master = LOCAL,
    metrics: Metrics = None,
) -> None:
    """Copy a queue to a topic of Kafka, each message at least once, until Ctrl-C."""
    jobs = _spark_jobs()

    def check() -> None:
        jobs.check_query(checkpoint, interval)
        jobs.check_kafka(servers, topic, options=_pairs(options))
        jobs.check_to_kafka(path, queue)

    with job_run("to-kafka", master, metrics, check, _connector(packages, jars)) as run:
        query = jobs.to_kafka(
            run.spark,
            path,
            servers,
            topic,
            checkpoint=checkpoint,
            queue=queue,
            once=once,
            interval_s=interval,
            options=_pairs(options),
        )
        run.result = count_batches(query)


def _pairs(options: list[str] | None) -> dict[str, str]:
    """Return options given as NAME=VALUE."""
    pairs = [option.partition("=") for option in options or []]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise InvalidInput(f"--option is {name + equals!r}; it must be NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _connector(packages: str | None, jars: str | None) -> dict[str, str]:
    """Return the Spark settings that add the Kafka connector."""
    given = {"spark.jars.packages": packages, "spark.jars": jars}
    return {name: value for name, value in given.items() if value is not None}
