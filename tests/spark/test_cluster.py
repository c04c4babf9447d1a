"""Source, sink and jobs on a real cluster: a standalone master and two workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.cluster import running_cluster

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.long, pytest.mark.timeout(900)]


def test_source_sink_and_jobs_run_on_two_workers(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as master:
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("cluster_work.py"), master, str(tmp_path)],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "executors 2, archived True" in done.stdout
