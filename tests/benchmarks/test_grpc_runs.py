"""The gRPC benchmark runs and compares what it should; how fast anything is, no test decides."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_each_row_compares_grpc_with_http(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    command = [sys.executable, str(BENCHMARKS / "grpc_calls.py"), "--quick", "--rounds", "1"]
    command += ["--only", "publish-100", "consume-1"]
    run = subprocess.run(
        [*command, "--dir", str(tmp_path / "work"), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode in (0, 1), run.stderr  # 1: a target was missed
    found = json.loads((tmp_path / "out" / "grpc.json").read_text())
    rows = {row["name"]: [one["name"] for one in row["contenders"]] for row in found["rows"]}
    assert rows == {name: ["gRPC", "HTTP"] for name in ("publish-100", "consume-1")}
    assert all(one["rounds"] for row in found["rows"] for one in row["contenders"])
    assert list((tmp_path / "work").iterdir()) == []  # it cleans up
