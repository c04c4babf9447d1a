"""The Spark benchmarks run and judge every row; how fast anything is, no test decides."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]


@pytest.mark.parametrize("name", ["spark", "spark_scale"])
def test_every_row_runs_and_is_judged(tmp_path: Path, name: str) -> None:
    (tmp_path / "work").mkdir()
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--rounds", "1"]
    run = subprocess.run(
        [*command, "--dir", str(tmp_path / "work"), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=3500,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert list((tmp_path / "work").iterdir()) == []  # it cleans up
    found = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    for row in found["rows"]:
        assert all(one["rounds"] for one in row["contenders"]), row["name"]
        assert {target["outcome"] for target in row["targets"]} <= {"met", "MISSED"}, row["name"]
