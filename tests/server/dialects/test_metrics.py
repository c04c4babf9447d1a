"""/metrics has the series of RivetQ and EpochQueue under their names, and the page lists them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.docs.pages import rows_with, unquoted
from tests.server.running import RunningServer

LISTED = {unquoted(row["alias"]): row for row in rows_with("dialects.md", "alias")}


def samples(page: str) -> dict[str, float]:
    """All samples of the dialects, as `name{label="value"}`."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            if sample.name.startswith(("rivetq_", "epochqueue_")):
                found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def families(page: str) -> Iterator[Metric]:
    for family in text_string_to_metric_families(page):
        if family.name.startswith(("rivetq_", "epochqueue_")):
            yield family


@pytest.fixture
def http(tmp_path: Path) -> Iterator[Any]:
    with RunningServer(tmp_path / "data") as server, server.client() as client:
        yield client


def test_the_names_are_there_before_anything_happens(http: Any) -> None:
    page = http.get("/metrics").text
    for name in LISTED:
        assert f"# HELP {name}".removesuffix("_sum").removesuffix("_count") in page


def test_every_series_is_listed_with_its_labels(http: Any) -> None:
    http.post("/v1/queues/jobs/enqueue", json={"payload": 1})
    found: dict[str, set[str]] = {}
    for family in families(http.get("/metrics").text):
        for sample in family.samples:
            found[sample.name] = set(sample.labels)
    stated = {
        name: {unquoted(one) for one in row["labels"].replace(" ", "").split(",") if one}
        for name, row in LISTED.items()
    }
    assert found == stated


def test_what_happens_is_counted_under_both_names(http: Any) -> None:
    for _ in range(3):
        http.post("/v1/queues/my.Jobs/enqueue", json={"payload": 1, "max_retries": 1})
    jobs = http.post("/v1/queues/my.Jobs/lease", json={"max_jobs": 3}).json()["jobs"]
    for verb, job in zip(("ack", "nack"), jobs, strict=False):
        http.post(f"/v1/{verb}", json={"job_id": job["id"], "lease_id": job["lease_id"]})
    at = "/namespaces/shop/queues/orders/messages"
    http.post(at, json={"body": "x"})
    http.get(at)
    found = samples(http.get("/metrics").text)
    for name, value in {
        "rivetq_jobs_enqueued_total": 3,
        "rivetq_jobs_leased_total": 3,
        "rivetq_jobs_acked_total": 1,
        "rivetq_jobs_nacked_total": 1,
        "rivetq_jobs_ready": 0,
        "rivetq_jobs_inflight": 1,
        "rivetq_jobs_dlq": 1,
    }.items():
        assert found[f'{name}{{queue="my.Jobs"}}'] == value, name
    for queue, counts in {
        'namespace="default",queue="my.Jobs"': (3, 3, 1, 1, 1),
        'namespace="shop",queue="orders"': (1, 1, 0, 0, 0),
    }.items():
        names = ("published", "consumed", "acked", "nacked", "dlq_routed")
        for name, count in zip(names, counts, strict=True):
            assert found[f"epochqueue_messages_{name}_total{{{queue}}}"] == count, name
    assert not any("orders" in name for name in found if name.startswith("rivetq_"))
    assert found["rivetq_wal_segments{}"] == 2
    assert found["rivetq_wal_size_bytes{}"] > 0
    path = "/v1/queues/{queue}/enqueue"
    assert found[f'epochqueue_http_requests_total{{method="POST",path="{path}",status="200"}}'] == 3
    durations = "epochqueue_http_request_duration_milliseconds"
    assert found[f'{durations}_count{{method="POST",path="{path}"}}'] == 3
    assert found[f'{durations}_sum{{method="POST",path="{path}"}}'] > 0


def test_a_job_refused_by_a_rate_limit_is_counted(http: Any) -> None:
    http.post("/v1/queues/jobs/rate_limit", json={"capacity": 1, "refill_rate": 0.001})
    answers = [http.post("/v1/queues/jobs/enqueue", json={"payload": 1}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert samples(http.get("/metrics").text)["rivetq_rate_limit_rejections_total{}"] == 2


def test_a_setting_leaves_them_out(tmp_path: Path) -> None:
    with (
        RunningServer(tmp_path / "data", dialect_metrics=False) as server,
        server.client() as client,
    ):
        client.post("/v1/queues/jobs/enqueue", json={"payload": 1})
        page = client.get("/metrics").text
    assert "penstock_published_total" in page
    assert "rivetq_" not in page and "epochqueue_" not in page
