"""The programs of the Celery page run, with a real worker."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.server.running import RunningServer

_PATIENCE_S = 90


@pytest.mark.timeout(300)
def test_the_application_of_the_page_runs(tmp_path: Path) -> None:
    page = (DOCS / "celery.md").read_text()
    app, caller = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (printed,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with RunningServer(tmp_path / "data") as server:
        address = server.url.removeprefix("http://")
        (tmp_path / "shop.py").write_text(app.replace("127.0.0.1:8080", address))
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "--pool", "solo"]
        with (tmp_path / "log").open("wb") as log:
            worker = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=log, stderr=log
            )
        try:
            done = subprocess.run(
                [sys.executable, "-c", caller],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
                check=False,
            )
            assert done.stdout == printed, done.stderr + (tmp_path / "log").read_text()
        finally:
            worker.terminate()
            try:
                worker.wait(_PATIENCE_S)
            finally:
                worker.kill()
                worker.wait()
