"""A page costs its rows: with many queues and messages, each takes less than a second of CPU.

The CPU time is that of this process: of the server and of the client, which is a little more.
"""

import time
from pathlib import Path

import pytest

from tests.server.dashboard.seeding import Seeder
from tests.server.running import RunningServer, queue_path

pytestmark = pytest.mark.xdist_group("dashboard")
MOST_CPU_S = 1.0
BATCH = 5000


@pytest.mark.parametrize(
    ("queues", "messages"),
    [(200, 20_000), pytest.param(1000, 1_000_000, marks=pytest.mark.long)],
)
def test_every_page_takes_less_than_a_second_of_cpu_time(queues: int, messages: int) -> None:
    with (
        RunningServer(Path("memory:"), broker={"max_queues": 2000}) as running,
        running.client(headers={"accept": "text/html"}) as http,
    ):
        for number in range(queues):
            path = queue_path(f"q-{number:04}", namespace="shop")
            assert http.put(path, json={}).status_code == 201
        seed = Seeder(http)
        seed.kill("q-0100", *range(200))
        rows = [{"n": number} for number in range(BATCH)]
        for _ in range(messages // BATCH):
            (*_, last) = seed.publish("q-0100", *rows)
        seed.lease("q-0100", 1)
        queue = "/dashboard/queues/shop/q-0100"
        paths = (
            "/dashboard",
            "/dashboard?sort=ready&down=1",
            "/dashboard?text=q-01",
            queue,
            f"{queue}/messages",
            f"{queue}/messages?state=ready&after={messages // 2}",
            f"{queue}/messages?text=no-such-text",
            f"{queue}/dead",
            f"{queue}/replay?way=beginning",
            f"/dashboard/messages/{last}",
            "/dashboard/webhooks",
            "/dashboard/storage?queue=shop/q-0100",
            "/dashboard/playground?namespace=shop&queue=q-0100",
        )
        http.get(queue)  # compiles the templates that all pages share
        took: dict[str, float] = {}
        for path in paths:
            began = time.process_time()
            answer = http.get(path)
            took[path] = round(time.process_time() - began, 3)
            assert answer.status_code == 200, (path, answer.text)
            assert len(answer.content) < 300_000
        assert {path: cpu_s for path, cpu_s in took.items() if cpu_s > MOST_CPU_S} == {}
