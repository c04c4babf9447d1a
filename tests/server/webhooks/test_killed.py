"""kill -9 in the middle of pushing: nothing is lost, and little comes twice."""

import json
import signal
from collections import Counter
from pathlib import Path

import httpx2

from tests.server.running import queue_path
from tests.server.serving_process import ServingProcess
from tests.server.webhooks.endpoint import Endpoint

MESSAGES, CONCURRENCY = 300, 8
CONFIG = """
[server]
data = "{data}"
port = 0
[broker]
webhook_allow_private = true
webhook_concurrency = 8
webhook_timeout_s = 1.0
"""


def test_every_message_arrives_and_only_what_was_under_way_comes_twice(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(CONFIG.format(data=tmp_path / "data"))
    queue = queue_path("orders", "messages")
    with Endpoint() as endpoint:
        with ServingProcess(config) as process:
            url = f"http://127.0.0.1:{process.wait_for('listening')['port']}"
            process.wait_for("ready")
            with httpx2.Client(base_url=url, trust_env=False) as http:
                made = http.post(queue_path("orders", "webhooks"), json={"url": endpoint.url})
                assert made.status_code == 201, made.text
                bodies = [{"payload": number} for number in range(MESSAGES)]
                published = http.post(queue, json=bodies).json()["messages"]
            endpoint.wait_for(MESSAGES // 4)
            process.signal(signal.SIGKILL)
            process.exit_code()
        with ServingProcess(config) as process:
            process.wait_for("ready")
            arrived: Counter[str] = Counter()
            while len(arrived) < MESSAGES:
                found = endpoint.wait_for(sum(arrived.values()) + 1, timeout_s=60)
                arrived = Counter(json.loads(body)["data"]["id"] for _, body in found)
        endpoint.shutdown()
    assert set(arrived) == {one["id"] for one in published}
    assert sum(count - 1 for count in arrived.values()) <= CONCURRENCY
