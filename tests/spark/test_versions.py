"""Every supported version of PySpark but the installed one, each in a directory of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("minor", ["4.0", "4.1", "4.2"])
def test_source_sink_streams_and_jobs_work_with_older_versions(minor: str, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    install = ["-m", "pip", "install", "--quiet", "--target", str(packages), f"pyspark=={minor}.*"]
    subprocess.run([sys.executable, *install], check=True, timeout=900)
    given = os.environ.get("PYTHONPATH")
    path = str(packages) if given is None else f"{packages}{os.pathsep}{given}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.version_work", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("version").startswith(f"{minor}.")
    refused = found.pop("limit refused")
    if found.pop("limits"):
        assert refused == ""
    else:
        assert "maxOffsetsPerTrigger cannot be applied" in refused
        assert "Install PySpark 4.2 or newer" in refused
    assert found.pop("filters") is (minor != "4.0")
    wanted = ["read", "filter", "write once", "typed", "stream", "jobs", "archived", "restore"]
    wanted += ["report"]
    assert found == dict.fromkeys(wanted, True)
