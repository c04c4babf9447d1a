"""What the broker cannot do now is said as such, for JSON and for other bodies."""

from asyncio import Future
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock import errors
from penstock.errors import PenstockError
from tests.server.running import RunningServer, queue_path

TROUBLE: list[tuple[PenstockError, int, str]] = [
    (errors.DiskFull("no room"), 507, "disk_full"),
    (errors.ReadOnly("only reads"), 503, "read_only"),
    (errors.LedgerStopped("a sync failed"), 503, "storage_stopped"),
    (errors.CorruptLedger("damage"), 503, "storage_damaged"),
    (errors.LedgerError("no more files"), 503, "storage_unavailable"),
    (errors.Unavailable("starting"), 503, "unavailable"),
    (errors.QueueFull("full"), 429, "queue_full"),
    (errors.QuotaExceeded("full"), 429, "quota_exceeded"),
    (errors.TooManyRequests("slower", 2.5), 429, "too_many_requests"),
    (errors.NoSuchQueue("none"), 404, "no_such_queue"),
]


@pytest.mark.parametrize(("error", "status", "code"), TROUBLE, ids=lambda value: str(value))
@pytest.mark.parametrize("at_once", [True, False])
def test_what_goes_wrong_is_answered_as_the_table_says(
    server: RunningServer,
    http: httpx2.Client,
    monkeypatch: pytest.MonkeyPatch,
    error: PenstockError,
    status: int,
    code: str,
    at_once: bool,
) -> None:
    def fail(*args: Any, **options: Any) -> "Future[Any]":
        if at_once:
            raise error
        future: Future[Any] = Future()
        future.get_loop().call_soon(future.set_exception, error)
        return future

    monkeypatch.setattr(server.server.broker, "publish", fail)
    path = queue_path("orders", "messages")
    hot = http.post(path, json={"payload": 1})
    cold = http.post(path, content=b"x", headers={"content-type": "text/plain"})
    for answer in (hot, cold):
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.json()["detail"] == str(error)
        assert ("retry-after" in answer.headers) == (status in (429, 503, 507))
    assert http.get("/livez").status_code == 200


def test_it_is_live_but_not_ready_when_a_queue_takes_no_writes(
    server: RunningServer, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = property(lambda store: "queue default/orders: a sync failed")
    monkeypatch.setattr(type(server.server.broker.store), "trouble", trouble)
    answer = http.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "trouble")
    assert "a sync failed" in answer.json()["reason"]
    assert http.get("/livez").status_code == 200


def test_it_is_ready_but_warns_if_the_keys_cannot_be_read(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        key = server.new_key("read")
        assert "warning" not in http.get("/readyz").json()
        server.rewrite_keys(lambda _: "{")
        server.until(lambda: server.server.service.keys.unreadable is not None)
        answer = http.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        assert "keys" in answer.json()["warning"]
        assert http.get("/metrics", headers={"x-api-key": key}).status_code == 200


@pytest.mark.parametrize("name", ["x-api-key", "authorization"])
def test_a_key_that_may_read_sees_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        key = server.new_key("read")
        trouble = property(lambda store: "queue default/orders: a sync failed")
        monkeypatch.setattr(type(server.server.broker.store), "trouble", trouble)
        assert "reason" not in http.get("/readyz").json()
        value = key if name == "x-api-key" else f"Bearer {key}"
        assert "a sync failed" in http.get("/readyz", headers={name: value}).json()["reason"]
