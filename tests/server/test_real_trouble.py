"""A full disk, full queues and damaged files, as those who call over a socket see them."""

import struct
from pathlib import Path
from typing import Any

import httpx2

from penstock import codec
from tests.server.running import RunningServer, queue_path

Client = httpx2.Client


def publish(http: Client, queue: str, *bodies: Any, namespace: str = "default") -> httpx2.Response:
    path = queue_path(queue, "messages", namespace=namespace)
    return http.post(path, json=list(bodies or [{"payload": 1}]))


def test_a_full_disk_refuses_publishes_while_acks_go_on_and_recovers_by_itself(
    http: Client, queue: str
) -> None:
    assert publish(http, queue).status_code == 201
    http.patch(queue_path(queue), json={"min_free_bytes": 1 << 50})  # more than any disk has
    refused = publish(http, queue)
    assert (refused.status_code, refused.json()["code"]) == (507, "disk_full")
    assert "min_free_bytes" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) >= 1
    (leased,) = http.post(queue_path(queue, "lease")).json()["messages"]
    settled = http.post("/api/v1/settle", json={"ack": [leased["receipt"]]})
    assert settled.json()["results"][0]["status"] == "done"
    assert http.get("/livez").status_code == 200
    http.patch(queue_path(queue), json={"min_free_bytes": 0})
    assert publish(http, queue).status_code == 201


def test_a_full_queue_is_429_with_a_time_to_come_again(http: Client, queue: str) -> None:
    http.put(queue_path(queue), json={"max_messages": 2})
    assert publish(http, queue, {"payload": 1}, {"payload": 2}).status_code == 201
    refused = publish(http, queue, {"payload": 3})
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    http.post(queue_path(queue, "purge"))
    assert publish(http, queue, {"payload": 3}).status_code == 201


def test_quotas_of_a_namespace_are_429(http: Client) -> None:
    http.post("/api/v1/namespaces", json={"name": "small", "max_queues": 1, "max_bytes": 100})
    assert publish(http, "one", {"payload": "x" * 200}, namespace="small").status_code == 201
    for queue in ("one", "two"):
        refused = publish(http, queue, namespace="small")
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert http.get(queue_path("two", namespace="small")).status_code == 404


def test_a_stored_bomb_goes_dead_with_its_reason_and_its_neighbours_are_delivered(
    http: Client, queue: str
) -> None:
    http.put(queue_path(queue), json={"max_unpacked_bytes": 10_000})
    bomb = {"payload": "0" * 100_000, "compression": "gzip"}
    assert publish(http, queue, bomb, {"payload": "small"}).status_code == 201
    leased = http.post(queue_path(queue, "lease"), json={"max": 5}).json()["messages"]
    assert [one["payload"] for one in leased] == ["small"]
    (dead,) = http.get(queue_path(queue, "dead")).json()["messages"]
    assert (dead["cause"], len(dead["payload_b64"]) < 10_000) == ("unreadable", True)
    assert "max_unpacked_bytes" in dead["reason"]


def test_files_of_a_newer_version_are_named_and_other_queues_serve(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RunningServer(data) as server, server.client() as http:
        for queue in ("good", "bad"):
            assert publish(http, queue).status_code == 201
    (segment,) = (data / "default" / "bad" / "messages").glob("*.log")
    content = bytearray(segment.read_bytes())
    struct.pack_into("<H", content, 4, 2)  # the version in the header
    struct.pack_into("<I", content, 60, codec.crc32c(bytes(content[:60])))
    segment.write_bytes(content)
    with RunningServer(data) as server, server.client() as http:
        refused = publish(http, "bad")
        assert refused.status_code == 503, refused.text
        assert segment.name in refused.json()["detail"]
        assert "newer version" in refused.json()["detail"]
        assert publish(http, "good").status_code == 201
        assert http.get("/livez").status_code == 200
    assert segment.read_bytes() == content


def test_damage_is_contained_counted_and_hides_no_message_behind_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RunningServer(data) as server, server.client() as http:
        assert (
            publish(http, "bad", *({"payload": f"number {n}"} for n in range(3))).status_code == 201
        )
    (segment,) = (data / "default" / "bad" / "messages").glob("*.log")
    segment.write_bytes(segment.read_bytes().replace(b"number 1", b"rumbum 1"))
    with RunningServer(data) as server, server.client() as http:
        leased = http.post(queue_path("bad", "lease"), json={"max": 5}).json()["messages"]
        assert [one["payload"] for one in leased] == ["number 0", "number 2"]
        page = http.get("/metrics").text
        assert 'penstock_damaged{namespace="default",queue="bad"} 1.0' in page
