"""The tasks benchmark runs and compares what it should; how fast anything is, no test decides."""

import json
import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_a_quick_run_of_penstock_alone(tmp_path: Path) -> None:
    """Peers are left out: which of them are installed depends on the environment."""
    (tmp_path / "work").mkdir()
    command = [sys.executable, str(BENCHMARKS / "tasks.py"), "--quick", "--rounds", "1"]
    run = subprocess.run(
        [*command, "--dir", str(tmp_path / "work"), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "BENCH_WITHOUT_PEERS": "1"},
    )
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "out" / "tasks.json").read_text())
    rows = {row["name"]: row["contenders"] for row in found["rows"]}
    assert list(rows) == ["durable", "default", "latency", "fair", "tenants"]
    for name in ("durable", "default", "latency"):
        contenders = rows[name]
        ran = [one["name"] for one in contenders if one["median"] is not None]
        assert ran == ["penstock, directory", "penstock, broker"]
    assert list((tmp_path / "work").iterdir()) == []  # it cleans up
