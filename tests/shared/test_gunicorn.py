"""The usual small deployment: gunicorn with four workers, and a process that consumes."""

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from tests.shared.processes import PATIENCE_S, sharing

_REQUESTS = 60


@contextmanager
def gunicorn(path: Path, log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run four workers on a free port. Yield the master and the port."""
    command = [
        *(sys.executable, "-m", "gunicorn", "-w", "4", "-b", "127.0.0.1:0", *options),
        *("--no-control-socket", "tests.shared.web_app:application"),
    ]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "SHARED_QUEUE": str(path), "PYTHONPATH": str(root)}
    with subprocess.Popen(
        command, env=environment, cwd=root, stderr=subprocess.PIPE, text=True
    ) as master:
        try:
            yield master, _port_of(master)
        finally:
            if master.poll() is None:
                master.terminate()
            _, said = master.communicate(timeout=PATIENCE_S)
            log.write_text(said)


def _port_of(master: "subprocess.Popen[str]") -> int:
    assert master.stderr is not None
    for line in master.stderr:
        if "Listening at" in line:
            return int(line.split(":")[-1].split()[0])
    raise AssertionError("gunicorn did not start")


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        pid, id_ = connection.getresponse().read().decode().split()
        return int(pid), id_
    finally:
        connection.close()


@pytest.mark.parametrize("options", [["--preload"], []], ids=["preload", "each opens"])
def test_workers_publish_and_another_process_consumes(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "q"
    with gunicorn(path, tmp_path / "log", *options) as (master, port), sharing(path) as consumer:
        answers = dict(_get(port, f"/{number}")[::-1] for number in range(_REQUESTS))
        handled: list[str] = []
        while len(handled) < _REQUESTS // 2:
            ((payload, receipt),) = consumer.ask("lease", wait_s=30)
            consumer.ask("ack", receipt)
            handled.append(payload)
        assert len(answers) == _REQUESTS
        assert consumer.ask("stats").published == _REQUESTS
        master.send_signal(signal.SIGTERM)
        master.wait(PATIENCE_S)
        # The holder was the master or one of its workers.
        while len(handled) < _REQUESTS:
            ((payload, receipt),) = consumer.ask("lease", wait_s=30)
            consumer.ask("ack", receipt)
            handled.append(payload)
    assert sorted(handled) == sorted(f"/{number}" for number in range(_REQUESTS))
    assert "Traceback" not in (tmp_path / "log").read_text()
    with penstock.open(path) as queue:
        stats = queue.stats()
        assert (stats.ready, stats.acked, stats.published) == (0, _REQUESTS, _REQUESTS)
