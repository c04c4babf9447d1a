"""A queue of any name that RivetQ's clients use works in every interface, and after a restart."""

from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

import penstock
from penstock.arrow.locations import Directory
from tests.server.running import RunningServer, queue_path

NAMES = [
    "Emails",
    "LOCK",
    "_broker",
    "_health_check",
    "a..b",
    "eMails",
    "email_jobs",
    "emails",
    "my.queue",
    "namespace.json",
    "orders-2",
    "x.tmp",
]


def enqueue(http: Any, queue: str, payload: object) -> str:
    answer = http.post(f"/v1/queues/{queue}/enqueue", json={"payload": payload})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["job_id"])


def test_every_name_of_a_rivetq_client_works_and_stays_after_a_restart(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        ids = {name: enqueue(http, name, name) for name in NAMES}
        assert len(set(ids.values())) == len(NAMES)
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        assert http.get("/v1/queues/").json()["queues"] == sorted(NAMES)
        for name in NAMES:
            assert http.get(f"/v1/queues/{name}/stats").json()["ready"] == 1
            (job,) = http.post(f"/v1/queues/{name}/lease").json()["jobs"]
            assert (job["id"], job["queue"], job["payload"]) == (ids[name], name, name)
            settled = http.post("/v1/ack", json={"job_id": job["id"], "lease_id": job["lease_id"]})
            assert settled.json() == {"success": True}


def test_every_name_works_in_the_other_interfaces(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        for name in NAMES:
            assert http.put(queue_path(name)).status_code == 201, name
            assert http.post(queue_path(name, "messages"), json={"payload": 1}).status_code == 201
            with penstock.open(f"{server.url}/default/{name}") as queue:
                assert queue.lease()[0].payload == b"1"
            published = http.post(
                f"/namespaces/default/queues/{name}/messages", json={"body": "aGVsbG8="}
            )
            assert published.status_code == 201
            (row,) = http.get(queue_path(name, "messages"), params={"state": "ready"}).json()[
                "messages"
            ]
            assert row["id"] == published.json()["id"]
            with connect(f"ws://127.0.0.1:{server.port}{queue_path(name, 'stream')}") as stream:
                assert published.json()["id"] in str(stream.recv(timeout=30))
            hook = http.post(queue_path(name, "webhooks"), json={"url": "https://example.com/"})
            assert (hook.status_code, hook.json()["queue"]) == (201, name)
        metrics = http.get("/metrics").text
        for name in NAMES:
            assert f'penstock_published_total{{namespace="default",queue="{name}"}} 2.0' in metrics


def test_namespaces_have_the_same_names(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        for name in NAMES:
            assert http.post("/api/v1/namespaces", json={"name": name}).status_code == 201
            assert http.put(queue_path("x", namespace=name)).status_code == 201
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        listed = [one["name"] for one in http.get("/api/v1/namespaces").json()["namespaces"]]
        assert listed == sorted(NAMES)
        assert http.delete("/api/v1/namespaces/Emails?force=true").status_code == 204
    queues = Directory(str(tmp_path / "data")).queues()
    assert [queue.key for queue in queues] == [f"{name}/x" for name in NAMES if name != "Emails"]


def test_names_that_differ_only_in_case_are_different_queues(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        enqueue(http, "Emails", 1)
        enqueue(http, "emails", 2)
        assert http.post("/v1/queues/Emails/lease").json()["jobs"][0]["payload"] == 1
    directories = {place.name for place in (tmp_path / "data" / "default").iterdir()}
    assert {"+emails", "emails"} < directories


@pytest.mark.parametrize("name", ["a" * 65, "..", "%2e%2e", "a%2Fb", "a%00", "caf%C3%A9", "a."])
def test_what_is_no_name_is_refused_and_makes_nothing(tmp_path: Path, name: str) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        answer = http.post(f"/v1/queues/{name}/enqueue", json={"payload": 1})
        assert answer.status_code in (400, 404, 405)
        assert http.get("/v1/queues/").json() == {"queues": []}


@pytest.mark.parametrize("name", ["my.dlq", "__dlq__my"])
def test_a_queue_cannot_have_the_name_of_a_view_of_dead_letters(tmp_path: Path, name: str) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        for answer in (
            http.put(queue_path(name)),
            http.post(f"/v1/queues/{name}/enqueue", json={"payload": 1}),
        ):
            assert answer.status_code == 400
            assert "kept for the dead letters" in answer.text
