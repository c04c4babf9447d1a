"""The nightly job by Penstock's own schedules.

    python -m examples.pipeline.nightly /srv/lake

The schedule is on record in the queue `shop/nightly` of the broker. Each tick is a message there,
published once, over restarts and kills. This worker runs the job for it. A job that finds a
difference is a failed message: it is retried, and in the end it is a dead letter to be looked at.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import penstock
from examples.pipeline.layout import NIGHTLY, load
from penstock import AnyQueue
from penstock.worker import Failed, Worker

CRON = "0 2 * * *"  # two hours after midnight the streams have certainly passed it
RETRY_S = 600.0
SCHEDULE = "reconcile"

Job = Callable[[datetime], bool]  # compares what was published before; False: there are differences


def put_schedule(queue: AnyQueue, *, cron: str = CRON) -> None:
    """Put the schedule on record. The same again changes nothing."""
    # Of nights on which no broker ran, one is made up for: it compares everything before it.
    queue.put_schedule(penstock.Schedule(SCHEDULE, b"", cron=cron, misfire="once"))


def due_at(message: penstock.LeasedMessage) -> datetime:
    """Return the time of the tick that a message stands for."""
    return datetime.fromisoformat(message.headers["schedule.due_at"])


def handler(job: Job) -> Callable[[penstock.LeasedMessage], None]:
    """Return a worker's function: the job, up to the midnight before its tick."""

    def handle(message: penstock.LeasedMessage) -> None:
        midnight = due_at(message).astimezone(UTC).replace(hour=0, minute=0, second=0)
        if not job(midnight.replace(microsecond=0)):
            raise Failed(f"the tables do not agree, up to {midnight}", delay_s=RETRY_S)

    return handle


def command(lake: str, master: str) -> Job:
    """Return the job as a process of its own: a JVM that lives only while it works."""

    def job(until: datetime) -> bool:
        line = ("-m", "examples.pipeline.reconcile", lake, "--until", until.isoformat())
        done = subprocess.run(
            [sys.executable, *line, "--master", master], cwd=Path(__file__).parents[2], check=False
        )
        return done.returncode == 0

    return job


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run the nightly job at its ticks.")
    parser.add_argument("lake", help="directory of the tables")
    parser.add_argument("--cron", default=CRON, help=f"when, in UTC (default: {CRON})")
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    given = parser.parse_args(arguments)
    with penstock.open(f"{load(given.lake).url}/{NIGHTLY}") as queue:
        put_schedule(queue, cron=given.cron)
        Worker(queue, handler(command(given.lake, given.master))).run()


if __name__ == "__main__":
    main()
