"""Every example runs, and prints what it is there to show."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

PRINTS = {
    "async_queue": ["published: 100", "done: 100", "at last"],
    "client": ["9 call the customer", "5 pack order 7", "['shop/orders'] 2"],
    "compression": ["unchanged: True", "saved: True"],
    "dead_letters": [
        "done: fine (attempt 1)",
        "attempt 1 failed: cannot digest this",
        "attempt 2 failed: cannot digest this",
        "attempt 3 failed: cannot digest this",
        "dead after 3 attempts: ValueError: cannot digest this",
        "headers: ['dlq.failure_reason', 'dlq.last_failure', 'dlq.original_msg_id', "
        "'dlq.retry_count']",
        "It is a dead letter after 3 attempts: ValueError: cannot digest this. Redrive it to try "
        "again.",
        "redriven: 1",
        "now: ready",
    ],
    "dedup": ["the same message: True", "duplicate after a restart: True", "in the queue: 1"],
    "delay": ["now", "at a time", "in 2 s", "delayed"],
    "django_app": ["READY", "SUCCESSFUL welcomed 7"],
    "fastapi_app": ["{'result': 'welcomed 7'}"],
    "flask_app": ["{'result': 'welcome 7'}"],
    "groups": [
        "billing ['order 1', 'order 2', 'order 3']",
        "audit ['order 1', 'order 2', 'order 3']",
        "alerts ['order 3']",
        "{'main': 3, 'billing': 0, 'audit': 3, 'alerts': 0}",
    ],
    "headers": ["application/json {'tenant': 'acme', 'trace': '4bf92f35'}", "7"],
    "keys": [
        "at once: ['alice: open account', 'bob: open account']",
        "waits: key_busy",
        "next of alice: alice: open account",
    ],
    "priority": ["9 alarm", "5 invoice", "5 second invoice", "0 newsletter"],
    "producer_consumer": ["200 messages, each done 1 time", "left: 0"],
    "replay": [
        "first time: ['monday', 'tuesday', 'wednesday']",
        "from the beginning: ['monday', 'tuesday', 'wednesday']",
        "from a message: ['tuesday', 'wednesday']",
        "from a time: ['monday', 'tuesday', 'wednesday']",
        "from the end: []",
    ],
    "simple": ["hello", "text is fine too"],
    "streaming": ["seen: 1", "seen: 2", "succeeded: 2 total: 9"],
    "tasks": ["flaky: 7 at attempt 3", "sum of squares: 14", "done: 6 failed: 2"],
    "transactions": [
        "done",
        "['published', 'leased', 'acked']",
        "ready order 2",
        "ready pack order 1",
        "scheduled ask how it went",
    ],
    "ttl": ["ready", "expired", "the order itself", "expired: 1"],
    "worker": ["done: 9 failed: 1", "order 3 - ValueError: out of stock"],
}


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_prints_what_it_shows(example: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert [line.strip() for line in result.stdout.splitlines()] == PRINTS[example.stem]
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_known() -> None:
    assert sorted(PRINTS) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
