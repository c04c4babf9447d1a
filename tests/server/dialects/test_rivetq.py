"""Every row of RivetQ's interface, over a real socket, and what RivetQ itself got wrong."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.server.dialects.rivetq import IDEMPOTENCY_S
from tests.server.running import RunningServer, queue_path

Client = httpx2.Client
ORIGIN = "https://app.example.com"


def enqueue(http: Client, queue: str, payload: Any = None, **options: Any) -> str:
    answer = http.post(f"/v1/queues/{queue}/enqueue", json={"payload": payload, **options})
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"job_id"}
    return str(answer.json()["job_id"])


def lease(http: Client, queue: str, **options: Any) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/queues/{queue}/lease", json=options)
    assert answer.status_code == 200, answer.text
    jobs = answer.json()["jobs"]
    assert isinstance(jobs, list)
    return jobs


def settle(http: Client, verb: str, job: dict[str, Any], **more: Any) -> httpx2.Response:
    body = {"job_id": job["id"], "lease_id": job["lease_id"], **more}
    return http.post(f"/v1/{verb}", json=body)


def next_attempt(http: Client, queue: str) -> dict[str, Any]:
    """The next delivery, waited for as only the native interface can; given back unspent."""
    (leased,) = http.post(queue_path(queue, "lease"), json={"wait_s": 30}).json()["messages"]
    assert http.post("/api/v1/settle", json={"release": [leased["receipt"]]}).is_success
    (job,) = lease(http, queue)
    return job


def stats(http: Client, queue: str) -> dict[str, int]:
    return dict(http.get(f"/v1/queues/{queue}/stats").json())


# -- the rows --------------------------------------------------------------------------------------


def test_enqueue_lease_and_ack(http: Client, queue: str) -> None:
    id_ = enqueue(http, queue, {"to": "a@example.com"}, priority=7, headers={"kind": "mail"})
    (job,) = lease(http, queue, max_jobs=1, visibility_ms=30000)
    lease_id = job.pop("lease_id")
    assert job == {
        "id": id_,
        "queue": queue,
        "payload": {"to": "a@example.com"},
        "headers": {"kind": "mail"},
        "priority": 7,
        "tries": 0,
    }
    answer = http.post("/v1/ack", json={"job_id": id_, "lease_id": lease_id})
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert stats(http, queue) == {"ready": 0, "inflight": 0, "dlq": 0}


def test_a_missing_or_empty_lease_body_means_the_defaults(http: Client, queue: str) -> None:
    for _ in range(3):
        enqueue(http, queue)
    for body in (b"", b"{}", b'{"max_jobs": 0, "visibility_ms": 0}'):
        answer = http.post(f"/v1/queues/{queue}/lease", content=body)
        assert [job["queue"] for job in answer.json()["jobs"]] == [queue]
    (left,) = http.post(queue_path(queue, "lease"), json={"max": 9}).json()["messages"] or [None]
    assert left is None


def test_the_payload_comes_back_as_the_json_that_was_sent(http: Client, queue: str) -> None:
    sent = b'{"payload": { "b": 1.50,"a":"\\u00e4", "big": 12345678901234567890 }}'
    http.post(f"/v1/queues/{queue}/enqueue", content=sent)
    answer = http.post(f"/v1/queues/{queue}/lease")
    assert b'{ "b": 1.50,"a":"\\u00e4", "big": 12345678901234567890 }' in answer.content


@pytest.mark.parametrize("payload", [None, 0, "", [], {}, False, "text", [1, [2]]], ids=repr)
def test_any_json_is_a_payload(http: Client, queue: str, payload: Any) -> None:
    enqueue(http, queue, payload)
    (job,) = lease(http, queue)
    assert job["payload"] == payload
    assert "headers" not in job


def test_nack_gives_the_job_back_with_one_more_try(http: Client, queue: str) -> None:
    enqueue(http, queue)
    (job,) = lease(http, queue)
    answer = settle(http, "nack", job, reason="not today")
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert next_attempt(http, queue)["tries"] == 1


def test_a_wrong_or_old_lease_is_refused(http: Client, queue: str) -> None:
    enqueue(http, queue)
    enqueue(http, queue)
    job, other = lease(http, queue, max_jobs=2)
    for lease_id in ("nonsense", "", other["lease_id"]):
        for verb in ("ack", "nack"):
            answer = settle(http, verb, {**job, "lease_id": lease_id})
            assert answer.status_code == 410
            assert set(answer.json()) == {"error"}
    assert settle(http, "nack", job).is_success
    assert settle(http, "ack", job).status_code == 410
    assert settle(http, "ack", other).is_success


def test_stats_count_delayed_jobs_as_ready_and_an_unknown_queue_is_404(
    http: Client, queue: str
) -> None:
    answer = http.get(f"/v1/queues/{queue}/stats")
    assert (answer.status_code, set(answer.json())) == (404, {"error"})
    enqueue(http, queue)
    enqueue(http, queue)
    enqueue(http, queue, delay_ms=3_600_000)
    lease(http, queue)
    assert stats(http, queue) == {"ready": 2, "inflight": 1, "dlq": 0}


@pytest.mark.parametrize("path", ["/v1/queues/", "/v1/queues"])
def test_queues_are_listed_with_and_without_the_slash(http: Client, queue: str, path: str) -> None:
    enqueue(http, queue)
    http.put(queue_path("elsewhere", namespace="other"))
    names = http.get(path).json()["queues"]
    assert queue in names
    assert "elsewhere" not in names


def test_the_rate_limit_is_set_shown_and_kept_to(http: Client, queue: str) -> None:
    path = f"/v1/queues/{queue}/rate_limit"
    assert http.get(path).json() == {"capacity": 0, "refill_rate": 0, "exists": False}
    answer = http.post(path, json={"capacity": 2, "refill_rate": 0.001})
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert http.get(path).json() == {"capacity": 2, "refill_rate": 0.001, "exists": True}
    enqueue(http, queue)
    enqueue(http, queue)
    refused = http.post(f"/v1/queues/{queue}/enqueue", json={"payload": 1})
    assert (refused.status_code, set(refused.json())) == (429, {"error"})
    assert int(refused.headers["retry-after"]) > 1
    assert http.post(path, json={"capacity": 0, "refill_rate": 0}).is_success
    enqueue(http, queue)
    assert http.get(path).json()["exists"] is False


def test_health_needs_no_key(http: Client) -> None:
    answer = http.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "healthy"})


# -- rules -----------------------------------------------------------------------------------------


def test_the_third_failed_try_makes_a_job_dead_by_default(http: Client, queue: str) -> None:
    enqueue(http, queue)
    (job,) = lease(http, queue)
    for tries in range(3):
        assert job["tries"] == tries
        assert settle(http, "nack", job).is_success
        if tries < 2:
            job = next_attempt(http, queue)
    assert stats(http, queue) == {"ready": 0, "inflight": 0, "dlq": 1}


@pytest.mark.parametrize("max_retries", [1, 2])
def test_max_retries_n_means_n_attempts(http: Client, queue: str, max_retries: int) -> None:
    enqueue(http, queue, max_retries=max_retries)
    (job,) = lease(http, queue)
    for attempt in range(max_retries):
        assert stats(http, queue)["dlq"] == 0
        assert settle(http, "nack", job).is_success
        if attempt + 1 < max_retries:
            job = next_attempt(http, queue)
    assert stats(http, queue)["dlq"] == 1


def test_max_retries_0_means_the_default(http: Client, queue: str) -> None:
    enqueue(http, queue, max_retries=0)
    (job,) = lease(http, queue)
    assert settle(http, "nack", job).is_success
    assert stats(http, queue)["dlq"] == 0


def test_a_nack_waits_the_backoff(http: Client, queue: str) -> None:
    id_ = enqueue(http, queue)
    (job,) = lease(http, queue)
    settle(http, "nack", job)
    retry = http.get(f"/api/v1/messages/{id_}/history").json()["events"][-1]
    assert retry["event"] == "nacked"
    waits_s = _seconds(retry["retry_at"]) - _seconds(retry["at"])
    assert 0.09 <= waits_s <= 0.11


def test_higher_priorities_come_first_and_none_given_is_the_lowest(
    http: Client, queue: str
) -> None:
    for name, options in [("none", {}), ("low", {"priority": 1}), ("high", {"priority": 9})]:
        enqueue(http, queue, name, **options)
    jobs = lease(http, queue, max_jobs=3)
    assert [(job["payload"], job["priority"]) for job in jobs] == [
        ("high", 9),
        ("low", 1),
        ("none", 0),
    ]


def test_the_same_idempotency_key_answers_with_the_same_job(http: Client, queue: str) -> None:
    first = enqueue(http, queue, 1, idempotency_key="k")
    assert enqueue(http, queue, 2, idempotency_key="k") == first
    assert enqueue(http, queue, 3, idempotency_key="") != enqueue(
        http, queue, 4, idempotency_key=""
    )
    assert stats(http, queue)["ready"] == 3


def test_an_idempotency_key_is_kept_for_a_week_whatever_the_queue_says(tmp_path: Path) -> None:
    assert IDEMPOTENCY_S == 7 * 86_400
    broker = {"queues": {"sync": "never", "min_free_bytes": 0, "dedup_window_s": 0.001}}
    with RunningServer(tmp_path / "data", broker=broker) as server, server.client() as http:
        first = enqueue(http, "jobs", 1, idempotency_key="k")
        for number in range(20):
            enqueue(http, "jobs", number)
        assert enqueue(http, "jobs", 2, idempotency_key="k") == first


def test_of_more_idempotency_keys_than_a_queue_keeps_the_oldest_is_forgotten(
    http: Client, queue: str
) -> None:
    http.put(queue_path(queue), json={"dedup_entries": 2}).raise_for_status()
    first, second, third = (enqueue(http, queue, 1, idempotency_key=key) for key in "abc")
    assert enqueue(http, queue, 1, idempotency_key="b") == second
    assert enqueue(http, queue, 1, idempotency_key="c") == third
    assert enqueue(http, queue, 1, idempotency_key="a") != first


def test_a_field_that_is_not_known_is_passed_over_as_rivetq_does(http: Client, queue: str) -> None:
    enqueue(http, queue, 1, trace_id="abc")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"payload": NaN}',
        b'{"payload": 1, "priority": 256}',
        b'{"payload": 1, "priority": -1}',
        b'{"payload": 1, "priority": "5"}',
        b'{"payload": 1, "priority": 5.5}',
        b'{"payload": 1, "delay_ms": 1e308}',
        b'{"payload": 1, "delay_ms": 9223372036854775808}',
        b'{"payload": 1, "delay_ms": -9223372036854775809}',
        b'{"payload": 1, "delay_ms": 100000000000000000000000000}',
        b'{"payload": 1, "max_retries": -1}',
        b'{"payload": 1, "max_retries": 4294967296}',
        b'{"paylod": 1}',
        b'{"payload": "\xff"}',
        b'{"payload": 1, "headers": {"a": 1}}',
        b'{"payload": 1, "headers": {"a\\nb": "x"}}',
    ],
)
def test_bad_input_is_a_400_with_an_error_and_changes_nothing(
    http: Client, queue: str, body: bytes
) -> None:
    answer = http.post(f"/v1/queues/{queue}/enqueue", content=body)
    assert (answer.status_code, set(answer.json())) == (400, {"error"})
    assert http.get(f"/v1/queues/{queue}/stats").status_code in (200, 404)


PAYLOADS = [
    b"12345678901234567890123456789012345678901234567890",
    b"-0",
    b"1e999",
    b"0.1000000000000000055511151231257827",
    b'{"z":1,"a":[],"z":2, "m" : {} }',
    b'"\\ud800 <&> \\u2028"',
    b"[" * 9_000 + b"]" * 9_000,
    b'{"a":' * 9_998 + b"1.50" + b"}" * 9_998,
    b"[" * 10_000 + b"]" * 10_000,
    b'"' + b"x" * 100_000 + b'"',
    b"[" * 5_000 + b'"' + b"x" * 100_000 + b'"' + b"]" * 5_000,
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda it: repr(it[:20]))
def test_a_payload_comes_back_byte_for_byte(http: Client, queue: str, payload: bytes) -> None:
    sent = http.post(f"/v1/queues/{queue}/enqueue", content=b'{"payload":' + payload + b"}")
    assert sent.status_code == 200, sent.text
    answer = http.post(f"/v1/queues/{queue}/lease").content
    assert b'"payload":' + payload + b"," in answer


def test_a_payload_nested_deeper_than_go_reads_is_refused(http: Client, queue: str) -> None:
    payload = b"[" * 10_001 + b"]" * 10_001
    answer = http.post(f"/v1/queues/{queue}/enqueue", content=b'{"payload":' + payload + b"}")
    assert (answer.status_code, set(answer.json())) == (400, {"error"})
    assert http.get(f"/v1/queues/{queue}/stats").status_code == 404


def test_a_job_without_a_payload_has_null(http: Client, queue: str) -> None:
    assert http.post(f"/v1/queues/{queue}/enqueue", json={"priority": 1}).status_code == 200
    assert lease(http, queue)[0]["payload"] is None


def test_fields_have_their_names_in_any_case_and_the_last_counts(http: Client, queue: str) -> None:
    body = b'{"Payload":1,"PRIORITY":3,"payload":2,"Idempotency_Key":"k","headers":{"A":"x"}}'
    assert http.post(f"/v1/queues/{queue}/enqueue", content=body).status_code == 200
    (job,) = http.post(f"/v1/queues/{queue}/lease", content=b'{"MAX_JOBS":5}').json()["jobs"]
    assert (job["payload"], job["priority"], job["headers"]) == (2, 3, {"A": "x"})
    settled = http.post("/v1/ack", json={"JOB_ID": job["id"], "Lease_Id": job["lease_id"]})
    assert settled.json() == {"success": True}


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"priority": 10}, {"priority": 9}),
        ({"priority": 255}, {"priority": 9}),
        ({"delay_ms": -5}, {"tries": 0}),
        ({"max_retries": 4_294_967_295}, {"tries": 0}),
    ],
)
def test_numbers_that_rivetq_takes_are_bounded(
    http: Client, queue: str, options: dict[str, Any], seen: dict[str, Any]
) -> None:
    enqueue(http, queue, **options)
    (job,) = lease(http, queue)
    assert seen.items() <= job.items()


def test_a_delay_of_any_length_is_taken(http: Client, queue: str) -> None:
    enqueue(http, queue, delay_ms=9_223_372_036_854_775_807)
    assert stats(http, queue)["ready"] == 1
    assert lease(http, queue) == []


@pytest.mark.parametrize("visibility_ms", [0, -1, 9_223_372_036_854_775_807])
@pytest.mark.parametrize("max_jobs", [0, -1, 9_223_372_036_854_775_807])
def test_numbers_of_a_lease_are_defaulted_or_bounded(
    http: Client, queue: str, visibility_ms: int, max_jobs: int
) -> None:
    enqueue(http, queue)
    assert len(lease(http, queue, max_jobs=max_jobs, visibility_ms=visibility_ms)) == 1
    assert lease(http, queue) == []


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 10**20, 10**26])
@pytest.mark.parametrize("field", ["max_jobs", "visibility_ms"])
def test_numbers_of_a_lease_that_rivetq_cannot_hold_are_refused(
    http: Client, queue: str, field: str, number: int
) -> None:
    answer = http.post(f"/v1/queues/{queue}/lease", json={field: number})
    assert (answer.status_code, set(answer.json())) == (400, {"error"})


def test_a_header_that_is_null_is_empty(http: Client, queue: str) -> None:
    enqueue(http, queue, headers={"a": None, "b": "x"})
    (job,) = lease(http, queue)
    assert job["headers"] == {"a": "", "b": "x"}


def test_a_rate_limit_of_any_size_is_taken(http: Client, queue: str) -> None:
    path = f"/v1/queues/{queue}/rate_limit"
    assert http.post(path, json={"capacity": 1e30, "refill_rate": 1e30}).status_code == 200
    assert http.get(path).json() == {"capacity": 1e9, "refill_rate": 1e9, "exists": True}


@pytest.mark.parametrize(
    "limit",
    [{"capacity": 0, "refill_rate": 5}, {"capacity": 5, "refill_rate": 0}, {"capacity": -1}],
)
def test_a_rate_limit_that_lets_nothing_through_is_refused(
    http: Client, queue: str, limit: dict[str, Any]
) -> None:
    assert http.post(f"/v1/queues/{queue}/rate_limit", json=limit).status_code == 400


def test_browsers_of_configured_origins_are_answered(tmp_path: Path) -> None:
    asking = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    path = "/v1/queues/orders/enqueue"
    settings: dict[str, Any] = {"cors_origins": (ORIGIN,)}
    with RunningServer(tmp_path / "data", **settings) as server, server.client() as http:
        asked = http.options(path, headers=asking)
        assert asked.is_success
        assert asked.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in asked.headers["access-control-allow-methods"]
        sent = http.post(path, json={"payload": 1}, headers={"Origin": ORIGIN})
        assert sent.headers["access-control-allow-origin"] == ORIGIN
        other = {**asking, "Origin": "https://evil.example.com"}
        refused = http.options(path, headers=other)
        assert "access-control-allow-origin" not in refused.headers


def test_a_page_that_may_not_call_is_told_the_setting_that_allows_it(http: Client) -> None:
    path, origin = "/v1/queues/orders/enqueue", {"Origin": ORIGIN}
    for answer in (
        http.options(path, headers={**origin, "Access-Control-Request-Method": "POST"}),
        http.post(path, json={"payload": 1}, headers=origin),
    ):
        assert (answer.status_code, set(answer.json())) == (403, {"error"})
        assert f"pages of {ORIGIN} may not" in answer.json()["error"]
        assert "PENSTOCK_SERVER_CORS_ORIGINS" in answer.json()["error"]


# -- what RivetQ got wrong -------------------------------------------------------------------------


def test_acked_jobs_stay_acked_and_tries_and_dead_letters_stay_after_a_restart(
    tmp_path: Path,
) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        for name in ("acked", "failed once", "dead"):
            enqueue(http, "jobs", name, max_retries=1 if name == "dead" else 3)
        acked, failed, dead = lease(http, "jobs", max_jobs=3)
        assert settle(http, "ack", acked).is_success
        assert settle(http, "nack", failed).is_success
        assert settle(http, "nack", dead).is_success
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        assert stats(http, "jobs") == {"ready": 1, "inflight": 0, "dlq": 1}
        again = next_attempt(http, "jobs")
        assert (again["payload"], again["tries"]) == ("failed once", 1)


def test_a_delayed_high_priority_job_does_not_hide_ready_low_priority_ones(
    http: Client, queue: str
) -> None:
    enqueue(http, queue, "later", priority=9, delay_ms=3_600_000)
    enqueue(http, queue, "now", priority=0)
    assert [job["payload"] for job in lease(http, queue, max_jobs=5)] == ["now"]


def test_of_concurrent_acks_of_one_lease_exactly_one_succeeds(
    server: RunningServer, http: Client, queue: str
) -> None:
    enqueue(http, queue)
    (job,) = lease(http, queue)

    def ack(_: int) -> int:
        with server.client() as own:
            return settle(own, "ack", job).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(ack, range(8))) == [200] + [410] * 7


def test_an_idempotency_key_is_of_one_queue(http: Client, queue: str) -> None:
    first = enqueue(http, queue, 1, idempotency_key="k")
    assert enqueue(http, f"{queue[:50]}-two", 2, idempotency_key="k") != first


def test_a_binary_payload_does_not_break_the_answer_for_its_neighbours(
    http: Client, queue: str
) -> None:
    for body, kind in [
        (b"\xff\x00", "application/octet-stream"),
        (b"plain text", "text/plain"),
        (b"{broken", "text/x-json"),
    ]:
        path = queue_path(queue, "messages")
        assert http.post(path, content=body, headers={"Content-Type": kind}).is_success
    enqueue(http, queue, {"fine": True}, priority=5)
    payloads = [job["payload"] for job in lease(http, queue, max_jobs=9)]
    assert payloads == ["/wA=", "plain text", "{broken", {"fine": True}]


def test_what_happens_is_counted(http: Client, queue: str) -> None:
    enqueue(http, queue)
    (job,) = lease(http, queue)
    settle(http, "ack", job)
    metrics = http.get("/metrics").text
    labels = f'{{namespace="default",queue="{queue}"}}'
    assert f"penstock_published_total{labels} 1.0" in metrics
    assert 'route="/v1/queues/{queue}/enqueue"' in metrics


def test_an_ack_that_races_its_timeout_is_taken_or_refused_never_both(
    http: Client, queue: str
) -> None:
    for number in range(20):
        enqueue(http, queue, number)
        (job,) = lease(http, queue, visibility_ms=1)
        answer = settle(http, "ack", job)
        if answer.status_code == 410:  # the timeout won: it comes again
            again = next_attempt(http, queue)
            assert (again["id"], again["tries"]) == (job["id"], 1)
            assert settle(http, "ack", again).is_success
        assert lease(http, queue) == []
    assert stats(http, queue) == {"ready": 0, "inflight": 0, "dlq": 0}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
