"""Logs, HTTP metrics and CORS."""

import json
import logging
from pathlib import Path

import httpx2
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from penstock.server.http_metrics import HttpMetrics
from penstock.server.logs import JsonLines, TextLines
from tests.server.running import RunningServer, queue_path

ORIGIN = "https://app.example.com"


# -- logs ------------------------------------------------------------------------------------------


def record(event: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("penstock.server", logging.INFO, "", 0, event, (), None)
    made.created = 1_700_000_000.25
    made.fields = fields
    return made


def test_a_record_is_a_line_of_json() -> None:
    line = JsonLines().format(record("request", status=200, reason="a\nb\x1b[31m"))
    assert "\n" not in line and "\x1b" not in line
    assert json.loads(line) == {
        "at": "2023-11-14T22:13:20.250000Z",
        "level": "info",
        "logger": "penstock.server",
        "event": "request",
        "status": 200,
        "reason": "a\nb\x1b[31m",
    }


def test_text_is_for_people_and_cannot_be_forged() -> None:
    line = TextLines().format(record("said\nINFO forged", path="/a\nb"))
    assert line == '2023-11-14T22:13:20.250000Z INFO    said\\nINFO forged path="/a\\nb"'


def test_requests_are_logged_by_route_with_their_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.server")
    with RunningServer(tmp_path / "data", access_log=True) as server, server.client() as http:
        hot = http.post(queue_path("secret", "messages"), json={"payload": "hush"})
        cold = http.get(queue_path("secret"))
    logged = [one.fields for one in caplog.records if one.getMessage() == "request"]  # type: ignore[attr-defined]
    assert [(one["method"], one["status"]) for one in logged] == [("POST", 201), ("GET", 200)]
    assert [one["request_id"] for one in logged] == [
        hot.headers["x-request-id"],
        cold.headers["x-request-id"],
    ]
    assert "secret" not in str(logged) and "hush" not in caplog.text


def test_an_unforeseen_error_is_logged_under_the_requests_id(
    server: RunningServer, http: httpx2.Client, caplog: pytest.LogCaptureFixture, queue: str
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("the disk caught fire")

    broker = server.server.broker
    originals = broker.settle, broker.queue_info
    broker.settle, broker.queue_info = fail, fail  # type: ignore[method-assign, assignment]
    try:
        hot = http.post("/api/v1/settle", json={"ack": ["x"]})
        cold = http.get(queue_path(queue))
    finally:
        broker.settle, broker.queue_info = originals  # type: ignore[method-assign]
    for answer in (hot, cold):
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "fire" not in answer.text
        assert answer.json()["request_id"] in str(
            [getattr(one, "fields", None) for one in caplog.records]
        )
    assert "the disk caught fire" in caplog.text
    assert http.get("/livez").status_code == 200


# -- metrics ---------------------------------------------------------------------------------------


def test_requests_are_counted_by_route_and_status() -> None:
    registry = CollectorRegistry()
    metrics = HttpMetrics(registry, connections=lambda: 3, held_bytes=lambda: 0)
    for took_ns in (400_000, 500_000, 2_000_000, 10**12):
        metrics.answered("/a", "GET", 200, took_ns)
    metrics.answered("/a", "GET", 404, 1)
    page = generate_latest(registry).decode()
    assert 'penstock_http_requests_total{method="GET",route="/a",status="200"} 4.0' in page
    assert 'penstock_http_requests_total{method="GET",route="/a",status="404"} 1.0' in page
    assert 'penstock_http_request_seconds_bucket{le="0.0005",route="/a"} 3.0' in page
    assert 'penstock_http_request_seconds_bucket{le="0.0025",route="/a"} 4.0' in page
    assert 'penstock_http_request_seconds_bucket{le="30.0",route="/a"} 4.0' in page
    assert 'penstock_http_request_seconds_bucket{le="+Inf",route="/a"} 5.0' in page
    assert "penstock_http_connections 3.0" in page


def test_paths_that_are_none_make_no_series(http: httpx2.Client) -> None:
    for number in range(5):
        http.get(f"/nowhere/{number}")
    page = http.get("/metrics").text
    assert "nowhere" not in page
    assert 'route="unknown",status="404"' in page


# -- pages of other sites --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    data = tmp_path_factory.mktemp("cors") / "data"
    with RunningServer(data, cors_origins=(ORIGIN,)) as running:
        yield running


def test_a_configured_origin_is_granted(open_server: RunningServer, queue: str) -> None:
    path = queue_path(queue, "messages")
    with open_server.client(headers={"origin": ORIGIN}) as http:
        asked = http.options(
            path,
            headers={
                "access-control-request-method": "POST",
                "access-control-request-headers": "content-type,x-api-key",
            },
        )
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "content-type,x-api-key"
        for answer in (
            http.post(path, json={"payload": 1}),
            http.post(path, json={"nope": 1}),
            http.get(path),
        ):
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            assert answer.headers["vary"] == "origin"


def test_a_foreign_origin_gets_no_grant_and_changes_nothing(
    open_server: RunningServer, queue: str
) -> None:
    path = queue_path(queue, "messages")
    for origin in (
        "https://evil.example",
        "null",
        f"{ORIGIN}.evil.example",
        "http://app.example.com",
    ):
        with open_server.client(headers={"origin": origin}) as http:
            asked = http.options(path, headers={"access-control-request-method": "POST"})
            assert "access-control-allow-origin" not in asked.headers
            for content_type in ("application/json", "text/plain"):
                answer = http.post(path, content=b"{}", headers={"content-type": content_type})
                assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")
            assert "access-control-allow-origin" not in http.get("/livez").headers
    with open_server.client() as http:
        assert http.get(queue_path(queue)).status_code == 404


def test_a_page_of_the_server_itself_may_call(open_server: RunningServer, queue: str) -> None:
    with open_server.client(headers={"origin": open_server.url}) as http:
        answer = http.post(queue_path(queue, "messages"), json={"payload": 1})
        assert answer.status_code == 201


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("127.0.0.1.evil.example:8080", 403),
        ("localhost", 201),
        ("app.localhost:8080", 201),
        ("192.0.2.1:8080", 201),
        ("[::1]:8080", 201),
    ],
)
def test_without_keys_only_local_names_are_the_servers_own(
    open_server: RunningServer, queue: str, host: str, status: int
) -> None:
    """A site may let its name lead to this machine (DNS rebinding)."""
    headers = {"host": host, "origin": f"http://{host}"}
    with open_server.client(headers=headers) as http:
        answer = http.post(queue_path(queue, "messages"), json={"payload": 1})
        assert answer.status_code == status
