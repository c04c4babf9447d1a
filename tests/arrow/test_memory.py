"""What a reader or a task of the sink holds does not grow with what it reads or writes.

Each measures the memory of a process of its own. 200 MB pass through it.
"""

import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

import penstock
from penstock.queue.compression import zstd_module
from tests.arrow import large_payloads

MB = 1 << 20
LIMIT_MIB = (
    56  # some batches of 4 MB and their copies; without a bound it is 64, a segment, or more
)

pytestmark = pytest.mark.timeout(300)


def growth_mib(*arguments: str) -> float:
    done = subprocess.run(
        [sys.executable, str(Path(large_payloads.__file__)), *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_reading_payloads_of_1_mb(tmp_path: Path) -> None:
    pool = [Random(n).randbytes(MB) for n in range(4)]
    with penstock.open(str(tmp_path), sync="never", min_free_bytes=0) as queue:
        for number in range(200):
            queue.enqueue(pool[number % 4])
    assert growth_mib("read", str(tmp_path)) < LIMIT_MIB


@pytest.mark.parametrize("method", ["gzip", "zstd"])
def test_reading_payloads_of_1_mb_that_were_compressed_to_little(
    tmp_path: Path, method: str
) -> None:
    if method == "zstd" and zstd_module() is None:
        pytest.skip("needs backports.zstd")
    settings: dict[str, Any] = {"compression": method, "sync": "never", "min_free_bytes": 0}
    with penstock.open(str(tmp_path), **settings) as queue:
        for _ in range(200):
            queue.enqueue(bytes(MB))
    assert growth_mib("read", str(tmp_path)) < LIMIT_MIB


@pytest.mark.parametrize("columns", ["payload", "key"])
def test_staging_payloads_of_1_mb(tmp_path: Path, columns: str) -> None:
    penstock.open(str(tmp_path), sync="never", min_free_bytes=0).close()
    assert growth_mib("stage", str(tmp_path), columns) < LIMIT_MIB
