"""The webhook routes of the native interface, over a real socket."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from standardwebhooks import Webhook

from tests.server.running import RunningServer, queue_path
from tests.server.webhooks.endpoint import Endpoint

Client = httpx2.Client
URL = "https://hooks.example.com/in"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as one:
        yield one
        one.shutdown()


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that may call private addresses."""
    data = tmp_path_factory.mktemp("private") / "data"
    with RunningServer(data, broker={"webhook_allow_private": True}) as running:
        yield running


@pytest.fixture
def calls(private: RunningServer) -> Iterator[Client]:
    with private.client() as client:
        yield client


def create(http: Client, queue: str, **body: Any) -> dict[str, Any]:
    answer = http.post(queue_path(queue, "webhooks"), json={"url": URL, **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_a_message_is_pushed_and_its_delivery_is_listed(
    calls: Client, queue: str, endpoint: Endpoint
) -> None:
    made = create(calls, queue, url=endpoint.url)
    answer = calls.post(queue_path(queue, "messages"), json={"payload": {"n": 1}})
    ((headers, body),) = endpoint.wait_for(1)
    pushed = Webhook(made["secret"]).verify(body, headers)
    assert pushed["data"]["payload"] == {"n": 1}
    assert pushed["data"]["id"] == answer.json()["id"]
    page = calls.get(f"/api/v1/webhooks/{made['id']}/deliveries").json()
    while not page["deliveries"]:  # it is written down just after the endpoint answered
        page = calls.get(f"/api/v1/webhooks/{made['id']}/deliveries").json()
    (delivery,) = page["deliveries"]
    assert delivery.pop("at")
    assert delivery.pop("took_s") > 0
    assert delivery.pop("answer", "") in ("", "ok")
    assert delivery == {
        "number": 1,
        "message_id": answer.json()["id"],
        "attempt": 1,
        "outcome": "delivered",
        "status": 200,
    }


def test_deliveries_are_paged(calls: Client, queue: str, endpoint: Endpoint) -> None:
    made = create(calls, queue, url=endpoint.url, retry_s=[0])
    endpoint.statuses = [500]
    calls.post(queue_path(queue, "messages"), json={"payload": 1})
    endpoint.wait_for(2)
    path = f"/api/v1/webhooks/{made['id']}/deliveries"
    page = calls.get(path, params={"limit": 1}).json()
    while "cursor" not in page:
        page = calls.get(path, params={"limit": 1}).json()
    assert [one["outcome"] for one in page["deliveries"]] == ["delivered"]
    last = calls.get(path, params={"limit": 1, "cursor": page["cursor"]}).json()
    assert [(one["outcome"], one["status"]) for one in last["deliveries"]] == [("retry", 500)]
    assert last["deliveries"][0]["retry_in_s"] == 0
    assert "cursor" not in last
    assert calls.get(path, params={"cursor": "made-up"}).status_code == 400


def test_webhooks_are_listed_shown_and_deleted(http: Client, queue: str) -> None:
    made = create(http, queue, group="main", retry_s=[1, 2])
    assert made.pop("secret").startswith("whsec_")
    assert made["id"].startswith("wh-")
    shown = http.get(f"/api/v1/webhooks/{made['id']}")
    stats = {"delivered": 0, "failed": 0, "recent": 0, "p50_s": 0.0, "p95_s": 0.0}
    assert shown.json() == {**made, "deliveries": stats}
    assert made == {
        "id": made["id"],
        "namespace": "default",
        "queue": queue,
        "url": URL,
        "style": "standard",
        "group": "main",
        "retry_s": [1, 2],
        "created_at": made["created_at"],
        "enabled": True,
        "circuit": "closed",
    }
    assert http.get(queue_path(queue, "webhooks")).json() == {"webhooks": [made]}
    assert http.delete(f"/api/v1/webhooks/{made['id']}").status_code == 204
    assert http.get(f"/api/v1/webhooks/{made['id']}").status_code == 404
    assert http.get(queue_path(queue, "webhooks")).json() == {"webhooks": []}


def test_a_webhook_is_changed_and_its_secret_shown_only_when_it_is_new(
    http: Client, queue: str
) -> None:
    made = create(http, queue)
    path = f"/api/v1/webhooks/{made['id']}"
    changed = http.patch(path, json={"url": f"{URL}/2", "enabled": False}).json()
    assert (changed["url"], changed["enabled"]) == (f"{URL}/2", False)
    assert "secret" not in changed
    rotated = http.patch(path, json={"rotate_secret": True}).json()
    assert rotated["secret"] not in ("", made["secret"])
    assert "secret" not in http.get(path).json()


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"url": "ftp://example.com"},
        {"url": "http://user@example.com"},
        {"url": URL, "secret": "x"},
        {"url": URL, "style": "x"},
        {"url": URL, "group": "n o"},
        {"url": URL, "retry_s": []},
        {"url": URL, "retry_s": [-1]},
        {"url": URL, "colour": "red"},
        {"url": URL, "secret": None, "group": 1},
    ],
    ids=str,
)
def test_a_bad_subscription_is_a_400(http: Client, queue: str, wrong: dict[str, Any]) -> None:
    answer = http.post(queue_path(queue, "webhooks"), json=wrong)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "127.1", "localhost"])
def test_a_private_address_is_refused(http: Client, queue: str, host: str) -> None:
    answer = http.post(queue_path(queue, "webhooks"), json={"url": f"http://{host}:8080/"})
    assert (answer.status_code, answer.json()["code"]) == (400, "address_refused")


def test_one_that_is_not_there_is_404(http: Client) -> None:
    path = "/api/v1/webhooks/wh-none"
    for answer in (
        http.get(path),
        http.patch(path, json={}),
        http.delete(path),
        http.get(f"{path}/deliveries"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "no_such_webhook")
    assert http.get(queue_path("nowhere", "webhooks")).status_code == 404


def test_a_subscription_survives_a_restart_and_pushes_on(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    settings = {"webhook_allow_private": True}
    with RunningServer(tmp_path / "data", broker=settings) as server, server.client() as http:
        made = create(http, "orders", url=endpoint.url)
    with RunningServer(tmp_path / "data", broker=settings) as server, server.client() as http:
        http.post(queue_path("orders", "messages"), json={"payload": 1})
        ((headers, body),) = endpoint.wait_for(1)
        Webhook(made["secret"]).verify(body, headers)


def test_a_delivery_is_sent_once_more(calls: Client, queue: str, endpoint: Endpoint) -> None:
    made = create(calls, queue, url=endpoint.url)
    path = f"/api/v1/webhooks/{made['id']}"
    calls.post(queue_path(queue, "messages"), json={"payload": {"n": 1}})
    endpoint.wait_for(1)
    while not calls.get(f"{path}/deliveries").json()["deliveries"]:
        pass  # it is written down just after the endpoint answered
    again = calls.post(f"{path}/deliveries/1/resend")
    assert again.status_code == 200, again.text
    assert (again.json()["is_resent"], again.json()["outcome"]) == (True, "delivered")
    (_, first), (headers, second) = endpoint.wait_for(2)
    assert first == second
    assert Webhook(made["secret"]).verify(second, headers)
    assert calls.post(f"{path}/deliveries/99/resend").status_code == 404
    assert calls.post(f"{path}/deliveries/one/resend").status_code == 400
    shown = calls.get(path).json()
    assert shown["deliveries"]["delivered"] == 1  # not those sent by hand
    assert shown["deliveries"]["success_rate"] == 1.0
    listed = calls.get("/api/v1/webhooks", params={"namespace": "default"}).json()["webhooks"]
    assert made["id"] in [one["id"] for one in listed]
    assert calls.get("/api/v1/webhooks", params={"namespace": "nowhere"}).json()["webhooks"] == []
