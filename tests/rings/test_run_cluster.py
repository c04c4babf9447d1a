"""What `make run-cluster` shows to a newcomer: failovers that lose nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "run_cluster.py"
pytestmark = pytest.mark.timeout(300)


def run(*options: str, typed: str = "") -> str:
    """Return what the script printed, with its brokers on free ports."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--ports", "0", "0", *options],
        input=typed,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_failover_and_a_killed_broker_lose_nothing() -> None:
    printed = run("--failovers", "1")
    assert "kill -9 of the primary" in printed
    assert "kill -9 of the broker" in printed
    assert printed.endswith("lost: 0\n")
    *_, published = re.findall(r"published +(\d+)", printed)
    assert int(published) > 50


def test_the_keyboard_is_obeyed() -> None:
    printed = run(typed="s\nhelp\nq\n")
    assert '"sync_state": "sync"' in printed
    assert printed.count("p: kill the primary") == 2
    assert printed.endswith("lost: 0\n")
