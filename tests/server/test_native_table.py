"""Every row of the native interface, over a real socket."""

import base64
from typing import Any

import httpx2
import pytest

from tests.server.running import RunningServer, queue_path

Client = httpx2.Client


def publish(http: Client, queue: str, *payloads: Any, **options: Any) -> list[str]:
    """Publish some, and answer their ids."""
    bodies = [{"payload": payload, **options} for payload in payloads]
    answer = http.post(queue_path(queue, "messages"), json=bodies)
    assert answer.status_code == 201, answer.text
    return [message["id"] for message in answer.json()["messages"]]


def lease(http: Client, queue: str, **asked: Any) -> list[dict[str, Any]]:
    answer = http.post(queue_path(queue, "lease"), json=asked)
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


def settle(http: Client, **asked: Any) -> list[dict[str, Any]]:
    answer = http.post("/api/v1/settle", json=asked)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


def kill(http: Client, queue: str, *payloads: Any) -> list[str]:
    """Publish, and let each fail for good."""
    ids = publish(http, queue, *payloads, max_attempts=1)
    receipts = [one["receipt"] for one in lease(http, queue, max=len(ids))]
    settle(http, nack=[{"receipt": receipt, "reason": "no luck"} for receipt in receipts])
    return ids


# -- probes and pages ------------------------------------------------------------------------------


def test_live_and_ready(http: Client) -> None:
    assert http.get("/livez").json() == {"status": "live"}
    assert http.get("/readyz").json()["status"] == "ready"
    assert http.head("/livez").status_code == 200


def test_metrics_are_for_prometheus(http: Client, queue: str) -> None:
    publish(http, queue, 1)
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert f'penstock_published_total{{namespace="default",queue="{queue}"}} 1.0' in answer.text
    assert 'penstock_http_requests_total{method="POST",route="/api/v1/' in answer.text


def test_docs_work_offline_under_a_strict_policy(http: Client) -> None:
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "http://" not in page.text and "https://" not in page.text
    for part in ("/docs/docs.js", "/docs/docs.css"):
        assert part in page.text
        assert http.get(part).status_code == 200


# -- namespaces and queues -------------------------------------------------------------------------


def test_namespaces_are_made_shown_changed_and_deleted(http: Client) -> None:
    made = http.post("/api/v1/namespaces", json={"name": "shop", "defaults": {"lease_s": 5}})
    assert made.status_code == 201
    assert http.post("/api/v1/namespaces", json={"name": "shop"}).status_code == 409
    assert http.get("/api/v1/namespaces/shop").json() == made.json()
    assert "shop" in [one["name"] for one in http.get("/api/v1/namespaces").json()["namespaces"]]
    changed = http.patch("/api/v1/namespaces/shop", json={"max_queues": 3})
    assert changed.json() == {**made.json(), "max_queues": 3}
    assert http.delete("/api/v1/namespaces/shop").status_code == 204
    assert http.get("/api/v1/namespaces/shop").status_code == 404


def test_a_namespace_with_queues_is_deleted_only_by_force(http: Client) -> None:
    http.put(queue_path("orders", namespace="forced"))
    refused = http.delete("/api/v1/namespaces/forced")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_empty")
    assert http.delete("/api/v1/namespaces/forced?force=true").status_code == 204
    assert http.get(queue_path("orders", namespace="forced")).status_code == 404


def test_a_queue_is_made_once_and_shown_with_its_counts(http: Client, queue: str) -> None:
    made = http.put(queue_path(queue), json={"lease_s": 5})
    assert made.status_code == 201
    assert made.json()["settings"]["lease_s"] == 5
    again = http.put(queue_path(queue), json={"lease_s": 5})
    assert (again.status_code, again.json()) == (200, made.json())
    other = http.put(queue_path(queue), json={"lease_s": 6})
    assert (other.status_code, other.json()["code"]) == (409, "already_exists")
    publish(http, queue, 1, 2)
    shown = http.get(queue_path(queue)).json()
    assert shown["stats"]["ready"] == shown["stats"]["groups"]["main"]["ready"] == 2


def test_settings_of_a_queue_are_changed_one_by_one(http: Client, queue: str) -> None:
    http.put(queue_path(queue))
    changed = http.patch(queue_path(queue), json={"max_attempts": 2}).json()
    assert changed["settings"]["max_attempts"] == 2
    assert changed["settings"]["lease_s"] == 30
    assert http.patch(queue_path("not-there"), json={"max_attempts": 2}).status_code == 404


def test_a_deleted_queue_is_gone(http: Client, queue: str) -> None:
    publish(http, queue, 1)
    assert http.delete(queue_path(queue)).status_code == 204
    assert http.get(queue_path(queue)).status_code == 404
    assert http.delete(queue_path(queue)).status_code == 404


def test_queues_are_listed_page_by_page(http: Client) -> None:
    names = [f"queue-{number}" for number in range(5)]
    for name in names:
        http.put(queue_path(name, namespace="paged"))
    found, parameters = [], {"limit": "2"}
    while True:
        page = http.get("/api/v1/namespaces/paged/queues", params=parameters).json()
        found += [one["name"] for one in page["queues"]]
        if "cursor" not in page:
            break
        parameters["cursor"] = page["cursor"]
    assert found == names
    with_counts = http.get("/api/v1/namespaces/paged/queues", params={"stats": "true"}).json()
    assert [one["stats"]["ready"] for one in with_counts["queues"]] == [0] * 5


# -- publishing ------------------------------------------------------------------------------------


def test_one_message_is_published_and_comes_back_as_it_was(http: Client, queue: str) -> None:
    payload = {"text": "größer", "numbers": [1, 2.5, None, True]}
    answer = http.post(queue_path(queue, "messages"), json={"payload": payload, "priority": 7})
    assert answer.status_code == 201
    [leased] = lease(http, queue)
    assert leased["id"] == answer.json()["id"]
    assert leased["payload"] == payload
    assert (leased["priority"], leased["attempt"]) == (7, 1)
    assert leased["content_type"] == "application/json"


def test_bytes_travel_as_base64(http: Client, queue: str) -> None:
    data = bytes(range(256))
    body = {"payload_b64": base64.b64encode(data).decode()}
    assert http.post(queue_path(queue, "messages"), json=body).status_code == 201
    [leased] = lease(http, queue)
    assert base64.b64decode(leased["payload_b64"]) == data
    assert "payload" not in leased


def test_a_body_that_is_not_json_is_one_message(http: Client, queue: str) -> None:
    answer = http.post(
        queue_path(queue, "messages"),
        params={"priority": "9", "key": "k", "ttl_s": "60"},
        content=b"\x00\xff",
        headers={"content-type": "image/png", "Penstock-H-Shop": "north"},
    )
    assert answer.status_code == 201, answer.text
    [leased] = lease(http, queue)
    assert base64.b64decode(leased["payload_b64"]) == b"\x00\xff"
    assert leased["content_type"] == "image/png"
    assert leased["headers"] == {"shop": "north"}
    assert (leased["priority"], leased["key"]) == (9, "k")
    assert "expires_at" in leased


def test_options_of_json_in_the_query_are_refused_not_lost(http: Client, queue: str) -> None:
    path = queue_path(queue, "messages")
    answer = http.post(path, params={"priority": "9"}, json={"payload": 1})
    assert answer.status_code == 400
    assert "priority in the query string" in answer.json()["detail"]


def test_options_of_a_message(http: Client, queue: str) -> None:
    options = {
        "priority": 1,
        "deliver_at": "2020-01-31T12:00:00Z",
        "ttl_s": 1e6,
        "headers": {"a": "b"},
        "key": "k",
        "max_attempts": 3,
    }
    [id_] = publish(http, queue, {"x": 1}, **options)
    [leased] = lease(http, queue)
    assert leased["id"] == id_
    assert leased["headers"] == {"a": "b"}
    assert (leased["key"], leased["max_attempts"]) == ("k", 3)


@pytest.mark.parametrize("at", ["2090-01-31T12:00:00+01:00", 3789025200000])
def test_times_are_rfc_3339_or_milliseconds(http: Client, queue: str, at: object) -> None:
    [id_] = publish(http, queue, 1, deliver_at=at)
    shown = http.get(f"/api/v1/messages/{id_}").json()
    assert shown["state"] == "scheduled"
    assert shown["deliver_at"].startswith("2090-01-")
    assert shown["deliver_at"].endswith("Z")


def test_a_duplicate_is_answered_with_the_first_id(http: Client, queue: str) -> None:
    body = {"payload": 1, "dedup_id": "order-1"}
    first = http.post(queue_path(queue, "messages"), json=body).json()
    second = http.post(queue_path(queue, "messages"), json=body).json()
    assert "duplicate" not in first
    assert second == {"id": first["id"], "duplicate": True}


def test_a_batch_is_published_whole_or_not_at_all(http: Client, queue: str) -> None:
    bodies = [{"payload": 1}, {"payload": 2, "headers": {"a\n": "b"}}]
    answer = http.post(queue_path(queue, "messages"), json=bodies)
    assert answer.status_code == 400, answer.text
    assert "message 1 of the batch" in answer.json()["detail"]
    assert lease(http, queue) == []
    assert len(publish(http, queue, 1, 2, 3)) == 3


def test_the_path_of_batches_takes_arrays_only(http: Client, queue: str) -> None:
    path = queue_path(queue, "messages", "batch")
    answer = http.post(path, json=[{"payload": 1}, {"payload": 2, "priority": 7}])
    assert answer.status_code == 201
    ids = [one["id"] for one in answer.json()["messages"]]
    assert [one["id"] for one in lease(http, queue, max=3)] == ids[::-1]
    single = http.post(path, json={"payload": 1})
    assert (single.status_code, single.json()["code"]) == (400, "invalid_input")
    assert http.post(path, content=b"x", headers={"content-type": "text/x"}).status_code == 415


# -- looking ---------------------------------------------------------------------------------------


def test_messages_are_browsed_without_taking_them(http: Client, queue: str) -> None:
    ids = publish(http, queue, *({"n": number} for number in range(5)))
    path = queue_path(queue, "messages")
    first = http.get(path, params={"limit": 3}).json()
    assert [one["id"] for one in first["messages"]] == ids[:3]
    second = http.get(path, params={"limit": 3, "cursor": first["cursor"]}).json()
    assert [one["id"] for one in second["messages"]] == ids[3:]
    assert "cursor" not in second
    assert second["messages"][0]["state"] == "ready"
    assert len(lease(http, queue, max=10)) == 5


def test_browsing_filters(http: Client, queue: str) -> None:
    [red] = publish(http, queue, {"colour": "red"}, key="r")
    [blue] = publish(http, queue, {"colour": "blue"}, delay_s=1000)
    path = queue_path(queue, "messages")

    def found(**parameters: str) -> list[str]:
        answer = http.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return [one["id"] for one in answer.json()["messages"]]

    assert found(text="blue") == [blue]
    assert found(state="ready") == [red]
    assert found(key="r") == [red]
    assert found(since="2020-01-01T00:00:00Z", until="2021-01-01T00:00:00Z") == []
    assert found(since="1577836800000") == [red, blue]


def test_peeking_shows_what_comes_next(http: Client, queue: str) -> None:
    [low] = publish(http, queue, 1, priority=1)
    [high] = publish(http, queue, 2, priority=9)
    path = queue_path(queue, "messages")
    shown = http.get(path, params={"order": "delivery"}).json()["messages"]
    assert [one["id"] for one in shown] == [high, low]
    assert http.get(path, params={"order": "delivery", "state": "ready"}).status_code == 400


def test_one_message_its_history_and_why_it_waits(http: Client, queue: str) -> None:
    [id_] = publish(http, queue, {"x": 1}, delay_s=1000)
    shown = http.get(f"/api/v1/messages/{id_}").json()
    assert (shown["payload"], shown["state"], shown["attempts"]) == ({"x": 1}, "scheduled", 0)
    why = http.get(f"/api/v1/messages/{id_}/why").json()
    assert (why["id"], why["group"], why["state"]) == (id_, "main", "scheduled")
    history = http.get(f"/api/v1/messages/{id_}/history").json()
    assert [one["event"] for one in history["events"]] == ["published"]
    assert history["events"][0]["at"].endswith("Z")


def test_how_often_a_message_was_tried(http: Client, queue: str) -> None:
    [id_] = publish(http, queue, 1, max_attempts=4)
    info = http.get(f"/api/v1/messages/{id_}/retry_info").json()
    assert info == {
        "id": id_,
        "group": "main",
        "state": "ready",
        "attempts": 0,
        "max_attempts": 4,
        "reason": "",
    }
    [leased] = lease(http, queue)
    settle(http, nack=[{"receipt": leased["receipt"], "reason": "no", "delay_s": 1000}])
    info = http.get(f"/api/v1/messages/{id_}/retry_info").json()
    assert (info["state"], info["attempts"], info["reason"]) == ("scheduled", 1, "no")
    assert info["first_failure_at"] == info["last_failure_at"] < info["next_attempt_at"]
    missing = http.get("/api/v1/messages/00000000000000000000000000/retry_info")
    assert missing.status_code == 404


def test_a_receipt_is_settled_as_text_or_in_an_object(http: Client, queue: str) -> None:
    publish(http, queue, *range(8))
    held = [one["receipt"] for one in lease(http, queue, max=8)]
    results = settle(
        http,
        ack=[held[0], {"receipt": held[1]}],
        nack=[held[2], {"receipt": held[3], "reason": "no"}],
        extend=[held[4], {"receipt": held[5]}],
        release=[held[6], {"receipt": held[7]}],
    )
    assert [one["receipt"] for one in results] == held
    assert {one["status"] for one in results} == {"done"}


@pytest.mark.parametrize(
    "body", ['{"ack":["%s"]}', ' {\n"ack"\t: [ "%s" ]\r\n} ', '{"ack":[{"receipt":"%s"}]}']
)
def test_an_ack_of_one_message_is_answered_alike_in_any_form(
    http: Client, queue: str, body: str
) -> None:
    """The first forms take a shorter way."""
    publish(http, queue, 1)
    [leased] = lease(http, queue)
    receipt = leased["receipt"]

    def ack(receipt: str, text: str = body) -> httpx2.Response:
        headers = {"Content-Type": "application/json"}
        return http.post("/api/v1/settle", content=text % receipt, headers=headers)

    done = {"results": [{"receipt": receipt, "status": "done"}]}
    repeated = {"receipt": receipt, "status": "repeated", "detail": "acked before"}
    assert ack(receipt).json() == done
    assert ack(receipt).json() == {"results": [repeated]}
    other = "A" * 32  # of no queue
    assert (ack(other).status_code, ack(other).json()["code"]) == (410, "receipt_invalid")
    assert ack(receipt, body.replace("{", "{\v", 1)).status_code == 400
    assert ack(receipt, body + "]").status_code == 400


def test_a_cancelled_message_is_not_delivered(http: Client, queue: str) -> None:
    [id_] = publish(http, queue, 1)
    assert http.delete(f"/api/v1/messages/{id_}").json() == {"cancelled": True}
    assert lease(http, queue) == []
    assert http.get("/api/v1/messages/00000000000000000000000000").status_code == 404


# -- delivering ------------------------------------------------------------------------------------


def test_settling_has_a_result_for_each_receipt(http: Client, queue: str) -> None:
    publish(http, queue, *range(5))
    leased = lease(http, queue, max=5, lease_s=100)
    one, two, three, four, five = (message["receipt"] for message in leased)
    results = settle(
        http,
        ack=[one, two],
        nack=[{"receipt": three, "reason": "busy", "delay_s": 0}],
        extend=[{"receipt": four, "lease_s": 200}],
        release=[five, "made-up"],
    )
    assert [result["status"] for result in results] == [
        *["done"] * 5,
        "invalid",
    ]
    assert [result["receipt"] for result in results] == [one, two, three, four, five, "made-up"]
    again = lease(http, queue, max=5)
    assert sorted(message["attempt"] for message in again) == [1, 2]  # released, and nacked


@pytest.mark.parametrize("verdict", ["ack", "nack", "extend", "release"])
def test_a_receipt_may_be_text_or_an_object_in_each_list(
    http: Client, queue: str, verdict: str
) -> None:
    publish(http, queue, 1, 2)
    one, two = (message["receipt"] for message in lease(http, queue, max=2, lease_s=1000))
    results = settle(http, **{verdict: [one, {"receipt": two}]})
    assert [result["status"] for result in results] == ["done", "done"]


def test_an_extend_without_a_duration_is_as_the_queue_is_set(http: Client, queue: str) -> None:
    publish(http, queue, 1)
    http.patch(queue_path(queue), json={"lease_s": 500})
    [leased] = lease(http, queue, lease_s=5)
    assert settle(http, extend=[leased["receipt"]])[0]["status"] == "done"
    why = http.get(f"/api/v1/messages/{leased['id']}/why").json()
    assert why["details"]["left_s"] > 400


def test_a_repeated_ack_is_fine_and_said_so(http: Client, queue: str) -> None:
    publish(http, queue, 1)
    [leased] = lease(http, queue)
    assert settle(http, ack=[leased["receipt"]])[0]["status"] == "done"
    assert settle(http, ack=[leased["receipt"]])[0]["status"] == "repeated"


def test_an_ack_can_publish_in_the_same_write(http: Client, queue: str) -> None:
    publish(http, queue, "first")
    [leased] = lease(http, queue)
    [result] = settle(http, ack=[{"receipt": leased["receipt"], "emit": [{"payload": "next"}]}])
    [following] = lease(http, queue)
    assert [following["id"]] == result["ids"]
    assert following["payload"] == "next"


def test_a_long_poll_is_answered_by_what_arrives(
    server: RunningServer, http: Client, queue: str
) -> None:
    with server.wire() as waiting:
        waiting.json_request("POST", queue_path(queue, "lease"), {"wait_s": 30})
        server.until(lambda: len(server.server.broker.waiting) == 1)
        [id_] = publish(http, queue, "hello")
        [message] = waiting.answer().json["messages"]
    assert message["id"] == id_


def test_a_long_poll_ends_with_nothing(http: Client, queue: str) -> None:
    assert lease(http, queue, wait_s=0.01) == []


def test_lease_without_a_body_means_the_defaults(http: Client, queue: str) -> None:
    publish(http, queue, 1, 2)
    answer = http.post(queue_path(queue, "lease"))
    assert len(answer.json()["messages"]) == 1


def test_dead_letters_are_leased_where_asked_for(http: Client, queue: str) -> None:
    [id_] = kill(http, queue, 1)
    assert lease(http, queue) == []
    [leased] = lease(http, queue, dead=True)
    assert leased["id"] == id_


# -- groups and seeking ----------------------------------------------------------------------------


def test_groups_read_each_for_themselves(http: Client, queue: str) -> None:
    path = queue_path(queue, "groups")
    publish(http, queue, 1, 2)
    assert http.put(f"{path}/audit", json={"at": "beginning"}).status_code == 201
    assert http.put(f"{path}/audit").status_code == 200
    assert http.get(path).json() == {"groups": ["audit", "main"]}
    assert http.get(f"{path}/audit").json()["stats"]["ready"] == 2
    assert len(lease(http, queue, group="audit", max=5)) == 2
    assert len(lease(http, queue, max=5)) == 2
    assert http.delete(f"{path}/audit").status_code == 204
    assert http.get(f"{path}/audit").json()["code"] == "no_such_group"


def test_seek_goes_back_and_forth(http: Client, queue: str) -> None:
    ids = publish(http, queue, 1, 2, 3)
    path = queue_path(queue, "seek")
    assert http.post(path, json={"to": "end"}).json() == {"next_seq": 4}
    assert lease(http, queue) == []
    assert http.post(path, json={"to": {"id": ids[1]}}).json() == {"next_seq": 2}
    assert http.post(path, json={"to": {"seq": 3}}).json() == {"next_seq": 3}
    assert http.post(path, json={"to": {"time": "2020-01-01T00:00:00Z"}}).json()["next_seq"] == 1
    assert http.post(path, json={"to": {"seq": 3, "id": ids[0]}}).status_code == 400
    assert http.post(path, json={"to": "beginning"}).json() == {"next_seq": 1}
    assert len(lease(http, queue, max=5)) == 3


# -- dead letters ----------------------------------------------------------------------------------


def test_dead_letters_are_listed_with_their_reason(http: Client, queue: str) -> None:
    ids = kill(http, queue, 1, 2, 3)
    path = queue_path(queue, "dead")
    page = http.get(path, params={"limit": 2}).json()
    assert [one["id"] for one in page["messages"]] == ids[:2]
    assert page["messages"][0]["reason"] == "no luck"
    assert page["messages"][0]["cause"] == "nack"
    rest = http.get(path, params={"limit": 2, "cursor": page["cursor"]}).json()
    assert [one["id"] for one in rest["messages"]] == ids[2:]


def test_redrive_by_id_by_filter_and_all(http: Client, queue: str) -> None:
    ids = kill(http, queue, 1, 2, 3)
    path = queue_path(queue, "redrive")
    assert http.post(path, json={"ids": ids, "dry_run": True}).json() == {"redriven": 3}
    assert http.post(path, json={"ids": ids[:1]}).json() == {"redriven": 1}
    assert http.post(path, json={"reason": "other"}).json() == {"redriven": 0}
    assert http.post(path, json={"until": "2020-01-01T00:00:00Z"}).json() == {"redriven": 0}
    assert http.post(path).json() == {"redriven": 2}
    assert len(lease(http, queue, max=5)) == 3


def test_paced_redrives_are_listed_and_cancelled(http: Client, queue: str) -> None:
    kill(http, queue, 1, 2, 3)
    path = queue_path(queue, "redrives")
    assert http.get(path).json() == {"redrives": []}
    http.post(queue_path(queue, "redrive"), json={"max_rate": 0.001})
    (shown,) = http.get(path).json()["redrives"]
    id_ = shown.pop("id")
    assert shown == {"group": "main", "max_rate": 0.001, "state": "running"}
    assert http.delete(f"{path}/{id_}").json() == {"cancelled": True}
    for gone in (f"{path}/{id_}", f"{path}/nope"):
        answer = http.delete(gone)
        assert (answer.status_code, answer.json()["code"]) == (404, "no_such_redrive")
    assert (
        http.delete(queue_path("missing", "redrives") + "/nope").json()["code"] == "no_such_queue"
    )
    assert http.get(path).json() == {"redrives": []}
    assert http.get(queue_path("missing", "redrives")).status_code == 404


@pytest.mark.parametrize("rate", [0, -1, 1e-9, 1e10, "10", True])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_rate_that_is_none_is_refused(
    http: Client, queue: str, rate: Any, *, dry_run: bool
) -> None:
    kill(http, queue, 1, 2, 3)
    answer = http.post(queue_path(queue, "redrive"), json={"max_rate": rate, "dry_run": dry_run})
    assert (answer.status_code, "max_rate" in answer.text) == (400, True)
    assert lease(http, queue, max=5) == []


def test_redrive_at_a_rate_is_answered_at_once_and_goes_on(http: Client, queue: str) -> None:
    kill(http, queue, 1, 2, 3)
    asked = {"max_rate": 1000.0}
    assert http.post(queue_path(queue, "redrive"), json=asked).json() == {"redriven": 3}
    assert lease(http, queue, wait_s=20)


def test_a_search_through_payloads_says_where_it_stopped(http: Client, queue: str) -> None:
    publish(http, queue, *(["hay"] * 10_005), "needle")
    path, query = queue_path(queue, "messages"), {"text": "needle"}
    first = http.get(path, params=query).json()
    assert (first["messages"], first["exhausted"], first["looked_at"]) == ([], True, 10_000)
    second = http.get(path, params={**query, "cursor": first["cursor"]}).json()
    assert [one["payload"] for one in second["messages"]] == ["needle"]
    assert "exhausted" not in second


def test_discarded_dead_letters_are_gone(http: Client, queue: str) -> None:
    ids = kill(http, queue, 1, 2)
    path = queue_path(queue, "discard")
    assert http.post(path, json={"ids": ids[:1]}).json() == {"discarded": 1}
    assert http.post(path).json() == {"discarded": 1}


# -- operations ------------------------------------------------------------------------------------


def test_purge_pause_resume_and_compact(http: Client, queue: str) -> None:
    publish(http, queue, 1, 2, 3)
    assert http.post(queue_path(queue, "pause")).json() == {"paused": True}
    assert lease(http, queue) == []
    assert http.post(queue_path(queue, "resume")).json() == {"paused": False}
    assert len(lease(http, queue)) == 1
    assert http.post(queue_path(queue, "purge")).json()["purged"] >= 2
    assert http.post(queue_path(queue, "compact")).json()["freed_bytes"] >= 0


def test_sync_is_answered_after_a_sync_whatever_the_policy(http: Client, queue: str) -> None:
    def syncs() -> float:
        page = http.get("/metrics").text
        (count,) = [line for line in page.splitlines() if "penstock_commit_answers_count" in line]
        return float(count.split()[-1])

    publish(http, queue, 1)  # the server of these tests has `sync = "never"`
    before = syncs()
    answer = http.post(queue_path(queue, "sync"))
    assert (answer.status_code, syncs()) == (204, before + 1)
    assert http.post(queue_path("not-there", "sync")).status_code == 404


def test_a_rate_limit_refuses_what_is_beyond_it(http: Client, queue: str) -> None:
    http.put(queue_path(queue))
    path = queue_path(queue, "rate_limit")
    assert http.get(path).json() == {"capacity": 0.0, "refill_per_s": 0.0}
    limit = {"capacity": 2.0, "refill_per_s": 0.001}
    assert http.put(path, json=limit).json() == http.get(path).json() == limit
    publish(http, queue, 1, 2)
    refused = http.post(queue_path(queue, "messages"), json={"payload": 3})
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["retry_after_s"] > 1
