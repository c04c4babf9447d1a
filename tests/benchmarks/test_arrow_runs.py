"""The Arrow benchmark runs and compares what it should; how fast anything is, no test decides."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_a_quick_run_compares_with_the_decoder_and_parquet(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    command = [sys.executable, str(BENCHMARKS / "arrow_tables.py"), "--quick", "--rounds", "1"]
    run = subprocess.run(
        [*command, "--dir", str(tmp_path / "work"), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "out" / "arrow.json").read_text())
    rows = {row["name"]: [one["name"] for one in row["contenders"]] for row in found["rows"]}
    others = ["decoder alone", "Parquet, snappy", "Parquet, zstd"]
    assert rows == {
        "all": ["penstock.arrow", *others],
        "two": ["penstock.arrow", *others],
        "part": ["1 %", "all"],
    }
    assert list((tmp_path / "work").iterdir()) == []  # it cleans up
