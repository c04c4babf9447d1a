"""Bad input in what a request says: JSON, names, values, receipts. Each gets a 4xx that says what
and where, and changes nothing."""

import base64
import json
from typing import Any

import httpx2
import pytest

from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire

Client = httpx2.Client
JSON = {"content-type": "application/json"}


def post(http: Client, path: str, body: bytes) -> httpx2.Response:
    return http.post(path, content=body, headers=JSON)


def assert_refused(answer: httpx2.Response, *words: str, status: int = 400) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    for word in words:
        assert word in answer.json()["detail"]


def nothing_is_there(http: Client, queue: str) -> bool:
    """Not even the queue: a bad first call makes none."""
    return http.get(queue_path(queue)).status_code == 404


# -- JSON ------------------------------------------------------------------------------------------

BAD_JSON = {
    "empty": (b"", "empty"),
    "spaces": (b" \n ", "empty"),
    "malformed": (b'{"payload": ', "not JSON"),
    "trailing": (b'{"payload": 1} x', "not JSON"),
    "comma": (b'{"payload": 1,}', "not JSON"),
    "deep": (b'{"payload": ' + b"[" * 32 + b"]" * 32 + b"}", "deeper than 32"),
    "very deep": (b'{"payload": ' + b"[" * 100_000, "deeper than 32"),
    "huge number": (b'{"payload": {"n": 1e999}}', "$.payload.n"),
    "NaN": (b'{"payload": NaN}', "not JSON"),
    "Infinity": (b'{"payload": -Infinity}', "not JSON"),
    "duplicate key": (b'{"payload": 1, "payload": 2}', "$.payload"),
    "duplicate key inside": (b'{"payload": [{"a": 1, "a": 2}]}', "$.payload[0].a"),
    "duplicate key, escaped": (b'{"payload": {"a": 1, "\\u0061": 2}}', "$.payload.a"),
    "bad UTF-8": (b'{"payload": "\xff"}', "UTF-8"),
    "lone surrogate": (b'{"payload": {"x": "\\ud800"}}', "$.payload.x"),
    "unknown field": (b'{"payload": 1, "prioritty": 5}', "prioritty"),
    "unknown field of one in a batch": (b'[{"payload": 1}, {"payload": 1, "x": 5}]', "$[1]"),
    "no payload": (b"{}", "$"),
    "both payloads": (b'{"payload": 1, "payload_b64": ""}', "not both"),
    "an empty batch": (b"[]", "1 to"),
    "a number": (b"5", "$"),
    "null": (b"null", "$"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json_is_refused_with_the_path(http: Client, queue: str, name: str) -> None:
    body, word = BAD_JSON[name]
    assert_refused(post(http, queue_path(queue, "messages"), body), word)
    assert nothing_is_there(http, queue)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/settle",
        "/api/v1/namespaces",
        queue_path("q", "lease"),
        queue_path("q", "seek"),
        queue_path("q", "redrive"),
        queue_path("q", "purge"),
    ],
)
@pytest.mark.parametrize("body", [b'{"nope": 1}', b'{"a": 1, "a": 2}', b"[", b"[]", b'"\xff"'])
def test_every_route_reads_json_strictly(http: Client, path: str, body: bytes) -> None:
    assert_refused(post(http, path, body))


@pytest.mark.parametrize("text", ["", "====", "aGk", "aGk=x", "a Gk=", "aGk=\n", "a-k_", "é"])
def test_bad_base64_is_refused(http: Client, queue: str, text: str) -> None:
    body = json.dumps({"payload_b64": text}).encode()
    answer = post(http, queue_path(queue, "messages"), body)
    if text == "":
        assert answer.status_code == 201  # nothing is a payload too
    else:
        assert_refused(answer, "$.payload_b64")


def test_a_content_type_that_is_not_json_is_415_where_json_is_needed(http: Client) -> None:
    answer = http.post("/api/v1/settle", content=b"{}", headers={"content-type": "text/plain"})
    assert_refused(answer, status=415)


@pytest.mark.parametrize("parts", [("messages",), ("lease",), ("redrive",), ("seek",), ("purge",)])
def test_the_content_type_of_curl_is_refused_with_what_to_send(
    http: Client, queue: str, parts: tuple[str, ...]
) -> None:
    """`curl -d '{"payload": 1}'` says that it sends a form: its envelope was stored."""
    http.put(queue_path(queue))
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = http.post(queue_path(queue, *parts), content=b'{"payload": 1}', headers=form)
    assert_refused(answer, status=415)
    assert "-H 'Content-Type: application/json'" in answer.json()["detail"]
    assert http.get(queue_path(queue)).json()["stats"]["published"] == 0


# -- names -----------------------------------------------------------------------------------------

BAD_NAMES = [
    "..%2fx",
    "..%2Fx",
    "%2e%2e",
    "%00",
    "a%00b",
    ".",
    "",
    "a" * 65,
    "Ord+rs",
    "orders%0a",
    "-orders",
    "or~ders",
    "%D0%BErders",  # a Cyrillic o
    "%EF%BC%A1",  # a wide A
    "%C4%B1",  # a dotless i, whose upper case is I
    "%ff",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused(server: RunningServer, name: str) -> None:
    with server.wire() as wire:
        for path in (
            f"/api/v1/namespaces/{name}/queues/orders/messages",
            f"/api/v1/namespaces/default/queues/{name}/messages",
        ):
            wire.json_request("POST", path, {"payload": 1})
            answer = wire.answer()
            assert (answer.status, answer.code) == (400, "invalid_input"), path
        wire.request("PUT", f"/api/v1/namespaces/default/queues/orders/groups/{name}")
        assert wire.answer().status == 400


@pytest.mark.parametrize("name", ["../x", "", ".", "-A", "a" * 65, "x\n", "\u0131"])
def test_bad_names_in_json_are_refused(http: Client, queue: str, name: str) -> None:
    assert_refused(http.post("/api/v1/namespaces", json={"name": name}))
    assert_refused(http.post(queue_path(queue, "lease"), json={"group": name}))


# -- values ----------------------------------------------------------------------------------------

BAD_OPTIONS: list[dict[str, Any]] = [
    {"priority": -1},
    {"priority": 10},
    {"priority": "5"},
    {"priority": 1.5},
    {"delay_s": -1},
    {"delay_s": 1e308},
    {"delay_s": "soon"},
    {"ttl_s": -1},
    {"ttl_s": 1e308},
    {"deliver_at": "tomorrow"},
    {"deliver_at": "2030-01-01"},
    {"deliver_at": "2030-01-01T00:00:00"},
    {"deliver_at": -1},
    {"deliver_at": 1e308},
    {"deliver_at": True},
    {"delay_s": 1, "deliver_at": "2030-01-01T00:00:00Z"},
    {"max_attempts": 0},
    {"max_attempts": 100_000},
    {"dedup_id": "x", "dedup_window_s": 0},
    {"dedup_id": "x", "dedup_window_s": 1e308},
    {"headers": {"a": 1}},
    {"headers": {"a\r\nb": "c"}},
    {"headers": {"a\nb": "c"}},
    {"headers": {"a\0b": "c"}},
    {"headers": {"": "b"}},
    {"headers": {f"h{number}": "x" for number in range(257)}},
    {"headers": {"a": "x" * 65_537}},
    {"compression": "rot13"},
    {"key": 5},
    {"key": "k" * 1025},
    {"dedup_id": "d" * 1025},
    {"content_type": "t" * 257},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=lambda options: str(options)[:40])
def test_bad_options_of_a_message_are_refused(
    http: Client, queue: str, options: dict[str, Any]
) -> None:
    body = {"payload": 1, **options}
    assert_refused(http.post(queue_path(queue, "messages"), json=body))
    good = {"payload": 0}
    batch = http.post(queue_path(queue, "messages"), json=[good, body])
    assert_refused(batch)
    assert "message 1" in batch.json()["detail"] or "$[1]" in batch.json()["detail"]
    assert nothing_is_there(http, queue)


def test_a_batch_over_the_limit_is_refused(http: Client, queue: str) -> None:
    body = [{"payload": 0}] * 100_001
    assert_refused(http.post(queue_path(queue, "messages"), json=body), "100001")
    assert nothing_is_there(http, queue)


@pytest.mark.parametrize(
    "asked",
    [
        {"max": 0},
        {"max": -1},
        {"max": 10_001},
        {"max": "1"},
        {"lease_s": 0},
        {"lease_s": -1},
        {"lease_s": 1e308},
        {"lease_s": "long"},
        {"wait_s": -1},
        {"wait_s": 1e308},
        {"wait_s": 90_000},
        {"dead": True, "wait_s": 1},
    ],
    ids=str,
)
def test_bad_values_of_a_lease_are_refused(http: Client, queue: str, asked: dict[str, Any]) -> None:
    assert_refused(http.post(queue_path(queue, "lease"), json=asked))
    assert nothing_is_there(http, queue)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=ten",
        "limit=1_0",
        "limit=1&limit=2",
        "state=lost",
        "since=yesterday",
        "nope=1",
        "cursor=made-up",
        "cursor=" + base64.urlsafe_b64encode(b"x" * 12 + b"5").decode(),
        "cursor=" + "A" * 600,
        "text=%ff",
    ],
)
def test_bad_query_parameters_are_refused(http: Client, queue: str, query: str) -> None:
    http.put(queue_path(queue))
    assert_refused(http.get(f"{queue_path(queue, 'messages')}?{query}"))


def test_a_cursor_is_good_for_its_own_listing_only(http: Client, queue: str) -> None:
    path = queue_path(queue, "messages")
    http.post(path, json=[{"payload": 1}, {"payload": 2}])
    cursor = http.get(path, params={"limit": 1}).json()["cursor"]
    assert http.get(path, params={"cursor": cursor}).status_code == 200
    assert_refused(http.get(path, params={"cursor": cursor, "state": "ready"}), "cursor")
    http.post(queue_path("other", "messages"), json={"payload": 1})
    assert_refused(http.get(queue_path("other", "messages"), params={"cursor": cursor}), "cursor")
    assert_refused(http.get(queue_path(queue, "dead"), params={"cursor": cursor}), "cursor")


@pytest.mark.parametrize("query", ["priority=10", "delay_s=nan", "delay_s=-1", "ttl_s=1e999"])
def test_bad_options_in_the_query_are_refused(http: Client, queue: str, query: str) -> None:
    answer = http.post(
        f"{queue_path(queue, 'messages')}?{query}", content=b"x", headers={"content-type": "x/y"}
    )
    assert_refused(answer)
    assert nothing_is_there(http, queue)


@pytest.mark.parametrize("headers", ["Penstock-H-A: 1\r\nPenstock-H-A: 2", "Penstock-H-A: \xff"])
def test_bad_message_headers_are_refused(server: RunningServer, queue: str, headers: str) -> None:
    with server.wire() as wire:
        text = f"POST {queue_path(queue, 'messages')} HTTP/1.1\r\nHost: t\r\n{headers}\r\n"
        wire.send(text.encode("latin-1") + b"Content-Length: 1\r\n\r\nx")
        assert wire.answer().status == 400


@pytest.mark.parametrize("settings", [{"lease_s": -1}, {"sync": "maybe"}, {"nope": 1}, {"sync": 1}])
def test_bad_settings_of_a_queue_are_refused(
    http: Client, queue: str, settings: dict[str, Any]
) -> None:
    assert_refused(http.put(queue_path(queue), json=settings))
    assert http.get(queue_path(queue)).status_code == 404


def test_payloads_over_the_queues_limit_are_413(http: Client, queue: str) -> None:
    http.put(queue_path(queue), json={"max_payload_bytes": 100})
    answer = http.post(queue_path(queue, "messages"), json={"payload": "x" * 100})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


# -- receipts and ids ------------------------------------------------------------------------------


def leased_receipt(http: Client, queue: str) -> str:
    http.post(queue_path(queue, "messages"), json={"payload": 1})
    answer = http.post(queue_path(queue, "lease"), json={})
    receipt: str = answer.json()["messages"][0]["receipt"]
    return receipt


def test_receipts_that_settle_nothing_are_410(http: Client, queue: str) -> None:
    good = leased_receipt(http, queue)
    raw = bytearray(base64.urlsafe_b64decode(good))
    raw[-1] ^= 1
    forged = base64.urlsafe_b64encode(raw).decode()
    for receipt in ("made-up", forged, "A" * 32):
        for asked in (
            {"ack": [receipt]},
            {"nack": [{"receipt": receipt}]},
            {"extend": [{"receipt": receipt, "lease_s": 5}]},
            {"release": [receipt]},
        ):
            answer = http.post("/api/v1/settle", json=asked)
            assert_refused(answer, status=410)
            assert answer.json()["code"] == "receipt_invalid"
            assert answer.json()["results"][0]["receipt"] == receipt
    assert http.post("/api/v1/settle", json={"nack": [{"receipt": good}]}).status_code == 200
    assert http.post("/api/v1/settle", json={"ack": [good]}).status_code == 410  # used


def test_a_receipt_whose_message_is_anothers_by_now_is_410(http: Client, queue: str) -> None:
    http.put(queue_path(queue), json={"backoff_base_s": 0})
    http.post(queue_path(queue, "messages"), json={"payload": 1})
    receipts = []
    for _ in range(2):  # the second waits until the first lease is over
        asked = {"lease_s": 0.1, "wait_s": 30}
        (leased,) = http.post(queue_path(queue, "lease"), json=asked).json()["messages"]
        receipts.append(leased["receipt"])
    assert http.post("/api/v1/settle", json={"ack": receipts[:1]}).status_code == 410


def test_a_receipt_of_a_queue_that_was_deleted_is_410(http: Client, queue: str) -> None:
    receipt = leased_receipt(http, queue)
    http.delete(queue_path(queue))
    leased_receipt(http, queue)  # another queue of the same name
    assert http.post("/api/v1/settle", json={"ack": [receipt]}).status_code == 410


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"ack": "x"},
        {"ack": [5]},
        {"ack": [""]},
        {"nack": [{}]},
        {"extend": [{"receipt": "x", "lease_s": -1}]},
        {"ack": [{"receipt": "x", "emit": [{}]}]},
        {"ack": ["x"] * 10_001},
    ],
    ids=lambda asked: str(asked)[:40],
)
def test_a_settle_that_makes_no_sense_is_400(http: Client, asked: dict[str, Any]) -> None:
    assert_refused(http.post("/api/v1/settle", json=asked))


def test_an_absurd_extension_is_400(http: Client, queue: str) -> None:
    receipt = leased_receipt(http, queue)
    asked = {"extend": [{"receipt": receipt, "lease_s": 1e308}]}
    assert_refused(http.post("/api/v1/settle", json=asked))


@pytest.mark.parametrize("id_", ["x", "..%2f", "%00", "u" * 26, "7" * 27])
def test_bad_message_ids_are_refused(server: RunningServer, id_: str) -> None:
    with server.wire() as wire:
        for path in ("", "/why", "/history"):
            wire.request("GET", f"/api/v1/messages/{id_}{path}")
            assert wire.answer().status == 400


def test_a_payload_that_claims_to_be_json_does_not_break_its_neighbours(
    http: Client, queue: str
) -> None:
    path = queue_path(queue, "messages")
    for index, body in enumerate([b"{", b'{"a": 1, "a": 2}', b"\xff", b"NaN"]):
        text = base64.b64encode(body).decode()
        answer = http.post(path, json={"payload_b64": text, "content_type": "application/json"})
        assert answer.status_code == 201, index
    http.post(path, json={"payload": "fine"})
    leased = http.post(queue_path(queue, "lease"), json={"max": 5}).json()["messages"]
    assert [("payload" in one) for one in leased] == [False, False, False, False, True]
    assert base64.b64decode(leased[0]["payload_b64"]) == b"{"


def test_the_wire_is_still_good_after_all_that(server: RunningServer) -> None:
    with Wire(server.port) as wire:
        for body in (b"[", b'{"payload": 1}', b"\xff", b'{"payload": 1}'):
            wire.request(
                "POST", queue_path("q", "messages"), body, "Content-Type: application/json"
            )
        assert [wire.answer().status for _ in range(4)] == [400, 201, 400, 201]
