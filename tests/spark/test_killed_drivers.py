"""Drivers of a stream, killed at any instant: every message is in the target exactly once."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import penstock
from tests.server.running import RunningServer
from tests.spark.in_process import rows

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]

KILLS = 12
LOT = 100  # messages that come before each life of the driver


class Driver:
    """A driver with its JVM and its workers: a process group, to be killed as one."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.streaming_driver", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
            )

    def says(self, word: str) -> None:
        """Wait for a word of it."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        assert said == word, self._log.read_text()[-5000:]

    def works(self, seconds: float) -> None:
        """Let it work for that long. It must not end by itself."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise AssertionError(f"the driver ended by itself: {self._log.read_text()[-5000:]}")

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize(("by", "to"), [("url", "path"), ("path", "path"), ("url", "url")])
def test_a_stream_whose_driver_is_killed_has_each_message_once(
    by: str, to: str, tmp_path: Path
) -> None:
    random, published = Random(f"{by} {to}"), 0
    with RunningServer(tmp_path / "data", broker={"queues": {"sync": "always"}}) as server:
        places = {"url": f"{server.url}/shop/orders", "path": str(tmp_path / "data/shop/orders")}
        targets = {"url": f"{server.url}/shop/copy", "path": str(tmp_path / "copy")}
        line = (places[by], targets[to], str(tmp_path / "checkpoint"))
        with penstock.open(places["url"]) as queue:
            for _ in range(KILLS):
                queue.enqueue_batch([b"%d" % n for n in range(published, published + LOT)])
                published += LOT
                driver = Driver(tmp_path / "log", *line, "on")
                try:
                    # Some die while they start, recover or commit; most in the midst of batches.
                    if random.random() < 0.8:
                        driver.says("reading")
                    driver.works(random.random() * 3)
                finally:
                    driver.kill()
        last = Driver(tmp_path / "log", *line, "once")
        try:
            last.says("done")
        finally:
            last.kill()
        target = tmp_path / "data" / "shop" / "copy" if to == "url" else tmp_path / "copy"
        found = [int(row["payload"]) for row in rows(target, columns="payload")]
    assert found == list(range(published))
