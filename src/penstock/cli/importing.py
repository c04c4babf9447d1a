"""`penstock import`: move the messages of another queue into a new one."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.formatting import number, printable
from penstock.cli.options import AsJson, argument, option
from penstock.cli.terminal import print_json, print_line, print_stderr, progress_bar
from penstock.extras import requires_extra

if TYPE_CHECKING:
    from penstock.importing.record import Source

import_app = typer.Typer(
    name="import",
    no_args_is_help=True,
    help="Move the messages of another queue into a new one. Stop its programs first.",
)

Target = Annotated[str, argument("TARGET", "Directory of the new queue.")]
Skip = Annotated[
    bool,
    option("Leave out messages that Penstock refuses, instead of stopping.", "--skip-refused"),
]
Queue = Annotated[
    str | None, option("Which queue, if the source has several.", "--queue", metavar="NAME")
]
_SHOWN_PROBLEMS = 20


@import_app.command()
def ledgerq(
    source: Annotated[str, argument("DIR", "Directory of LedgerQ.")],
    target: Target,
    dlq: Annotated[
        str | None,
        option("Its dead-letter directory. Default: DIR-dlq or DIR/dlq.", metavar="DIR"),
    ] = None,
    skip_refused: Skip = False,
    json: AsJson = False,
) -> None:
    """Import a directory of LedgerQ.

    Times, headers, priorities (0, 1, 2 become 0, 5, 9), expiry, the read
    position, failed deliveries and dead letters are kept.
    """
    from penstock.importing.ledgerq import LedgerQDirectory

    _import(LedgerQDirectory(source, dead_path=dlq), target, skip_refused, json)


@import_app.command("persist-queue")
def persist_queue(
    source: Annotated[str, argument("PATH", "Directory of the queue, or its file data.db.")],
    target: Target,
    queue: Queue = None,
    skip_refused: Skip = False,
    json: AsJson = False,
) -> None:
    """Import a queue of persist-queue that is stored in SQLite.

    Payloads stay as they are stored: pickles by default.
    """
    from penstock.importing.persist_queue import PersistQueueDatabase

    _import(PersistQueueDatabase(source, queue=queue), target, skip_refused, json)


@import_app.command()
def huey(
    source: Annotated[str, argument("FILE", "SQLite file of huey.")],
    target: Target,
    queue: Queue = None,
    skip_refused: Skip = False,
    json: AsJson = False,
) -> None:
    """Import the waiting and scheduled tasks of huey from SQLite.

    Payloads stay as they are stored: pickles by default.
    """
    from penstock.importing.huey import HueyDatabase

    _import(HueyDatabase(source, queue=queue), target, skip_refused, json)


@import_app.command()
def beanstalkd(
    source: Annotated[str, argument("DIR", "Binlog directory of beanstalkd (-b).")],
    target: Target,
    queue: Annotated[str | None, option("The tube, if there are several.", metavar="TUBE")] = None,
    skip_refused: Skip = False,
    json: AsJson = False,
) -> None:
    """Import the jobs of a tube from beanstalkd's binlog.

    Times, delays, priorities, failed deliveries and buried jobs are kept.
    """
    with requires_extra("server"):
        from penstock.importing.beanstalkd import BeanstalkdLog

    _import(BeanstalkdLog(source, queue=queue), target, skip_refused, json)


@import_app.command()
def redis(
    source: Annotated[str, argument("URL", "The server: redis://HOST:PORT/DATABASE.")],
    key: Annotated[str, argument("KEY", "A list or a stream: celery, rq:queue:default, ….")],
    target: Target,
    pop: Annotated[
        Literal["left", "right"] | None,
        option("End of a plain list at which consumers take. Default: left."),
    ] = None,
    skip_refused: Skip = False,
    json: AsJson = False,
) -> None:
    """Import a list or a stream of Redis, or a queue of Celery or RQ there."""
    with requires_extra("redis"):
        import redis as _  # noqa: F401
    from penstock.importing.redis_keys import RedisKey

    _import(RedisKey(source, key, pop=pop), target, skip_refused, json)


def _import(source: "Source", target: str, skip_refused: bool, as_json: bool) -> None:
    from penstock.importing.writing import import_queue

    with progress_bar() as progress:
        task = progress.add_task("importing", total=None)
        made = import_queue(
            source,
            target,
            skip_refused=skip_refused,
            on_message=lambda: progress.advance(task),
        )
    if as_json:
        print_json(
            {
                "waiting": made.waiting,
                "done": made.done,
                "dead": made.dead,
                "refused": made.refused,
                "problems": list(made.problems),
            }
        )
        return
    for problem in made.problems[:_SHOWN_PROBLEMS]:
        print_stderr(printable(problem))
    if len(made.problems) > _SHOWN_PROBLEMS:
        print_stderr(f"… and {number(len(made.problems) - _SHOWN_PROBLEMS)} more")
    print_line(
        f"{number(made.waiting)} waiting, {number(made.done)} done and {number(made.dead)} dead "
        f"messages are in {printable(target)}"
        + (f"; {number(made.refused)} were refused" if made.refused else "")
    )
