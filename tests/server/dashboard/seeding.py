"""Queues with something in them, by the REST API, for pages to show."""

import base64
from typing import Any

import httpx2

from tests.server.running import queue_path

REASONS = (
    "TimeoutError: the gateway did not answer in 30 s",
    "ValueError: amount is negative",
    "ConnectionError: refused (10.0.0.7:443)",
)
SCRIPT = "<script>document.title='owned'</script>"
IMAGE = '"><img src=x onerror="document.title=\'owned\'">'
ODD_KEY = "<b>k</b> '\" \u202e&lt; %2F ../"


class Seeder:
    """Publishes, leases and settles."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http

    def publish(self, queue: str, *payloads: Any, **options: Any) -> list[str]:
        bodies = [{"payload": payload, **options} for payload in payloads]
        answer = self.http.post(queue_path(queue, "messages", namespace="shop"), json=bodies)
        assert answer.status_code == 201, answer.text
        return [one["id"] for one in answer.json()["messages"]]

    def publish_bytes(self, queue: str, payload: bytes) -> str:
        body = {"payload_b64": base64.b64encode(payload).decode()}
        answer = self.http.post(queue_path(queue, "messages", namespace="shop"), json=[body])
        (one,) = answer.json()["messages"]
        return str(one["id"])

    def lease(self, queue: str, n: int = 1, holder: str = "worker-1") -> list[str]:
        path = queue_path(queue, "lease", namespace="shop")
        answer = self.http.post(path, json={"max": n, "holder": holder})
        return [one["receipt"] for one in answer.json()["messages"]]

    def kill(self, queue: str, *payloads: Any, reasons: tuple[str, ...] = REASONS) -> list[str]:
        """Publish, and let each fail for good."""
        ids = self.publish(queue, *payloads, max_attempts=1)
        receipts = self.lease(queue, len(ids))
        nacks = [
            {"receipt": receipt, "reason": reasons[number % len(reasons)]}
            for number, receipt in enumerate(receipts)
        ]
        assert self.http.post("/api/v1/settle", json={"nack": nacks}).status_code == 200
        return ids

    def schedule(self, queue: str, name: str, **times: Any) -> None:
        path = queue_path(queue, "schedules", name, namespace="shop")
        answer = self.http.put(path, json={"message": {"payload": {"a": SCRIPT}}, **times})
        assert answer.status_code == 200, answer.text

    def stats(self, queue: str) -> dict[str, Any]:
        path = queue_path(queue, namespace="shop")
        found: dict[str, Any] = self.http.get(path).json()["stats"]
        return found

    def hostile(self, queue: str) -> str:
        """Publish what would be markup or code if it were not escaped."""
        headers = {"x-odd": IMAGE, "x-script": SCRIPT}
        (id_,) = self.publish(queue, SCRIPT, headers=headers, key=ODD_KEY)
        return id_
