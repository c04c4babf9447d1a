"""A publish runs through few files, so that it can be read from its first byte to its reply."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("path", "body", "most", "most_in_server"),
    [
        ("/api/v1/namespaces/n/queues/q/messages", '{"payload":1}', 11, 7),
        ("/namespaces/n/queues/q/messages", '{"body":"eA=="}', 12, 8),
        ("/v1/queues/q/enqueue", '{"payload":1}', 13, 8),
    ],
    ids=["native", "epochqueue", "rivetq"],
)
def test_a_publish_runs_through_few_files(
    tmp_path: Path, path: str, body: str, most: int, most_in_server: int
) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "publish_path.py"), str(tmp_path), path, body],
        env={**os.environ, "PENSTOCK_HTTP": "python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = done.stdout.splitlines()
    assert "server/connection.py" in files and "broker/broker.py" in files
    assert len(files) <= most, files
    assert sum(file.startswith("server/") for file in files) <= most_in_server, files
