"""The benchmark of shared directories runs; how fast anything is, no test decides."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_each_row_runs(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    command = [sys.executable, str(BENCHMARKS / "shared.py"), "--quick", "--rounds", "1"]
    run = subprocess.run(
        [
            *(*command, "--only", "client-publish", "holder-lease-and-ack", "takeover"),
            *("--dir", str(tmp_path / "work"), "--out", str(tmp_path / "out")),
        ],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode in (0, 1), run.stderr  # 1: a target is missed
    found = json.loads((tmp_path / "out" / "shared.json").read_text())
    rows = {row["name"]: [one["name"] for one in row["contenders"]] for row in found["rows"]}
    assert rows == {
        "client-publish": ["HTTP by hand", "HTTP, penstock.client", "shared"],
        "holder-lease-and-ack": ["embedded", "holder"],
        "takeover": ["shared"],
    }
    assert all(one["rounds"] for row in found["rows"] for one in row["contenders"])
    assert list((tmp_path / "work").iterdir()) == []  # it cleans up
