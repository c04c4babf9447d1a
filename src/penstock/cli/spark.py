"""`penstock spark …`: the jobs over queues, run on Spark. Needs the extra `spark`."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from penstock.cli.extras import needing
from penstock.cli.parameters import MAIN, AsJson, InGroup, QueuePath
from penstock.cli.spark_runs import Metrics, job_run
from penstock.cli.terminal import say, show_table, table, write_json
from penstock.cli.words import number, plain, size, time_of

app = typer.Typer(
    name="spark",
    no_args_is_help=True,
    help="Jobs on Spark: archive, restore, report, audit, redrive, stream.",
)

Master = Annotated[
    str,
    typer.Option(metavar="URL", help="Where Spark runs: local[2], spark://host:7077, yarn, …"),
]
OneQueue = Annotated[
    str | None,
    typer.Option(
        "--queue", "-q", metavar="NAMESPACE/NAME", help="One queue of a broker's data directory."
    ),
]
Archive = Annotated[
    str, typer.Argument(metavar="ARCHIVE", help="The archive's directory.", show_default=False)
]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="Where it goes.", show_default=False)]
From = Annotated[
    float | None, typer.Option("--since", metavar="TIME", parser=time_of, help="From then on.")
]
To = Annotated[
    float | None, typer.Option("--until", metavar="TIME", parser=time_of, help="Before then.")
]
LOCAL = "local[*]"


def _moment(time: float | None) -> datetime | None:
    return None if time is None else datetime.fromtimestamp(time, UTC)


@app.command()
def archive(
    path: QueuePath,
    target: Archive,
    queue: OneQueue = None,
    delta: Annotated[
        bool, typer.Option("--delta", help="Keep a Delta log of the archive, too.")
    ] = False,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Archive sealed segments as Parquet, verified by content; only what is not archived yet."""
    with needing("spark"):
        from penstock.spark import jobs
        from penstock.spark.jobs import inputs

    if delta:
        with needing("delta"):  # before Spark is started
            import deltalake  # noqa: F401
    with job_run(
        "archive", master, metrics, lambda: inputs.check_archive(path, target, queue)
    ) as run:
        results = jobs.archive(
            run.spark, path, target, queue=queue, delta=delta, on_progress=run.on_progress
        )
        run.result = [asdict(result) for result in results]
    if json:
        write_json([asdict(result) for result in results])
        return
    for result in results:
        say(
            f"{plain(result.queue)}: {number(result.rows, 'message')} archived in "
            f"{number(result.files, 'file')} ({size(result.size_bytes)}); the archive reaches to "
            f"seq {number(result.next_seq - 1)}."
        )


@app.command()
def restore(
    target_archive: Archive,
    target: Target,
    queue: OneQueue = None,
    target_queue: Annotated[
        str | None, typer.Option(metavar="NAMESPACE/NAME", help="The queue to restore to.")
    ] = None,
    first_seq: Annotated[int | None, typer.Option(min=1, help="From this seq on.")] = None,
    end_seq: Annotated[int | None, typer.Option(min=1, help="Before this seq.")] = None,
    first_id: Annotated[
        str | None, typer.Option(metavar="ID", help="From the message with this id on.")
    ] = None,
    since: From = None,
    until: To = None,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Put archived messages into a queue, by seq, id or time; the same range only once."""
    with needing("spark"):
        from penstock.spark import jobs
        from penstock.spark.jobs import inputs

    wanted: dict[str, Any] = {
        "queue": queue,
        "first_seq": first_seq,
        "end_seq": end_seq,
        "first_id": first_id,
        "since": _moment(since),
        "until": _moment(until),
    }

    def check() -> None:
        inputs.check_restore(target_archive, **wanted)
        inputs.check_target(target, target_queue)

    with job_run("restore", master, metrics, check) as run:
        count = jobs.restore(run.spark, target_archive, target, target_queue=target_queue, **wanted)
        run.result = {"restored": count}
    if json:
        write_json({"restored": count})
    else:
        say(f"{number(count, 'message')} restored.")


@app.command()
def report(
    path: QueuePath,
    target: Target,
    queue: OneQueue = None,
    group: InGroup = MAIN,
    sla: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="A longer wait is a breach.")
    ] = 60.0,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Write a report on how queues were worked: an HTML page that opens offline, JSON, Parquet."""
    with needing("spark"):
        from penstock.spark import jobs
        from penstock.spark.jobs import inputs

    with job_run(
        "report", master, metrics, lambda: inputs.check_report(path, target, queue, group)
    ) as run:
        reports = jobs.report(run.spark, path, target, queue=queue, group=group, sla_s=sla)
        run.result = {one.queue: one.totals for one in reports}
    if json:
        write_json([asdict(one) for one in reports])
        return
    for one in reports:
        say(
            f"{plain(one.queue)}: {number(one.totals['published'])} published, "
            f"{number(one.totals['acked'])} done, {number(one.totals['dead'])} dead."
        )
    say(f"The report is {target}/report.html.")


@app.command()
def audit(
    path: QueuePath,
    queue: OneQueue = None,
    archive: Annotated[
        str | None, typer.Option(metavar="ARCHIVE", help="Its archive too, and against the queue.")
    ] = None,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Read everything again: checksums, gaps, order, events, the archive. Exits with 1 if wrong."""
    with needing("spark"):
        from penstock.spark import jobs
        from penstock.spark.jobs import inputs

    with job_run("audit", master, metrics, lambda: inputs.check_audit(path, queue, archive)) as run:
        result = jobs.audit(
            run.spark, path, queue=queue, archive=archive, on_progress=run.on_progress
        )
        run.result = {"sound": result.is_sound, **asdict(result)}
    if json:
        write_json({"sound": result.is_sound, **asdict(result)})
    else:
        _show_audit(result)
    if not result.is_sound:
        raise typer.Exit(1)


def _show_audit(result: Any) -> None:
    if result.problems:
        made = table("queue", "what", "where", "count", "detail", right=["count"], rest="detail")
        for one in result.problems:
            made.add_row(one.queue, one.what, one.where, number(one.count), plain(one.detail))
        show_table(made)
    say(
        f"{'Sound' if result.is_sound else number(len(result.problems), 'problem')}: "
        f"{number(result.messages, 'message')}, {number(result.events, 'event')}, "
        f"{number(result.archived_rows, 'archived message')}, {size(result.bytes_read)} read."
    )


@app.command()
def redrive(
    path: QueuePath,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="Which ones: a condition, as \"reason like '%timeout%'\"."
        ),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Publish changed ones instead: the new payload."),
    ] = None,
    queue: OneQueue = None,
    group: InGroup = MAIN,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    master: Master = LOCAL,
    metrics: Metrics = None,
    json: AsJson = False,
) -> None:
    """Put dead letters back, chosen and perhaps changed by SQL."""
    with needing("spark"):
        from penstock.spark import jobs
        from penstock.spark.jobs import inputs

    with job_run(
        "redrive", master, metrics, lambda: inputs.check_redrive(path, queue, group)
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
    if json:
        write_json(asdict(result))
        return
    say(
        f"{number(result.chosen)} of {number(result.dead_before, 'dead letter')} chosen: "
        f"{number(result.redriven)} redriven, {number(result.replaced)} replaced; "
        f"{number(result.dead_after)} left."
    )


@app.command()
def stream(
    path: QueuePath,
    target: Target,
    checkpoint: Annotated[
        str, typer.Option(metavar="PLACE", help="Where the query keeps how far it is.")
    ],
    to: Annotated[str, typer.Option(help="parquet, console or queue.")] = "parquet",
    queue: OneQueue = None,
    target_queue: Annotated[
        str | None, typer.Option(metavar="NAMESPACE/NAME", help="The queue to write to.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Only what is there now, then end.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How often a batch is made.")
    ] = 1.0,
    master: Master = LOCAL,
    metrics: Metrics = None,
) -> None:
    """Copy a queue to Parquet, the console or another queue, as it grows; stop with Ctrl-C."""
    with needing("spark"):
        from penstock.spark import jobs
        from penstock.spark.jobs import inputs

    with job_run(
        "stream",
        master,
        metrics,
        lambda: inputs.check_stream(path, target, to, queue, target_queue),
    ) as run:
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
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
        done = query.recentProgress
        run.result = {"batches": len(done), "rows": sum(one["numInputRows"] for one in done)}
