"""A real Celery worker on the SQS transport of kombu."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import RunningServer

ROOT = Path(__file__).resolve().parents[3]
_PATIENCE_S = 90
# Celery's own process, so that its warnings and threads are not those of the tests.
DRIVER = """
import time
from datetime import datetime, timedelta
from celery import chord, group
from tests.server.sqs import celery_app as tasks

{}
"""


Key = tuple[str, str]


class Celery:
    """A place for workers and for programs that send tasks."""

    def __init__(
        self, server: RunningServer, key: Key, place: Path, *, visibility_s: int = 60
    ) -> None:
        self.place = place
        self.key = key
        broker = server.url.replace("http://", f"sqs://{key[0]}:{key[1]}@")
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CELERY_TEST_BROKER": f"{broker}//",
            "CELERY_TEST_PLACE": str(place),
            "CELERY_TEST_VISIBILITY_S": str(visibility_s),
            "CELERY_TEST_QUEUE": f"celery-{place.name}",
        }

    @contextmanager
    def worker(self, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
        """A worker, which is stopped in good order unless it was killed."""
        command = [sys.executable, "-m", "celery", "-A", "tests.server.sqs.celery_app", "worker"]
        with (self.place / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--loglevel", "INFO", *options],
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            finally:
                process.kill()
                process.wait()

    def run(self, program: str) -> str:
        """Run a program that sends tasks. Return what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", DRIVER.format(program)],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:] + self.log[-3000:]
        return done.stdout.strip()

    @property
    def log(self) -> str:
        return (self.place / "worker.log").read_text()


@pytest.fixture(scope="module")
def key(server: RunningServer) -> Key:
    """The key of workers and senders: they sign their calls."""
    return server.new_key_and_id("publish", "consume", "manage", "read", signs=True)


@pytest.fixture
def celery(server: RunningServer, key: Key, tmp_path: Path) -> Celery:
    return Celery(server, key, tmp_path)


def queue_counts(server: RunningServer, celery: Celery) -> dict[str, Any]:
    queue = celery.environment["CELERY_TEST_QUEUE"]
    with server.client(headers={"X-Api-Key": celery.key[1]}) as http:
        stats = http.get(f"/api/v1/namespaces/default/queues/{queue}").json()["stats"]
    return {name: stats[name] for name in ("ready", "scheduled", "leased", "dead")}


@pytest.mark.timeout(300)
def test_tasks_retries_countdown_eta_and_chord(server: RunningServer, celery: Celery) -> None:
    with celery.worker("--pool", "prefork", "--concurrency", "2"):
        printed = celery.run(
            f"""
wait = dict(timeout={_PATIENCE_S}, interval=0.05)
print(tasks.add.delay(2, 3).get(**wait))
tasks.flaky.delay(2)
now = datetime.now().astimezone()
later = tasks.at.apply_async(countdown=1)
eta = tasks.at.apply_async(eta=now + timedelta(seconds=1))
print(later.get(**wait) - now.timestamp() >= 1, eta.get(**wait) - now.timestamp() >= 1)
print(group(tasks.add.s(n, n) for n in range(10))().get(**wait))
while not (tasks.PLACE / "retries").exists():
    time.sleep(0.05)
print((tasks.PLACE / "retries").read_text())
print(chord([tasks.add.s(n, n) for n in range(5)], tasks.total.s())().get(**wait))
"""
        )
    assert printed.splitlines() == [
        "5",
        "True True",
        "[0, 2, 4, 6, 8, 10, 12, 14, 16, 18]",
        "2",
        "20",
    ]
    assert queue_counts(server, celery) == {"ready": 0, "scheduled": 0, "leased": 0, "dead": 0}


@pytest.mark.timeout(300)
def test_a_task_of_a_killed_worker_is_delivered_again(
    server: RunningServer, key: Key, tmp_path: Path
) -> None:
    celery = Celery(server, key, tmp_path, visibility_s=3)
    with celery.worker("--pool", "solo") as worker:
        id_ = celery.run("print(tasks.hang_once.delay('first').id)")
        until = time.monotonic() + _PATIENCE_S
        while not (tmp_path / "first").exists():
            assert time.monotonic() < until, celery.log
            time.sleep(0.05)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert queue_counts(server, celery)["leased"] == 1
    with celery.worker("--pool", "solo"):
        program = f"print(tasks.app.AsyncResult({id_!r}).get(timeout={_PATIENCE_S}))"
        assert celery.run(program) == "done"
    assert queue_counts(server, celery) == {"ready": 0, "scheduled": 0, "leased": 0, "dead": 0}
