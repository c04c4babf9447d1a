"""The benchmarks run and say what they should; how fast anything is, no test decides."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import penstock

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

ROWS = {
    "append": ["penstock", "twin", "queuelib"],
    "batch": ["penstock", "memcpy + CRC"],
    "read": ["penstock", "twin", "columns", "all columns"],
    "durable": ["machine", "1 thread", "64 threads", "64 threads, one core", "1,000 tasks"],
    "random": ["penstock"],
}
PEERS = {"queuelib"}


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a quick run printed, and where it wrote."""
    place = tmp_path_factory.mktemp("bench")
    (place / "work").mkdir()
    command = [sys.executable, str(BENCHMARKS / "ledger.py"), "--quick", "--rounds", "1"]
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
    text = (quick_run[1] / "ledger.json").read_text()
    result: dict[str, Any] = json.loads(text)
    return result


def test_every_row_and_contender_is_in_the_json(found: dict[str, Any]) -> None:
    rows = {row["name"]: [one["name"] for one in row["contenders"]] for row in found["rows"]}
    assert rows == ROWS


def test_the_results_have_our_version(found: dict[str, Any]) -> None:
    assert found["facts"]["penstock"] == penstock.__version__


def test_every_contender_has_figures_unless_it_is_a_peer_that_is_not_installed(
    found: dict[str, Any],
) -> None:
    missing = {
        one["name"] for row in found["rows"] for one in row["contenders"] if not one["rounds"]
    }
    assert missing == {peer for peer in PEERS if find_spec(peer) is None}


def test_every_row_has_a_target_that_was_judged(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        assert {target["outcome"] for target in row["targets"]} & {"met", "MISSED"}


def test_the_facts_name_what_the_figures_depend_on(found: dict[str, Any]) -> None:
    assert {"python", "queuelib", "system", "file_system", "cpu_count"} <= set(found["facts"])


def test_table_and_page_show_every_row(quick_run: tuple[str, Path]) -> None:
    table, out = quick_run
    page = (out / "ledger.md").read_text()
    for contenders in ROWS.values():
        for name in contenders:
            assert name in table
            assert name in page
