"""Readers that lease nothing, over a real socket: REST, metrics, the client, the dashboard."""

from pathlib import Path

import httpx2
import pytest

from penstock.client import connect_broker
from penstock.errors import InvalidInput, NoSuchQueue
from tests.server.running import RunningServer, queue_path
from tests.server.test_native_table import publish


def test_a_reader_reports_and_is_listed_with_its_lag(http: httpx2.Client, queue: str) -> None:
    publish(http, queue, *range(5))
    path = queue_path(queue, "readers/copy")
    assert http.put(path, json={"position": 3, "rows_per_s": 1.5}).status_code == 204
    (found,) = http.get(queue_path(queue, "readers")).json()["readers"]
    assert (found["name"], found["position"], found["lag"], found["rows_per_s"]) == (
        *("copy", 3, 3),
        1.5,
    )
    assert found["reported_at"] < found["expires_at"]
    assert http.get("/metrics").text.count(f'reader_lag{{namespace="default",queue="{queue}"') == 1
    for body in ({}, {"position": -1}, {"position": 1, "expires_s": 1}, {"position": 1, "x": 1}):
        assert http.put(path, json=body).status_code in (400, 422)
    assert http.put(queue_path(queue, "readers/a%20b"), json={"position": 1}).status_code == 400
    assert http.put(queue_path("none", "readers/a"), json={"position": 1}).status_code == 404
    assert http.get(queue_path("none", "readers")).status_code == 404
    assert http.delete(path).status_code == http.delete(path).status_code == 204
    assert http.get(queue_path(queue, "readers")).json() == {"readers": []}


def test_the_client_and_the_dashboard_show_readers(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, connect_broker(server.url) as broker:
        broker.create_queue("shop/orders")
        broker.queue("shop/orders").enqueue_batch([b"x"] * 4)
        broker.report_reader("shop/orders", "copy", 2, rows_per_s=7.25, expires_s=60)
        (found,) = broker.readers("shop/orders")
        assert found.lag == 3
        assert found.expires_at - found.reported_at == pytest.approx(60)
        with pytest.raises(InvalidInput, match="reader name"):
            broker.report_reader("shop/orders", "a b", 2)
        with pytest.raises(NoSuchQueue):
            broker.report_reader("shop/none", "copy", 2)
        page = httpx2.get(f"{server.url}/dashboard/queues/shop/orders").text
        assert "Readers that lease nothing" in page and 'id="r-copy"' in page
