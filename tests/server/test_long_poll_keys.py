"""A long poll whose key is revoked or changed while it waits gets no message."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker import QueueName
from penstock.broker.stores import KeyAdmin
from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire

LEASE = queue_path("q", "lease")


def _poll(poll: Wire, key: str) -> None:
    headers = (f"X-Api-Key: {key}", "Content-Type: application/json")
    poll.request("POST", LEASE, b'{"wait_s": 60}', *headers)


def _revoke(server: RunningServer, token: str) -> None:
    KeyAdmin(server.location).revoke(token.split("_")[1])


def _narrow(server: RunningServer, token: str) -> None:
    """Take the verb `consume` from a key, in the document."""

    def narrow(document: str) -> str:
        content = json.loads(document)
        for key in content["keys"]:
            if key["id"] == token.split("_")[1]:
                key["verbs"] = ["read"]
        return json.dumps(content)

    server.rewrite_keys(narrow)


@pytest.mark.parametrize(("change", "status"), [(_revoke, 401), (_narrow, 403)])
def test_a_key_that_is_refused_while_a_long_poll_waits(
    tmp_path: Path, change: Callable[[RunningServer, str], None], status: int
) -> None:
    with RunningServer(tmp_path / "data") as server, server.wire() as poll:
        good = server.new_key("publish", "consume", "read", "manage")
        bad = server.new_key("consume")
        with server.client(headers={"x-api-key": good}) as http:
            http.put(queue_path("q"), json={})
            _poll(poll, bad)
            server.until(lambda: len(server.server.broker.waiting) == 1)
            change(server, bad)
            server.call(server.server.service.keys.load())
            http.post(queue_path("q", "messages"), json={"payload": 1})
            assert poll.answer().status == status
            (found,) = http.post(queue_path("q", "lease"), json={"wait_s": 30}).json()["messages"]
            assert found["attempt"] == 1
            assert server.server.service.held.bytes == 0


def test_a_call_without_a_key_gets_nothing_after_the_first_key_was_made(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.wire() as poll:
        with server.client() as http:
            http.put(queue_path("q"), json={})
        poll.json_request("POST", queue_path("q", "lease"), {"wait_s": 60})
        server.until(lambda: len(server.server.broker.waiting) == 1)
        key = server.new_key("publish", "read")
        with server.client(headers={"x-api-key": key}) as http:
            http.post(queue_path("q", "messages"), json={"payload": 1})
            assert poll.answer().status == 401
            queue = QueueName("default", "q")
            server.until(lambda: server.server.broker.store.ready_hint(queue, "main") == 1)


def test_a_long_poll_of_a_good_key_gets_its_message(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.wire() as poll:
        key = server.new_key("publish", "consume", "manage")
        with server.client(headers={"x-api-key": key}) as http:
            http.put(queue_path("q"), json={})
            _poll(poll, key)
            server.until(lambda: len(server.server.broker.waiting) == 1)
            http.post(queue_path("q", "messages"), json={"payload": 1})
            assert len(poll.answer().json["messages"]) == 1


def test_dead_letters_of_a_durable_queue_are_leased_by_their_own_name(tmp_path: Path) -> None:
    """Their lease waits for the disk, and `__dlq__q` is no name of a queue."""
    queues = {"sync": "always", "min_free_bytes": 0, "max_attempts": 1}
    with (
        RunningServer(tmp_path / "data", broker={"queues": queues}) as server,
        server.client() as http,
    ):
        http.post(queue_path("q", "messages"), json={"payload": 1})
        (leased,) = http.post(LEASE).json()["messages"]
        http.post("/api/v1/settle", json={"nack": [leased["receipt"]]})
        dead = http.get("/namespaces/default/queues/__dlq__q/messages")
        assert (dead.status_code, len(dead.json()["messages"])) == (200, 1)
