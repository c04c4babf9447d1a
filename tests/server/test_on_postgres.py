"""Tests of routes, dialects, beanstalk, WebSocket, webhooks and pages on a store in PostgreSQL."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# Those that say most about the store, in a minute. The long run has all of them.
SOME = (
    "beanstalk/test_jobs.py",
    "dialects/test_epochqueue.py",
    "dialects/test_rivetq.py",
    "dialects/test_keys.py",
    "grpc/test_consume.py",
    "grpc/test_queue_service.py",
    "grpc/test_rivetq_service.py",
    "sqs/test_dead_letters.py",
    "sqs/test_fifo.py",
    "sqs/test_messages.py",
    "test_cursors.py",
    "test_leased_json.py",
    "test_long_poll_keys.py",
    "test_native_table.py",
    "test_repeated_requests.py",
    "test_segments.py",
    "ws",
    "webhooks",
    "dashboard/test_contents.py",
)
DASHBOARD = ("dashboard/test_contents.py", "dashboard/test_pages.py")
ALL = (
    "beanstalk",
    "dialects",
    "grpc",
    "sqs",
    "ws",
    "webhooks",
    *DASHBOARD,
    *(path.name for path in sorted(HERE.glob("test_*.py"))),
)
# Tests of files: a data directory, its free space, a process that is started with one.
OF_FILES = (
    "not test_namespaces_have_the_same_names",
    "not test_names_that_differ_only_in_case_are_different_queues",
    "not test_killed",
)


def run_on_postgres(places: tuple[str, ...], *options: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options]
    command += ["-k", " and ".join(OF_FILES), *(str(HERE / place) for place in places)]
    done = subprocess.run(
        command,
        env={**os.environ, "PENSTOCK_TEST_STORE": "postgres"},
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


@pytest.mark.timeout(600)
def test_the_api_is_the_same_on_postgres() -> None:
    run_on_postgres(SOME)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_test_of_the_server_holds_on_postgres() -> None:
    left_out = ["test_on_postgres.py", "test_serve.py", "test_configuration.py", "test_life.py"]
    run_on_postgres(tuple(place for place in ALL if place not in left_out))
