"""Surveys of a queue, exports and keys, over a real socket."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

import penstock
from penstock.client import ClientOptions, connect_broker
from penstock.operations import ListConsumers
from tests.server.running import RunningServer, queue_path
from tests.server.test_native_table import kill, lease, publish

Client = httpx2.Client


def test_consumers_keys_limits_and_files_of_a_queue(http: Client, queue: str) -> None:
    http.put(queue_path(queue), json={"max_messages": 100})
    publish(http, queue, 1, 2, 3, key="a")
    lease(http, queue, holder="ann")
    found = http.get(queue_path(queue, "consumers")).json()
    assert found["leases"] == 1 and found["holders"][0]["holder"] == "ann"
    assert found["held"][0]["deadline_at"] > found["held"][0]["leased_at"]
    assert http.get(queue_path(queue, "consumers?limit=0")).status_code == 400
    (key,) = http.get(queue_path(queue, "keys?limit=5")).json()["keys"]
    assert (key["key"], key["messages"]) == ("a", 3)
    limits = {one["name"]: one for one in http.get(queue_path(queue, "limits")).json()["limits"]}
    assert (limits["max_messages"]["used"], limits["max_messages"]["most"]) == (3, 100)
    storage = http.get(queue_path(queue, "storage")).json()
    assert storage["live_ratio"] == 1.0 and storage["quarantine"] == []
    assert {one["log"] for one in storage["segments"]} >= {"messages"}


def test_dead_letters_by_reason(http: Client, queue: str) -> None:
    kill(http, queue, 1, 2)
    found = http.get(queue_path(queue, "dead_reasons")).json()
    (reason,) = found["reasons"]
    assert (reason["reason"], reason["messages"], found["total"]) == ("no luck", 2, 2)
    only = {"reason_group": "no luck"}
    assert len(http.get(queue_path(queue, "dead"), params=only).json()["messages"]) == 2
    other = {"reason_group": "another"}
    assert http.get(queue_path(queue, "dead"), params=other).json()["messages"] == []
    dry = http.post(queue_path(queue, "discard"), json={**only, "dry_run": True})
    assert dry.json() == {"discarded": 2}
    assert http.post(queue_path(queue, "redrive"), json=other).json() == {"redriven": 0}
    assert http.post(queue_path(queue, "redrive"), json=only).json() == {"redriven": 2}


def test_a_seek_is_previewed(http: Client, queue: str) -> None:
    publish(http, queue, 1, 2, 3)
    found = http.post(queue_path(queue, "seek/preview"), json={"to": "end"}).json()
    assert found == {"next_seq": 4, "messages": 0, "repeated": 0, "skipped": 3}
    assert http.post(queue_path(queue, "seek/preview"), json={"to": {}}).status_code == 400


def test_messages_are_searched_with_progress_and_exported(http: Client, queue: str) -> None:
    publish(http, queue, *range(30), headers={"n": "x"}, priority=3)
    publish(http, queue, "last")
    page = http.get(queue_path(queue, "messages"), params={"header": "n=x", "limit": 15}).json()
    assert len(page["messages"]) == 15 and page["progress"] == pytest.approx(15 / 31)
    page = http.get(queue_path(queue, "messages"), params={"priority": 3, "limit": 100}).json()
    assert len(page["messages"]) == 30 and "progress" not in page
    answer = http.get(queue_path(queue, "messages/export"))
    assert answer.headers["content-type"] == "application/x-ndjson"
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["payload"] for row in rows] == [*range(30), "last"]
    few = http.get(queue_path(queue, "messages/export"), params={"limit": 7}).text.splitlines()
    assert len(few) == 7
    assert http.get(queue_path("not-there", "messages/export")).status_code == 404


def test_an_exported_message_is_one_line_whatever_line_breaks_its_json_has(
    http: Client, queue: str
) -> None:
    forged = b'{"payload": [\r\n{"id":"01FORGED","payload":"a\\nb"}\n]}'
    kind = {"content-type": "application/json"}
    http.post(queue_path(queue, "messages"), content=forged, headers=kind).raise_for_status()
    [line] = http.get(queue_path(queue, "messages/export")).content.splitlines()
    assert json.loads(line)["payload"] == [{"id": "01FORGED", "payload": "a\nb"}]


def test_few_exports_make_a_page_at_the_same_time(
    server: RunningServer, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many at once would block other requests for as long as all of them take."""
    active, most = 0, 0
    make_page = server.server.service.off_loop.page

    async def page(size: int, make: Callable[[], bytes]) -> bytes:
        nonlocal active, most
        active += 1
        most = max(most, active)
        for _ in range(3):
            await asyncio.sleep(0)
        active -= 1
        return await make_page(size, make)

    monkeypatch.setattr(server.server.service.off_loop, "page", page)
    path = queue_path(queue, "messages/export")
    with server.client() as http, ThreadPoolExecutor(8) as threads:
        publish(http, queue, *range(120))
        exports = list(threads.map(http.get, [path] * 8))
    assert [one.text.count('"seq"') for one in exports] == [120] * 8
    assert most <= 2


def test_a_large_export_is_whole(http: Client, queue: str) -> None:
    for _ in range(4):
        publish(http, queue, *["x" * 2000] * 500)
    answer = http.get(queue_path(queue, "messages/export"))
    seqs = [json.loads(line)["seq"] for line in answer.text.splitlines()]
    assert seqs == list(range(1, 2001))


def test_a_remote_queue_has_the_surveys(server: RunningServer, queue: str) -> None:
    with penstock.open(f"{server.url}/default/{queue}") as remote:
        remote.enqueue(b"x", key="a")
        (leased,) = remote.lease(holder="ann")
        found = remote.consumers()
        assert found == remote.run(ListConsumers())
        assert [(one.holder, one.leases) for one in found.holders] == [("ann", 1)]
        assert found.held[0].id == leased.id and found.held[0].deadline_ns > 0
        assert remote.key_backlogs().keys[0].key == "a"
        assert remote.preview_seek("end").skipped == 1
        assert remote.storage().total_segments >= 1
        remote.nack(leased, "broken")
        assert remote.dead_reasons().reasons == []
        assert [one.name for one in remote.limits().limits] == [
            "dedup_entries",
            "result_entries",
            "groups",
        ]


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        made = http.post("/api/v1/keys", json={"label": "boss", "verbs": ["manage", "read"]})
        assert made.status_code == 201
        boss = {"x-api-key": made.json()["token"]}
        while (answer := http.get("/api/v1/keys")).status_code == 200:
            pass  # a key is needed within about a second
        assert answer.status_code == 401
        listed = http.get("/api/v1/keys", headers=boss).json()["keys"]
        assert [one["label"] for one in listed] == ["boss"]
        assert "token" not in listed[0] and "sha256" not in str(listed)
        beyond = http.post("/api/v1/keys", headers=boss, json={"verbs": ["publish"]})
        assert beyond.status_code == 403
        body = {"verbs": ["manage", "read"], "namespaces": ["shop"]}
        of_shop = http.post("/api/v1/keys", headers=boss, json=body).json()
        shop = {"x-api-key": of_shop["token"]}
        assert http.get("/api/v1/keys", headers=shop).status_code == 403
        assert http.post("/api/v1/keys", headers=shop, json=body).status_code == 403
        revoked = http.delete(f"/api/v1/keys/{of_shop['id']}", headers=boss)
        assert revoked.json()["revoked_at"]
        assert http.delete("/api/v1/keys/nothere", headers=boss).status_code == 400
        assert http.post("/api/v1/keys", headers=boss, json={"verbs": []}).status_code == 400


def test_a_client_sees_the_overview_charts_and_keys(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        with connect_broker(server.url) as broker:
            broker.create_queue("orders")
            assert broker.overview()["queues"] == broker.overview("default")["queues"] == 1
            chart = broker.chart("orders", since=broker.details("orders").created_at - 86400)
            assert chart.points == len(chart.series["ready"]) and chart.step_s == 120
            assert broker.chart().step_s == 10
            key = broker.create_key(["manage", "read"], label="boss")
        assert key.token is not None and key.namespaces is None
        with connect_broker(server.url, options=ClientOptions(key=key.token)) as broker:
            other = broker.create_key(["read"], namespaces=["shop"])
            revoked = broker.revoke_key(other.id)
            assert revoked.revoked_at is not None
            listed = broker.keys()
            assert [one.id for one in listed] == [key.id, other.id]
