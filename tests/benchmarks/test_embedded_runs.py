"""The embedded benchmark runs and says what it should; how fast anything is, no test decides."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

ROWS = {
    "enqueue",
    "dequeue",
    "general",
    "publish",
    "lease",
    "enqueue_batch",
    "dequeue_batch",
    "lease_batch",
    "backlog",
    "open",
    "durable",
    "delayed",
}
MODULE_OF_PEER = {
    "queuelib": "queuelib",
    "persist-queue file": "persistqueue",
    "persist-queue SQLite": "persistqueue",
    "persist-queue ack": "persistqueue",
    "litequeue": "litequeue",
    "diskcache": "diskcache",
    "huey SQLite": "huey",
    "LMDB by hand": "lmdb",
}


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a quick run printed, and where it wrote."""
    place = tmp_path_factory.mktemp("bench")
    (place / "work").mkdir()
    command = [sys.executable, str(BENCHMARKS / "embedded.py"), "--quick", "--rounds", "1"]
    run = subprocess.run(
        [*command, "--dir", str(place / "work"), "--out", str(place / "out")],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    assert list((place / "work").iterdir()) == []  # it cleans up
    return run.stdout, place / "out"


@pytest.fixture
def found(quick_run: tuple[str, Path]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((quick_run[1] / "embedded.json").read_text())
    return result


def test_every_row_is_in_the_json(found: dict[str, Any]) -> None:
    assert {row["name"] for row in found["rows"]} == ROWS


def test_every_contender_has_figures_unless_it_is_a_peer_that_is_not_installed(
    found: dict[str, Any],
) -> None:
    missing = {
        one["name"] for row in found["rows"] for one in row["contenders"] if not one["rounds"]
    }
    assert missing == {peer for peer, module in MODULE_OF_PEER.items() if find_spec(module) is None}


def test_every_target_was_judged_unless_its_peer_is_missing(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        for target in row["targets"]:
            of_a_peer = any(word in target["says"] for word in ("queuelib", "persist", "LMDB"))
            assert target["outcome"] in ("met", "MISSED") or of_a_peer


def test_the_facts_name_the_versions(found: dict[str, Any]) -> None:
    assert {"penstock", "python", "queuelib", "lmdb", "huey", "litequeue"} <= set(found["facts"])


def test_table_page_and_plot_are_there(quick_run: tuple[str, Path]) -> None:
    table, out = quick_run
    assert "lease and ack in batches of 100" in table
    assert "lease and ack in batches of 100" in (out / "embedded.md").read_text()
    plot = ElementTree.fromstring((out / "embedded.svg").read_text())
    assert len(plot) > 20
