"""The worker benchmark runs and compares what it should; how fast anything is, no test decides."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_each_row_compares_a_worker_with_a_bare_loop(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    command = [sys.executable, str(BENCHMARKS / "worker.py"), "--quick", "--rounds", "1"]
    run = subprocess.run(
        [*command, "--dir", str(tmp_path / "work"), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "out" / "worker.json").read_text())
    rows = {row["name"]: [one["name"] for one in row["contenders"]] for row in found["rows"]}
    names = ["embedded-threads", "embedded-tasks", "http-threads", "http-tasks"]
    assert rows == {name: ["bare loop", "worker"] for name in names}
    assert all(one["rounds"] for row in found["rows"] for one in row["contenders"])
    assert list((tmp_path / "work").iterdir()) == []  # it cleans up
