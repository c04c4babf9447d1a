"""The overview, the table of queues and charts, over a real socket."""

from typing import Any

import httpx2
import pytest

from tests.server.running import queue_path
from tests.server.test_native_table import publish

Client = httpx2.Client


def test_the_overview_adds_up_all_queues(http: Client, queue: str) -> None:
    publish(http, queue, 1, 2, 3)
    before = http.get("/api/v1/overview?namespace=default").json()
    table = http.get("/api/v1/queues", params={"text": queue}).json()
    (row,) = table["queues"]
    assert (row["namespace"], row["name"], table["matched"]) == ("default", queue, 1)
    assert row["is_known"] is True and row["groups"] == 1
    assert before["brokers"] == 1 and before["free_bytes"] > 0
    assert http.get("/api/v1/overview?namespace=nowhere").status_code == 404


def test_the_table_is_sorted_and_paged(http: Client, queue: str) -> None:
    names = [f"{queue[:40]}-{n}" for n in range(5)]
    for number, name in enumerate(names, start=1):
        publish(http, name, *range(number))
    asked: dict[str, Any] = {"text": queue[:40], "sort": "size_bytes", "descending": "true"}
    found: list[str] = []
    while True:
        page = http.get("/api/v1/queues", params={**asked, "limit": 2}).json()
        found += [row["name"] for row in page["queues"]]
        if "cursor" not in page:
            break
        asked["cursor"] = page["cursor"]
    assert sorted(found) == names
    other = http.get("/api/v1/queues", params={**asked, "sort": "ready"})
    assert other.status_code == 400  # a cursor belongs to its listing
    assert http.get("/api/v1/queues?sort=colour").status_code == 400


@pytest.mark.parametrize("path", ["/api/v1/chart", queue_path("charted", "chart")])
def test_charts_have_series_of_the_same_length(http: Client, path: str) -> None:
    publish(http, "charted", 1)
    chart = http.get(path, params={"since": "2020-01-01T00:00:00Z", "max_points": 100}).json()
    assert chart["points"] <= 100 and chart["step_s"] % 900 == 0
    assert {len(values) for values in chart["series"].values()} == {chart["points"]}
    assert http.get(path, params={"max_points": 0}).status_code == 400
    wrong = {"since": "2024-01-02T00:00:00Z", "until": "2024-01-01T00:00:00Z"}
    assert http.get(path, params=wrong).status_code == 400
    assert http.get(queue_path("not-there", "chart")).status_code == 404


def test_the_store_is_shown(http: Client, queue: str) -> None:
    http.put(queue_path(queue), json={"sync": "always"})
    publish(http, queue, 1)
    found = http.get("/api/v1/storage").json()
    assert found["sync"]["samples"] > 0 and found["sync"]["p99"] >= found["sync"]["p50"] > 0
    assert found["queues"] > 0 and found["free_bytes"] > 0
