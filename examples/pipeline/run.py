"""Run the whole pipeline with faults, then reconcile it.

    python -m examples.pipeline.run --seconds 120

Shops post orders over HTTP while the driver of the streams is killed and the broker is killed and
started again, in turn. At the end the streams process what is left, and the nightly job compares
everything. Exits with 1 if anything is missing or double.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic
from typing import IO

from pyspark.sql import SparkSession

import penstock
from examples.pipeline import nightly, reconcile
from examples.pipeline.layout import BRONZE, NIGHTLY, SILVER, Layout
from examples.pipeline.shop import Published, Shop
from examples.pipeline.streams import SETTINGS
from examples.pipeline.tables import judged
from penstock.spark import session

_TICK_S = 60.0
START_S = 180.0  # the longest that a program may take to start, on a busy machine


class Broker:
    """`penstock serve`, on one port for all of its lives."""

    def __init__(self, data: Path, log: IO[bytes]) -> None:
        self._data = data
        self._log = log
        self._port = 0
        self._process = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock", "serve", str(self._data)),
                *("--host", "127.0.0.1", "--port", str(self._port), "--json"),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()  # once it listens
        if not line:
            raise RuntimeError(f"the broker did not start: see {self._log.name}")
        self._port = int(json.loads(line)["url"].rpartition(":")[2])
        return process

    def kill_and_start(self) -> None:
        self.kill()
        self._process = self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Driver:
    """The program of the streams, with its JVM and workers: a process group, killed as one."""

    def __init__(self, layout: Layout, log: IO[bytes], *, trigger_s: float) -> None:
        self._layout = layout
        self._trigger_s = trigger_s
        self._log = log
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        layout = self._layout
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "examples.pipeline.streams"),
                *("--url", layout.url, "--lake", layout.lake),
                *("--trigger-s", str(self._trigger_s)),
                *("--window-s", str(layout.window_s), "--lateness-s", str(layout.lateness_s)),
            ],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            text=True,
        )

    def wait_for(self, word: str) -> None:
        """Wait until it says a word."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if said != word:
            raise RuntimeError(f"the driver said {said!r}, not {word!r}: see {self._log.name}")

    def kill_and_start(self) -> None:
        self.kill()
        self._process = self._start()

    def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def drain(self) -> None:
        """Let it process what has been published, and end."""
        self._process.send_signal(signal.SIGTERM)
        self.wait_for("drained")
        self._process.wait(START_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run has shown."""

    result: reconcile.Reconciliation
    faults: dict[str, int]
    posted: int  # orders that the shops made, each acknowledged at least once
    lost_orders: int  # acknowledged, but neither in silver nor rejected
    unknown_orders: int  # in silver, but no shop made them
    wrongly_accepted: int  # bad or late, but in silver
    unanswered: int  # posts without an answer, which the shops repeated

    @property
    def is_exact(self) -> bool:
        wrong = self.lost_orders + self.unknown_orders + self.wrongly_accepted
        return self.result.is_exact and wrong == 0


def run(
    place: Path,
    *,
    seconds: float,
    faults_min: int,
    rate_per_s: float,
    window_s: int,
    lateness_s: int,
    trigger_s: float = 1,
    spark: SparkSession | None = None,
) -> Outcome:
    """Run the pipeline in a directory for some seconds, and at least `faults_min` faults."""
    with ExitStack() as stack:
        broker = Broker(place / "data", stack.enter_context((place / "broker.log").open("ab")))
        stack.callback(broker.kill)
        layout = Layout(
            url=broker.url, lake=str(place / "lake"), window_s=window_s, lateness_s=lateness_s
        )
        other = stack.enter_context((place / "driver.log").open("ab"))
        driver = Driver(layout, other, trigger_s=trigger_s)
        stack.callback(driver.kill)
        published = Published()
        with _shops(broker.url, published, rate_per_s, lateness_s) as closing:
            faults = _faults(broker, driver, seconds, faults_min)
        # Windows close when the watermark has passed them: one more order, that much later.
        Event().wait(window_s + layout.watermark_s + 1)
        closing.post(0, "good")
        closing.close()
        driver.drain()
        own = spark or _session()
        result = _at_a_tick(layout, lambda: reconcile.run(own, layout))
        return _outcome(own, layout, published, result, faults)


def _at_a_tick(
    layout: Layout, job: Callable[[], reconcile.Reconciliation]
) -> reconcile.Reconciliation:
    """Run the nightly job at the tick of a schedule, as `nightly` does, but in a second."""
    results: list[reconcile.Reconciliation] = []

    def reconciled(_: datetime) -> bool:
        queue.remove_schedule(nightly.SCHEDULE)
        results.append(job())
        return True  # the caller judges it

    with penstock.open(f"{layout.url}/{NIGHTLY}") as queue:
        queue.put_schedule(penstock.Schedule(nightly.SCHEDULE, b"", every_s=1))
        with queue.lease_one(lease_s=3600, wait_s=_TICK_S) as message:
            if message is None:
                raise RuntimeError(f"the schedule had no tick in {_TICK_S} seconds")
            nightly.handler(reconciled)(message)
    return results[0]


@contextmanager
def _shops(url: str, published: Published, rate_per_s: float, lateness_s: int) -> Iterator[Shop]:
    """Run two shops, and yield a third one for the last order."""
    names = ("north", "south", "closing")
    north, south, closing = (
        Shop(url, published, name=name, rate_per_s=rate_per_s / 2, lateness_s=lateness_s)
        for name in names
    )
    north.start()
    south.start()
    try:
        yield closing
    finally:
        north.stop()
        south.stop()


def _faults(broker: Broker, driver: Driver, seconds: float, least: int) -> dict[str, int]:
    """Kill the driver and the broker in turn, each time while orders are being processed."""
    random, began = Random(1), monotonic()
    faults = {"killed drivers": 0, "restarted brokers": 0}
    driver.wait_for("working")
    while sum(faults.values()) < least or monotonic() - began < seconds:
        Event().wait(random.random() * 2)
        if faults["killed drivers"] == faults["restarted brokers"]:
            _say("killing the driver")
            driver.kill_and_start()
            faults["killed drivers"] += 1
        else:
            _say("killing the broker")
            broker.kill_and_start()
            faults["restarted brokers"] += 1
            continue
        driver.wait_for("working")
    return faults


def _outcome(
    spark: SparkSession,
    layout: Layout,
    published: Published,
    result: reconcile.Reconciliation,
    faults: dict[str, int],
) -> Outcome:
    """Compare what the shops know with the tables."""
    accepted = {row[0] for row in layout.read(spark, "silver", SILVER).select("order_id").collect()}
    bronze = judged(layout.read(spark, "bronze", BRONZE), layout)
    rejected = {
        row[0] for row in bronze.where("reason IS NOT NULL").selectExpr("order.order_id").collect()
    }
    made = published.orders
    refused = {order for order, kind in made.items() if kind in ("late", "bad value")}
    return Outcome(
        result=result,
        faults=faults,
        posted=len(made) + published.bad_payloads,
        lost_orders=len(made.keys() - accepted - rejected),
        unknown_orders=len(accepted - made.keys()),
        wrongly_accepted=len(accepted & refused),
        unanswered=published.answers["no answer"],
    )


def _session() -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = session("local[2]", app_name="reconcile", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def sentences(outcome: Outcome) -> list[str]:
    """Return the outcome as lines to print."""
    lines = [
        f"{outcome.posted:,} orders posted, {outcome.unanswered:,} posts without an answer.",
        ", ".join(f"{count} {name}" for name, count in outcome.faults.items()) + ".",
        *reconcile.sentences(outcome.result),
    ]
    wrong = {
        "acknowledged orders that are lost": outcome.lost_orders,
        "orders that no shop made": outcome.unknown_orders,
        "bad or late orders in silver": outcome.wrongly_accepted,
    }
    return [*lines, *(f"{count:>8,}  {name}: WRONG" for name, count in wrong.items() if count)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the order pipeline with faults.")
    parser.add_argument("--seconds", type=float, default=120, help="how long orders come in")
    parser.add_argument("--rate", type=float, default=200, help="orders a second")
    parser.add_argument("--place", type=Path, help="empty directory to keep; default: a new one")
    given = parser.parse_args(arguments)
    place = given.place or Path(tempfile.mkdtemp(prefix="pipeline-"))
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        parser.error(f"{place} is not empty: name a new directory")
    outcome = run(
        place,
        seconds=given.seconds,
        faults_min=2,
        rate_per_s=given.rate,
        window_s=10,
        lateness_s=10,
    )
    print("\n".join(sentences(outcome)))
    print(f"The report is {place}/lake/report.html.")
    return 0 if outcome.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
