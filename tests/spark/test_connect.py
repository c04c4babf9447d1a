"""Spark Connect: batch, streams, views and the jobs that need no classic session."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.archive import ArchiveManifest, archive_at
from tests.archive.made_archives import add_file, messages
from tests.spark.connect_work import prepare

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]


def test_a_session_of_spark_connect_reads_writes_streams_and_runs_jobs(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    # The only package of Connect that the tests do not have for other reasons.
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
    subprocess.run([sys.executable, *install, "grpcio-status"], check=True, timeout=900)
    prepare(tmp_path)
    made = archive_at(str(tmp_path / "archive"))
    add_file(made, ArchiveManifest("source", 7, first_seq=1, next_seq=1), messages(1, 20))
    given = os.environ.get("PYTHONPATH")
    path = str(packages) if given is None else f"{packages}{os.pathsep}{given}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_work", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "which Spark Connect does not support" in found.pop("archive refused")
    assert found and all(found.values()), found
