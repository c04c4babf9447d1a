"""Drivers of a stream, killed at any instant: every message is in the target exactly once."""

from pathlib import Path
from random import Random

import pytest

import penstock
from tests.server.running import RunningServer
from tests.spark.driver_process import Driver
from tests.spark.in_process import rows

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]

KILLS = 12
LOT = 100  # messages that come before each life of the driver


@pytest.mark.parametrize(("by", "to"), [("url", "path"), ("path", "path"), ("url", "url")])
def test_a_stream_whose_driver_is_killed_has_each_message_once(
    by: str, to: str, tmp_path: Path
) -> None:
    random, published = Random(f"{by} {to}"), 0
    with RunningServer(tmp_path / "data", broker={"queues": {"sync": "always"}}) as server:
        places = {"url": f"{server.url}/shop/orders", "path": str(tmp_path / "data/shop/orders")}
        targets = {"url": f"{server.url}/shop/copy", "path": str(tmp_path / "copy")}
        line = (places[by], str(tmp_path / "checkpoint"))
        with penstock.open(places["url"]) as queue:
            for _ in range(KILLS):
                queue.enqueue_batch([b"%d" % n for n in range(published, published + LOT)])
                published += LOT
                driver = Driver(tmp_path / "log", *line, "on", f"queue={targets[to]}")
                try:
                    # Some die while they start, recover or commit; most in the midst of batches.
                    if random.random() < 0.8:
                        driver.says("reading")
                    driver.works(random.random() * 3)
                finally:
                    driver.kill()
        last = Driver(tmp_path / "log", *line, "once", f"queue={targets[to]}")
        try:
            last.says("done")
        finally:
            last.kill()
        target = tmp_path / "data" / "shop" / "copy" if to == "url" else tmp_path / "copy"
        found = [int(row["payload"]) for row in rows(target, columns="payload")]
    assert found == list(range(published))
