"""Every command of the tutorial runs, and prints what the page shows."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.docs.sessions import Session
from tests.server.running import RunningServer

_PATIENCE_S = 60


@pytest.mark.timeout(300)
def test_the_tutorial_runs(tmp_path: Path) -> None:
    page = (DOCS / "tutorial.md").read_text()
    alone, _, with_broker = page.partition("## More than one machine")
    assert Session(tmp_path).run_blocks(alone) == 8
    with RunningServer(tmp_path / "data") as server:
        session = Session(tmp_path, {"http://127.0.0.1:8080": server.url})
        program, _, sessions = with_broker.partition("The last line waits")
        session.run_blocks(program)
        command = [sys.executable, "-m", "penstock", "worker", "jobs:tasks"]
        worker = subprocess.Popen(command, cwd=tmp_path, env=session.environment)
        try:
            assert session.run_blocks(sessions) == 4
        finally:
            worker.terminate()
            worker.wait(_PATIENCE_S)
