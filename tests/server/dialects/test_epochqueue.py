"""Every row of EpochQueue's interface, over a real socket, and what EpochQueue itself got wrong."""

import base64
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock import __version__
from penstock.server.dialects import epochqueue as messages
from tests.server.running import RunningServer, queue_path

Client = httpx2.Client
NS = "/namespaces/shop"
DAY_MS = 86_400_000


@pytest.fixture
def at(queue: str) -> str:
    """The path of a queue that no other test uses."""
    return f"{NS}/queues/{queue}"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def publish(http: Client, at: str, body: bytes = b"x", **options: Any) -> str:
    answer = http.post(f"{at}/messages", json={"body": b64(body), **options})
    assert (answer.status_code, set(answer.json())) == (201, {"id"}), answer.text
    return str(answer.json()["id"])


def lease(http: Client, at: str, **query: Any) -> list[dict[str, Any]]:
    answer = http.get(f"{at}/messages", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["messages"])


def ack(http: Client, message: dict[str, Any]) -> int:
    return http.delete(f"/messages/{message['receipt_handle']}").status_code


def nack(http: Client, message: dict[str, Any]) -> int:
    return http.post(f"/messages/{message['receipt_handle']}/nack").status_code


def row(http: Client, at: str) -> dict[str, Any]:
    """The counts of one queue."""
    name = at.rpartition("/")[2]
    number = 1
    rows: dict[str, dict[str, Any]] = {}
    while True:
        page = http.get("/api/stats", params={"page": number, "limit": 200}).json()
        rows |= {one["key"]: one for one in page["queues"]}
        if number >= page["total_pages"]:
            return dict(rows[f"shop/{name}"])
        number += 1


def now_ms() -> int:
    return int(datetime.now().timestamp() * 1000)


# -- the rows --------------------------------------------------------------------------------------


def test_health(http: Client, server: RunningServer) -> None:
    answer = http.get("/health")
    found = answer.json()
    assert answer.status_code == 200
    assert set(found) == {"status", "node_id", "queues", "uptime", "uptime_ms", "version"}
    assert (found["status"], found["version"]) == ("ok", __version__)
    assert found["node_id"]
    assert found["uptime_ms"] >= 0


def test_stats_are_paged_and_sorted_by_namespace_and_name(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        for name in ("b/two", "a/three", "a/one"):
            namespace, _, queue = name.partition("/")
            publish(http, f"/namespaces/{namespace}/queues/{queue}")
        first = http.get("/api/stats?page=1&limit=2").json()
        assert [one["key"] for one in first.pop("queues")] == ["a/one", "a/three"]
        assert first == {"total": 3, "page": 1, "limit": 2, "total_pages": 2}
        (last,) = http.get("/api/stats?page=2&limit=2").json()["queues"]
        assert last == {
            "namespace": "b",
            "name": "two",
            "key": "b/two",
            "ready": 1,
            "in_flight": 0,
            "scheduled": 0,
            "depth": 1,
            "dlq_depth": 0,
        }
        assert http.get("/api/stats").json()["limit"] == 50
        past = http.get("/api/stats?page=9&limit=2").json()
        assert (past["page"], [one["key"] for one in past["queues"]]) == (2, ["b/two"])


def test_there_is_one_page_also_where_there_is_no_queue(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        assert http.get("/api/stats?page=3").json() == {
            "queues": [],
            "total": 0,
            "page": 1,
            "limit": 50,
            "total_pages": 1,
        }


def test_the_summary_counts_all_queues(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        first, second = "/namespaces/a/queues/one", "/namespaces/b/queues/two"
        publish(http, first)
        publish(http, first, deliver_at=now_ms() + DAY_MS)
        publish(http, second, max_retries=1)
        nack(http, lease(http, second)[0])
        found = http.get("/api/stats/summary").json()
        namespaces = found.pop("namespaces")
        assert namespaces >= 2
        assert found == {
            "total_queues": 2,
            "total_depth": 2,
            "total_scheduled": 1,
            "dlq_alerts": 1,
        }


def test_namespaces_are_made_listed_and_deleted(http: Client) -> None:
    made = http.post("/namespaces", json={"name": "zoo"})
    assert (made.status_code, made.json()) == (201, {"status": "created", "name": "zoo"})
    again = http.post("/namespaces", json={"name": "zoo"})
    assert (again.status_code, set(again.json())) == (409, {"error"})
    assert http.post("/namespaces", json={"name": "No Name"}).status_code == 400
    listed = http.get("/namespaces").json()["namespaces"]
    assert [one["name"] for one in listed] == sorted(one["name"] for one in listed)
    (zoo,) = [one for one in listed if one["name"] == "zoo"]
    assert set(zoo) == {"name", "created_at"}
    assert abs(zoo["created_at"] - now_ms()) < 60_000
    assert http.delete("/namespaces/zoo").status_code == 204
    assert http.delete("/namespaces/zoo").status_code == 404


def test_deleting_a_namespace_takes_no_messages_with_it(http: Client) -> None:
    at = "/namespaces/ark/queues/doves"
    http.post("/namespaces/ark/queues/ravens")
    id_ = publish(http, at, max_retries=1)
    refused = http.delete("/namespaces/ark")
    assert (refused.status_code, set(refused.json())) == (409, {"error"})
    assert "ark/doves holds 1 messages" in refused.json()["error"]
    (message,) = lease(http, at)
    assert message["id"] == id_
    assert http.delete("/namespaces/ark").status_code == 409  # in flight
    assert nack(http, message) == 204
    assert http.delete("/namespaces/ark").status_code == 409  # dead
    assert http.get("/namespaces/ark/queues").json()["queues"] == ["ark/doves", "ark/ravens"]
    assert http.delete(f"{at.replace('doves', '__dlq__doves')}/messages").json() == {"purged": 1}
    assert http.delete("/namespaces/ark").status_code == 204
    assert http.get("/namespaces/ark/queues").json() == {"queues": []}


def test_the_queues_of_a_namespace_that_is_not_there_are_none(http: Client) -> None:
    answer = http.get("/namespaces/nowhere/queues")
    assert (answer.status_code, answer.json()) == (200, {"queues": []})


def test_queues_are_made_listed_and_deleted(http: Client, at: str, queue: str) -> None:
    made = http.post(at, json={"visibility_timeout_ms": 5000, "max_retries": 2})
    assert (made.status_code, made.json()) == (201, {"status": "created"})
    assert http.post(at).status_code == 409
    assert f"shop/{queue}" in http.get(f"{NS}/queues").json()["queues"]
    assert http.delete(at).status_code == 204
    assert http.delete(at).status_code == 404
    assert f"shop/{queue}" not in http.get(f"{NS}/queues").json()["queues"]


def test_the_settings_of_a_queue_are_kept_to(http: Client, at: str, queue: str) -> None:
    settings = {
        "visibility_timeout_ms": 5000,
        "max_messages": 7,
        "max_retries": 2,
        "max_batch_size": 3,
    }
    assert http.post(at, json=settings).status_code == 201
    found = http.get(queue_path(queue, namespace="shop")).json()["settings"]
    assert (found["lease_s"], found["max_messages"]) == (5.0, 7)
    assert (found["max_attempts"], found["max_batch"]) == (2, 3)


def test_publish_lease_and_ack(http: Client, at: str, queue: str) -> None:
    id_ = publish(http, at, b"\0hello", metadata={"kind": "greeting"})
    (message,) = lease(http, at)
    receipt, published_at = message.pop("receipt_handle"), message.pop("published_at")
    assert message == {
        "id": id_,
        "body": b64(b"\0hello"),
        "namespace": "shop",
        "queue": queue,
        "attempt": 1,
        "metadata": {"kind": "greeting"},
    }
    assert abs(published_at - now_ms()) < 60_000
    assert http.delete(f"/messages/{receipt}").status_code == 204
    gone = http.delete(f"/messages/{receipt}")
    assert (gone.status_code, set(gone.json())) == (410, {"error"})
    assert lease(http, at) == []


def test_a_batch_is_published_all_or_none(http: Client, at: str) -> None:
    http.post(at, json={"max_batch_size": 3})
    bodies = [{"body": b64(b"%d" % number)} for number in range(4)]
    answer = http.post(f"{at}/messages/batch", json=bodies[:3])
    assert (answer.status_code, len(answer.json()["ids"])) == (201, 3)
    wrongs: list[Any] = [bodies, [*bodies[:2], {"body": 1}], [*bodies[:2], {"bdy": "x"}], {}]
    for wrong in wrongs:
        assert http.post(f"{at}/messages/batch", json=wrong).status_code == 400
    assert row(http, at)["ready"] == 3


def test_an_empty_batch_is_published_and_makes_nothing(http: Client, at: str) -> None:
    answer = http.post(f"{at}/messages/batch", json=[])
    assert (answer.status_code, answer.json()) == (201, {"ids": []})
    assert http.delete(at).status_code == 404


def test_n_messages_are_leased_for_as_long_as_asked(http: Client, at: str) -> None:
    for _ in range(5):
        publish(http, at)
    assert len(lease(http, at, n=3, visibility_timeout_ms=60_000)) == 3
    assert len(lease(http, at, n=9)) == 2
    assert lease(http, at, n=9) == []
    assert row(http, at)["in_flight"] == 5


def test_deliver_at_schedules(http: Client, at: str) -> None:
    publish(http, at, deliver_at=now_ms() + DAY_MS)
    publish(http, at, b"due", deliver_at=now_ms() - 1000)
    assert [one["body"] for one in lease(http, at, n=9)] == [b64(b"due")]
    found = row(http, at)
    assert (found["scheduled"], found["in_flight"], found["depth"]) == (1, 1, 2)


@pytest.mark.parametrize("receipt", ["nonsense", "AQAAAAAAAQAqAAAAAAAAAAcAAAAAAAAA", "%00"])
def test_an_unknown_receipt_is_410(http: Client, receipt: str) -> None:
    assert http.delete(f"/messages/{receipt}").status_code == 410
    assert http.post(f"/messages/{receipt}/nack").status_code == 410


def test_a_nack_makes_a_message_ready_at_once(http: Client, at: str) -> None:
    id_ = publish(http, at)
    (first,) = lease(http, at)
    assert nack(http, first) == 204
    (second,) = lease(http, at)
    assert (second["id"], second["attempt"]) == (id_, 2)
    assert ack(http, first) == 410


def test_a_timeout_makes_a_message_ready_at_once(http: Client, at: str, queue: str) -> None:
    id_ = publish(http, at)
    lease(http, at, visibility_timeout_ms=1)
    path = queue_path(queue, "lease", namespace="shop")
    (again,) = http.post(path, json={"wait_s": 30}).json()["messages"]
    assert (again["id"], again["attempt"]) == (id_, 2)
    events = http.get(f"/api/v1/messages/{id_}/history").json()["events"]
    (late,) = [one for one in events if one["event"] == "timed_out"]
    assert late["retry_at"] <= late["at"]


@pytest.mark.parametrize(("max_retries", "attempts"), [(0, 5), (1, 1), (2, 2), (3, 3)])
def test_n_failed_attempts_make_a_message_dead(
    http: Client, at: str, max_retries: int, attempts: int
) -> None:
    publish(http, at, max_retries=max_retries)
    for number in range(attempts):
        (message,) = lease(http, at)
        assert message["attempt"] == number + 1
        assert nack(http, message) == 204
    assert lease(http, at) == []
    assert row(http, at)["dlq_depth"] == 1


def test_dead_letters_are_leased_and_settled_by_their_receipts(http: Client, at: str) -> None:
    ids = {publish(http, at, max_retries=1) for _ in range(3)}
    for message in lease(http, at, n=3):
        nack(http, message)
    dead = http.get(f"{at}/dlq", params={"limit": 2}).json()["messages"]
    assert len(dead) == 2
    assert {one["id"] for one in dead} < ids
    assert set(dead[0]) == {
        "id",
        "body",
        "receipt_handle",
        "namespace",
        "queue",
        "attempt",
        "published_at",
        "metadata",
    }
    assert ack(http, dead[0]) == 204
    assert nack(http, dead[1]) == 204
    assert row(http, at)["dlq_depth"] == 2


def test_replay_makes_dead_letters_ready_with_all_their_attempts(http: Client, at: str) -> None:
    ids = [publish(http, at, max_retries=1) for _ in range(3)]
    for message in lease(http, at, n=3):
        nack(http, message)
    answer = http.post(f"{at}/dlq/replay", params={"limit": 2})
    assert (answer.status_code, answer.json()) == (200, {"replayed": 2})
    again = lease(http, at, n=9)
    assert [one["attempt"] for one in again] == [1, 1]
    assert {one["id"] for one in again} < set(ids)
    assert http.post(f"{at}/dlq/replay").json() == {"replayed": 1}


def test_subscriptions_are_made_and_deleted(
    private: tuple[RunningServer, Client], queue: str
) -> None:
    _, http = private
    made = http.post(
        f"{NS}/queues/{queue}/subscriptions", json={"url": "http://127.0.0.1:1/", "secret": "s"}
    )
    assert (made.status_code, set(made.json())) == (201, {"id"})
    path = f"/subscriptions/{made.json()['id']}"
    shown = http.get(f"/api/v1/webhooks/{made.json()['id']}").json()
    assert (shown["style"], shown["group"], shown["retry_s"]) == ("epochqueue", "main", [1, 5, 30])
    assert http.delete(path).status_code == 204
    assert (http.delete(path).status_code, set(http.delete(path).json())) == (404, {"error"})


@pytest.fixture
def private(tmp_path: Path) -> Iterator[tuple[RunningServer, Client]]:
    """A server that may call private addresses."""
    settings = {"webhook_allow_private": True}
    with RunningServer(tmp_path / "data", broker=settings) as server, server.client() as http:
        yield server, http


def test_a_subscription_to_a_private_address_is_refused(http: Client, at: str) -> None:
    for url in ("http://169.254.169.254/", "http://localhost:9/", "http://10.0.0.1/"):
        answer = http.post(f"{at}/subscriptions", json={"url": url})
        assert (answer.status_code, set(answer.json())) == (400, {"error"})
        assert "webhook_allow_private" in answer.json()["error"]
        assert "PENSTOCK_BROKER_WEBHOOK_ALLOW_PRIVATE" in answer.json()["error"]


# -- limits ----------------------------------------------------------------------------------------

BAD_MESSAGES: dict[str, dict[str, Any]] = {
    "17 keys": {"metadata": {str(number): "x" for number in range(17)}},
    "a key of 65 bytes": {"metadata": {"k" * 65: "x"}},
    "an empty key": {"metadata": {"": "x"}},
    "a value of 513 bytes": {"metadata": {"k": "ä" * 257}},
    "metadata of numbers": {"metadata": {"k": 1}},
    "a number as body": {"body": 1},
    "a field that is not known": {"bdy": "aGVsbG8="},
    "more than 90 days ahead": {"deliver_at": 99_999_999_999_999},
    "a fraction as max_retries": {"max_retries": 1.5},
    "text as max_retries": {"max_retries": "1"},
}


@pytest.mark.parametrize("wrong", BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys())
def test_a_bad_message_is_a_400_and_makes_nothing(
    http: Client, at: str, wrong: dict[str, Any]
) -> None:
    answer = http.post(f"{at}/messages", json={"body": "", **wrong})
    assert (answer.status_code, set(answer.json())) == (400, {"error"})
    assert http.delete(at).status_code == 404


def test_what_is_just_within_the_limits_is_taken(http: Client, at: str) -> None:
    publish(http, at, metadata={f"{number:064}": "x" * 512 for number in range(16)})
    publish(http, at, b"x" * 256 * 1024)
    publish(http, at, deliver_at=now_ms() + 90 * DAY_MS - 60_000)


def test_a_body_over_256_kb_is_too_large(http: Client, at: str) -> None:
    answer = http.post(f"{at}/messages", json={"body": b64(b"x" * (256 * 1024 + 1))})
    assert (answer.status_code, set(answer.json())) == (413, {"error"})


@pytest.mark.parametrize("n", ["0", "-1", "x", "1e9", "99999999999999999999", "", "1.5", "٣"])
def test_a_count_that_is_none_means_the_default(http: Client, at: str, n: str) -> None:
    publish(http, at)
    publish(http, at)
    assert len(lease(http, at, n=n)) == 1


def test_a_large_count_is_bounded(http: Client, at: str) -> None:
    publish(http, at)
    publish(http, at)
    assert len(lease(http, at, n=1_000_000_000)) == 2


def test_max_batch_size_bounds_what_a_consumer_gets(http: Client, at: str) -> None:
    http.post(at, json={"max_batch_size": 2})
    for _ in range(3):
        publish(http, at)
    assert [len(lease(http, at, n=9)), len(lease(http, at, n=9))] == [2, 1]


@pytest.mark.parametrize("visibility_ms", ["0", "-5", "x", "", "999999999999999999"])
def test_a_visibility_that_is_none_means_the_default(
    http: Client, at: str, visibility_ms: str
) -> None:
    publish(http, at)
    assert len(lease(http, at, visibility_timeout_ms=visibility_ms)) == 1
    assert lease(http, at) == []


@pytest.mark.parametrize(
    ("query", "page", "limit"),
    [
        ("page=0&limit=0", 1, 50),
        ("page=-3&limit=-3", 1, 50),
        ("page=a&limit=b", 1, 50),
        ("limit=201", 1, 200),
        ("limit=999999999", 1, 200),
    ],
)
def test_a_page_and_a_limit_are_defaulted_or_bounded(
    http: Client, query: str, page: int, limit: int
) -> None:
    found = http.get(f"/api/stats?{query}").json()
    assert (found["page"], found["limit"]) == (page, limit)


def test_settings_of_a_queue_that_are_not_above_0_mean_the_defaults(
    http: Client, at: str, queue: str
) -> None:
    names = ("visibility_timeout_ms", "max_messages", "max_retries", "max_batch_size")
    assert http.post(at, json=dict.fromkeys(names, 0)).status_code == 201
    found = http.get(queue_path(queue, namespace="shop")).json()["settings"]
    assert (found["lease_s"], found["max_messages"], found["max_attempts"]) == (30.0, 0, 5)
    assert http.delete(at).status_code == 204
    assert http.post(at, json=dict.fromkeys(names, -1)).status_code == 201
    assert http.delete(at).status_code == 204
    assert http.post(at, json=dict.fromkeys(names, 10**17)).status_code == 201
    found = http.get(queue_path(queue, namespace="shop")).json()["settings"]
    assert (found["lease_s"], found["max_attempts"]) == (7 * 86_400.0, 65_535)


# -- as its own server reads them ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        ("aGVsbG8=", b"hello"),
        ("aGVs\nbG8=\r\n", b"hello"),
        ("", b""),
        ("hello world", b"hello world"),
        ("msg1", base64.b64decode("msg1")),
        ("order_42", b"order_42"),
        ("aGVsbG8", b"aGVsbG8"),
        ("_-8=", b"_-8="),
        ("grün", "grün".encode()),
        ("a" * 5, b"aaaaa"),
        ("aGVs=bG8", b"aGVs=bG8"),
    ],
)
def test_a_body_that_is_not_standard_base64_is_kept_as_text(
    http: Client, at: str, body: str, payload: bytes
) -> None:
    assert http.post(f"{at}/messages", json={"body": body}).status_code == 201
    assert base64.b64decode(lease(http, at)[0]["body"]) == payload


def test_fields_have_their_names_in_any_case(http: Client, at: str) -> None:
    sent = {"Body": "aGVsbG8=", "MAX_RETRIES": 1, "MetaData": {"Kind": "x", "kind": "y"}}
    assert http.post(f"{at}/messages", json=sent).status_code == 201
    assert http.post(f"{at}/messages/batch", json=[{"BODY": "aGVsbG8="}]).status_code == 201
    (first,) = lease(http, at)
    assert (first["body"], first["metadata"]) == ("aGVsbG8=", {"Kind": "x", "kind": "y"})
    assert lease(http, at)[0]["body"] == "aGVsbG8="
    nack(http, first)
    assert row(http, at)["dlq_depth"] == 1


def test_of_a_field_that_is_given_twice_the_last_counts(http: Client, at: str) -> None:
    sent = b'{"body":"Zmlyc3Q=","body":"bGFzdA==","metadata":{"a":"1","a":"2"},"deliver_at":null}'
    assert http.post(f"{at}/messages", content=sent).status_code == 201
    (message,) = lease(http, at)
    assert (message["body"], message["metadata"]) == ("bGFzdA==", {"a": "2"})


def test_metadata_may_hold_line_breaks(http: Client, at: str) -> None:
    metadata = {"note": "first\r\nsecond\tx", "empty": ""}
    publish(http, at, metadata=metadata)
    assert lease(http, at)[0]["metadata"] == metadata


def test_a_delivery_time_that_is_past_or_none_means_now(http: Client, at: str) -> None:
    for deliver_at in (0, -1, 1, None):
        publish(http, at, deliver_at=deliver_at)
    assert len(lease(http, at, n=9)) == 4


def test_a_purge_removes_what_is_ready_or_in_flight(http: Client, at: str) -> None:
    publish(http, at, b"dead", max_retries=1)
    nack(http, lease(http, at)[0])
    for _ in range(3):
        publish(http, at)
    publish(http, at, deliver_at=now_ms() + DAY_MS)
    (held,) = lease(http, at)
    purged = http.delete(f"{at}/messages")
    assert (purged.status_code, purged.json()) == (200, {"purged": 3})
    found = row(http, at)
    assert (found["depth"], found["scheduled"], found["dlq_depth"]) == (1, 1, 1)
    assert ack(http, held) == 410
    assert http.delete(f"{at}/messages").json() == {"purged": 0}


def test_a_purge_of_a_queue_that_is_not_there_is_404(http: Client, at: str) -> None:
    assert http.delete(f"{at}/messages").status_code == 404


def test_the_dead_letters_of_a_queue_are_a_queue_of_their_own_to_read(
    http: Client, at: str, queue: str
) -> None:
    dead_at = f"{NS}/queues/__dlq__{queue}"
    assert lease(http, dead_at) == []
    ids = {publish(http, at, max_retries=1) for _ in range(3)}
    for message in lease(http, at, n=3):
        nack(http, message)
    assert len(lease(http, dead_at, visibility_timeout_ms=60_000)) == 1
    dead = lease(http, dead_at, n=9)
    assert (len(dead), {one["queue"] for one in dead}) == (2, {queue})
    assert {one["id"] for one in dead} < ids
    assert (ack(http, dead[0]), nack(http, dead[1])) == (204, 204)
    assert row(http, at)["dlq_depth"] == 1
    refused = http.post(f"{dead_at}/messages", json={"body": ""})
    assert (refused.status_code, set(refused.json())) == (400, {"error"})
    assert http.post(dead_at).status_code == 400


@pytest.mark.parametrize(
    "path",
    [
        "/namespaces/Order/queues/payment",
        "/namespaces/order/queues/Payment",
        "/namespaces/my_ns/queues/q",
        "/namespaces/order/queues/a.b",
        "/namespaces/order/queues/-a",
    ],
)
def test_what_is_made_has_a_name_that_epochqueue_takes(http: Client, path: str) -> None:
    assert http.post(path, json={}).status_code == 400


def test_a_namespace_is_not_made_with_another_name_by_publishing(http: Client) -> None:
    at = "/namespaces/My_Space/queues/q"
    assert http.post(f"{at}/messages", json={"body": ""}).status_code == 400
    assert http.put("/api/v1/namespaces/My_Space/queues/q").status_code == 201
    publish(http, at)
    assert len(lease(http, at)) == 1


# -- what EpochQueue got wrong ---------------------------------------------------------------------


def test_attempts_grow_and_end_in_death_also_with_max_retries_above_1(
    http: Client, at: str
) -> None:
    http.post(at, json={"max_retries": 3})
    publish(http, at)
    attempts = []
    while found := lease(http, at):
        attempts.append(found[0]["attempt"])
        nack(http, found[0])
    assert attempts == [1, 2, 3]
    assert row(http, at)["dlq_depth"] == 1


def test_messages_in_flight_keep_their_retry_limit_and_receipts_over_a_restart(
    tmp_path: Path,
) -> None:
    at = f"{NS}/queues/orders"
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        publish(http, at, b"to be nacked", max_retries=2)
        publish(http, at, b"to be acked")
        first, second = lease(http, at, n=2)
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        assert ack(http, second) == 204
        assert nack(http, first) == 204
        (again,) = lease(http, at, n=9)
        assert (again["id"], again["attempt"]) == (first["id"], 2)
        assert nack(http, again) == 204
        assert row(http, at)["dlq_depth"] == 1


def test_scheduled_messages_count_towards_the_limit(http: Client, at: str) -> None:
    http.post(at, json={"max_messages": 2})
    publish(http, at)
    publish(http, at, deliver_at=now_ms() + DAY_MS)
    answer = http.post(f"{at}/messages", json={"body": ""})
    assert (answer.status_code, set(answer.json())) == (429, {"error"})
    assert "retry-after" in answer.headers


def test_subscriptions_survive_a_restart(tmp_path: Path) -> None:
    at, settings = f"{NS}/queues/orders", {"webhook_allow_private": True}
    with RunningServer(tmp_path / "data", broker=settings) as server, server.client() as http:
        made = http.post(f"{at}/subscriptions", json={"url": "http://127.0.0.1:1/"}).json()
    with RunningServer(tmp_path / "data", broker=settings) as server, server.client() as http:
        assert http.delete(f"/subscriptions/{made['id']}").status_code == 204


def test_queues_made_by_use_keep_the_promises_of_the_dialect(
    http: Client, at: str, queue: str
) -> None:
    lease(http, at)
    found = http.get(queue_path(queue, namespace="shop")).json()["settings"]
    assert (found["backoff_base_s"], found["max_payload_bytes"]) == (0.0, 256 * 1024)


def test_a_batch_size_is_bounded_by_that_of_a_queue_that_gives_none(
    http: Client, at: str, queue: str
) -> None:
    http.post(at, json={"max_batch_size": 20_000})
    settings = http.get(queue_path(queue, namespace="shop")).json()["settings"]
    assert settings["max_batch"] == 20_000


def test_half_a_surrogate_pair_in_a_body_is_told(http: Client, at: str) -> None:
    answer = http.post(f"{at}/messages", content=b'{"body": "\\ud800"}')
    assert answer.status_code == 400
    assert "surrogate" in answer.text


def test_a_large_batch_is_not_made_in_the_event_loop(
    http: Client, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def check(metadata: dict[str, str], path: str) -> None:
        threads.add(threading.current_thread().name)

    monkeypatch.setattr(messages, "_check_metadata", check)
    batch = [{"body": "x"}] * 1000
    assert http.post(f"{at}/messages/batch", json=batch).status_code == 201
    assert threads
    assert "server" not in threads  # the thread of the loop
