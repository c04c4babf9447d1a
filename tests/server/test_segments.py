"""The files of a queue over a real socket: ranges of segments, and segments brought in."""

from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from penstock import codec
from penstock.broker import Verb
from penstock.broker.segments import MAX_RANGE_BYTES
from penstock.codec import Draft
from penstock.ledger.segment_header import HEADER_BYTES
from tests.harness.staged_segments import staged_segment
from tests.server.running import RunningServer, queue_path

Client = httpx2.Client
FOLDER = "1700000000000000000-0123456789abcdef"


def publish(http: Client, queue: str, *payloads: str) -> None:
    body = [{"payload": payload} for payload in payloads]
    assert http.post(queue_path(queue, "messages"), json=body).status_code == 201


def listed(http: Client, queue: str, **query: Any) -> dict[str, Any]:
    answer = http.get(queue_path(queue, "segments"), params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_segments_are_listed_and_read_by_range(http: Client, queue: str) -> None:
    publish(http, queue, "a", "b")
    log = listed(http, queue)["messages"]
    (segment,) = log["segments"]
    assert (log["low"], log["next_seq"]) == (1, 3)
    assert (segment["base_seq"], segment["end_seq"]) == (1, 3)
    path = queue_path(queue, "segments", "messages", "1")
    whole = http.get(path)
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["penstock-segment"] == segment["header_b64"]
    assert whole.content[:HEADER_BYTES] == b64decode(segment["header_b64"])
    assert len(whole.content) == segment["size_bytes"]
    entries, _ = codec.read_entries(whole.content, HEADER_BYTES, len(whole.content), max_count=9)
    assert [entry.payload for entry in entries] == [b'"a"', b'"b"']
    part = http.get(path, params={"from": 10, "to": 20})
    assert part.content == whole.content[10:20]
    assert http.get(path, params={"from": 5, "to": 5}).content == b""
    assert http.get(f"{path}/index").content[:4] == b"PIDX"


def test_a_listing_tells_where_a_time_is(http: Client, queue: str) -> None:
    publish(http, queue, "a", "b")
    assert "seq_at_time" not in listed(http, queue)["messages"]
    assert listed(http, queue, time_ns=0)["messages"]["seq_at_time"] == 1
    assert listed(http, queue, time_ns=(1 << 63) - 1)["messages"]["seq_at_time"] == 3


@pytest.mark.parametrize(
    ("rest", "query", "status", "code"),
    [
        ("segments/messages/1", {"from": 3, "to": 2}, 400, "invalid_input"),
        ("segments/messages/1", {"to": 1 << 40}, 400, "invalid_input"),
        ("segments/messages/1", {"from": -1}, 400, "invalid_input"),
        ("segments/messages/1", {"from": "x"}, 400, "invalid_input"),
        ("segments/messages/1", {"until": 5}, 400, "invalid_input"),
        ("segments/messages/2", {}, 404, "no_such_segment"),
        ("segments/messages/2/index", {}, 404, "no_such_segment"),
        ("segments/snapshots/1/index", {}, 400, "invalid_input"),
        ("segments/messages/-1", {}, 400, "invalid_input"),
        ("segments/messages/١", {}, 400, "invalid_input"),
        ("segments/messages/99999999999999999999", {}, 400, "invalid_input"),
        ("segments/..%2f..%2fLOCK/1", {}, 400, "invalid_input"),
        ("segments/quarantine/1", {}, 400, "invalid_input"),
        ("segments", {"time_ns": -1}, 400, "invalid_input"),
    ],
)
def test_bad_ranges_and_names_are_told(
    http: Client, queue: str, rest: str, query: dict[str, Any], status: int, code: str
) -> None:
    publish(http, queue, "a")
    answer = http.get(queue_path(queue, rest), params=query)
    assert code_of(answer) == (status, code), answer.text


def test_a_queue_that_is_not_there_has_no_segments(http: Client, queue: str) -> None:
    assert code_of(http.get(queue_path(queue, "segments"))) == (404, "no_such_queue")
    gone = http.get(queue_path(queue, "segments", "messages", "1"))
    assert code_of(gone) == (404, "no_such_queue")


def test_more_than_a_call_gives_is_asked_for_in_parts(http: Client, queue: str) -> None:
    raw = {"content-type": "application/octet-stream"}
    for _ in range(2):
        big = bytes(MAX_RANGE_BYTES // 2 + 1000)
        answer = http.post(queue_path(queue, "messages"), content=big, headers=raw)
        assert answer.status_code == 201
    path = queue_path(queue, "segments", "messages", "1")
    size = listed(http, queue)["messages"]["segments"][0]["size_bytes"]
    assert code_of(http.get(path)) == (400, "too_large")
    parts = [
        http.get(path, params={"from": at, "to": min(at + MAX_RANGE_BYTES, size)}).content
        for at in range(0, size, MAX_RANGE_BYTES)
    ]
    assert sum(map(len, parts)) == size


def test_segments_go_with_what_they_held(http: Client, queue: str) -> None:
    http.put(queue_path(queue), json={"segment_bytes": 65536, "auto_compact": False})
    for _ in range(6):
        publish(http, queue, *["x" * 5000] * 10)
    before = listed(http, queue)["messages"]["segments"]
    assert len(before) > 2
    assert http.post(queue_path(queue, "purge")).status_code == 200
    assert http.post(queue_path(queue, "compact")).status_code == 200
    after = listed(http, queue)["messages"]
    assert after["low"] > before[0]["end_seq"] - 1
    answer = http.get(queue_path(queue, "segments", "messages", "1"))
    assert code_of(answer) == (404, "no_such_segment")
    assert "list the segments again" in answer.json()["detail"]


# -- bringing segments in --------------------------------------------------------------------------


def staged(http: Client, queue: str, *items: bytes | Draft) -> dict[str, Any]:
    info = http.post(queue_path(queue, "staging"))
    assert info.status_code == 200, info.text
    data = staged_segment(info.json()["identity"], list(items))
    path = queue_path(queue, "staging", FOLDER, "0.log")
    half = len(data) // 2
    for at, part in ((half, data[half:]), (0, data[:half]), (0, data[:half])):  # in any order
        assert http.put(path, params={"at": at}, content=part).status_code == 204
    return {"folder": FOLDER, "name": "0.log", "entries": len(items)}


def test_a_staged_job_is_adopted_once(http: Client, queue: str) -> None:
    body = {"staged": [staged(http, queue, b"a", b"b")], "app": "nightly", "version": 7}
    path = queue_path(queue, "adopt")
    first = {"first_seq": 1, "entries": 2, "repeated": False}
    assert http.post(path, json=body).json() == first
    assert http.post(path, json=body).json() == {**first, "repeated": True}
    leased = http.post(queue_path(queue, "lease"), json={"max": 10}).json()["messages"]
    assert [b64decode(one["payload_b64"]) for one in leased] == [b"a", b"b"]


def test_a_dropped_job_is_not_there(http: Client, queue: str) -> None:
    item = staged(http, queue, b"a")
    for _ in range(2):
        answer = http.delete(queue_path(queue, "staging", FOLDER))
        assert answer.status_code == 204
    answer = http.post(queue_path(queue, "adopt"), json={"staged": [item]})
    assert code_of(answer) == (400, "invalid_input")
    assert "no staged segment" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"staged": [{"folder": FOLDER, "name": "0.log"}]},
        {"staged": [{"folder": "..", "name": "0.log", "entries": 1}]},
        {"staged": [{"folder": FOLDER, "name": "../x", "entries": 1}]},
        {"staged": [{"folder": FOLDER, "name": "0.log", "entries": -1}]},
        {"staged": [], "app": ""},
        {"staged": [], "app": "a", "version": -1},
        {"staged": [], "aap": "a"},
    ],
)
def test_bad_adoptions_are_refused(http: Client, queue: str, body: dict[str, Any]) -> None:
    http.post(queue_path(queue, "staging"))
    answer = http.post(queue_path(queue, "adopt"), json=body)
    assert code_of(answer) == (400, "invalid_input"), answer.text
    assert listed(http, queue)["messages"]["next_seq"] == 1


def test_the_applications_of_a_queue_are_listed_by_the_beginning_of_their_names(
    http: Client, queue: str
) -> None:
    staging, adopt = queue_path(queue, "staging"), queue_path(queue, "adopt")
    assert http.post(staging).json()["applications"] == []
    for app in ("restore 1", "restore 2", "nightly"):
        assert http.post(adopt, json={"staged": [], "app": app, "version": 1}).status_code == 200
    found = http.post(staging, params={"applications": "restore "}).json()
    assert found["applications"] == ["restore 1", "restore 2"]
    assert http.post(staging).json()["applications"] == []


def test_jobs_adopted_at_the_same_moment_are_all_remembered(http: Client, queue: str) -> None:
    """Each is announced before, and known afterwards: one that is forgotten comes in twice."""
    http.post(queue_path(queue, "staging"))
    apps = [f"job {number}" for number in range(40)]

    def adopt(app: str) -> int:
        body = {"staged": [], "app": app, "version": 1}
        return http.post(queue_path(queue, "adopt"), json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(adopt, apps)) == {200}
    found = http.post(queue_path(queue, "staging"), params={"applications": "job "}).json()
    assert sorted(found["applications"]) == sorted(apps)


def test_reading_and_staging_need_their_own_verbs(tmp_path_factory: Any) -> None:
    """Beyond what test_auth asks of every route: what a key may do here is enough for a job."""
    with RunningServer(tmp_path_factory.mktemp("verbs") / "data") as server:
        reader, writer = server.new_key(Verb.READ), server.new_key(Verb.PUBLISH)
        with (
            server.client(headers={"x-api-key": reader}) as reading,
            server.client(headers={"x-api-key": writer}) as writing,
        ):
            item = staged(writing, "orders", b"a")
            assert reading.post(queue_path("orders", "staging")).status_code == 403
            body = {"staged": [item]}
            adopt = queue_path("orders", "adopt")
            assert reading.post(adopt, json=body).status_code == 403
            assert writing.post(adopt, json=body).status_code == 200
            assert listed(reading, "orders")["messages"]["next_seq"] == 2
            assert writing.get(queue_path("orders", "segments")).status_code == 403
