"""The dashboard and the alerts follow the metrics; promtool accepts rules and metrics."""

import json
import re
import runpy
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.cli.test_serve import serving
from tests.harness.postgres_server import free_port

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "make_monitoring.py"))
SERIES = SCRIPT["all_series"]()


def promtool(*words: object, stdin: str = "") -> None:
    line = ["promtool", *map(str, words)]
    ran = subprocess.run(line, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def sample_names() -> set[str]:
    suffixes = {"histogram": ("_bucket", "_count", "_sum")}
    return {one.name + suffix for one in SERIES for suffix in suffixes.get(one.type, ("",))}


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:penstock|process)_\w+", expression))


def test_the_files_are_what_the_script_writes() -> None:
    for path, text in SCRIPT["written"]().items():
        assert path.read_text() == text, "run: python scripts/make_monitoring.py"


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    shown = [panel for panel in panels if panel["type"] != "row"]
    used = set().union(*(names_in(panel["targets"][0]["expr"]) for panel in shown))
    assert used <= sample_names()
    assert sorted(panel["description"] for panel in shown) == sorted(one.name for one in SERIES)
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(places)) == len(places)


def test_every_alert_uses_metrics_that_exist_and_is_tested() -> None:
    tests = (DEPLOY / "alerts-test.yaml").read_text()
    for rule in SCRIPT["ALERT_RULES"]:
        assert names_in(rule.expr) <= sample_names(), rule.name
        assert f'alertname="{rule.name}"' in tests
        assert rule.severity in ("critical", "warning")


def test_promtool_accepts_the_rules_and_they_fire_as_they_should() -> None:
    promtool("check", "rules", DEPLOY / "alerts.yaml")
    promtool("test", "rules", DEPLOY / "alerts-test.yaml")


def test_promtool_accepts_the_metrics_of_a_broker(tmp_path: Path) -> None:
    grpc, beanstalk, sqs = free_port(), free_port(), free_port()
    ports = {"--grpc": grpc, "--beanstalk": beanstalk, "--sqs": sqs}
    options = [word for name, port in ports.items() for word in (name, f"127.0.0.1:{port}")]
    with serving(tmp_path / "data", *options) as (url, _):
        for place in (url, f"grpc://127.0.0.1:{grpc}"):
            with penstock.open(f"{place}/shop/orders") as queue:
                queue.enqueue_batch([b"x"] * 3)
                queue.dequeue()
        with socket.create_connection(("127.0.0.1", beanstalk), timeout=10) as connection:
            connection.sendall(b"delete 7\r\nno-such-command\r\n")
            assert connection.recv(100)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{sqs}/", data=b"{}", timeout=10)
        page = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
    # The names of the dialects are given: one of them counts milliseconds.
    lines = page.splitlines(keepends=True)
    ours = "".join(line for line in lines if "epochqueue_" not in line and "rivetq_" not in line)
    promtool("check", "metrics", stdin=ours)
    found = set(re.findall(r"^(\w+)[{ ]", ours, re.MULTILINE))
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds"):
        assert f"process_{name}" in found
    assert "process_start_time_seconds" in found
    names = ("grpc_calls_total", "beanstalk_commands_total", "sqs_errors_total")
    for name in (*names, "grpc_active_calls"):
        assert f"penstock_{name}" in found
    created = {name for name in found if name.endswith("_created")}
    assert found - created - {"HELP"} <= sample_names()
