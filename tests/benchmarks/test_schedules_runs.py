"""The schedules benchmark runs and counts messages; how much it takes, no test decides."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_a_quick_run_publishes_what_is_due(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    command = [sys.executable, str(BENCHMARKS / "schedules.py"), "--quick", "--rounds", "1"]
    run = subprocess.run(
        [*command, "--dir", str(tmp_path / "work"), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode in (0, 1), run.stderr  # 1: a target is missed, as with so little time
    found = json.loads((tmp_path / "out" / "schedules.json").read_text())
    messages = {row["name"]: row["contenders"][0]["rounds"][0]["messages"] for row in found["rows"]}
    assert (messages["minutes"], messages["interval"]) == (20 * 60, 20 * 60)
    assert messages["days"] == 20  # 02:30 in Berlin
    assert messages["real"] >= 20
    assert list((tmp_path / "work").iterdir()) == []  # it cleans up
