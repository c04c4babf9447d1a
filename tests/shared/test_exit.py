"""Processes that end without closing: the holder hands over all the same."""

import os
import subprocess
import sys
from pathlib import Path

import penstock

_PATIENCE_S = 100
# Connections of a queue that was not closed are the user's business.
_WARNINGS = ["-W", "error", "-W", "ignore::ResourceWarning"]


def run(program: str, path: Path) -> None:
    """Run a program in a process of its own. It must not complain."""
    done = subprocess.run(
        [sys.executable, *_WARNINGS, "-c", program, str(path)],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def was_closed(path: Path) -> bool:
    return (path / "closed.json").exists() and not (path / "SOCKET").exists()


def test_a_holder_that_exits_closes_the_directory(tmp_path: Path) -> None:
    run(
        "import penstock, sys\n"
        "queue = penstock.open(sys.argv[1], shared=True)\n"
        "queue.enqueue('one')\n"
        "queue.lease()\n",
        tmp_path / "q",
    )
    assert was_closed(tmp_path / "q")
    with penstock.open(tmp_path / "q") as queue:
        assert queue.stats().leased == 1


def test_threads_that_outlive_the_main_thread_go_on(tmp_path: Path) -> None:
    run(
        "import penstock, sys, threading\n"
        "queue = penstock.open(sys.argv[1], shared=True)\n"
        "main = threading.main_thread()\n"
        "def work():\n"
        "    main.join()\n"
        "    for number in range(100):\n"
        "        queue.enqueue(str(number))\n"
        "    queue.stats()\n"
        "threading.Thread(target=work).start()\n",
        tmp_path / "q",
    )
    assert was_closed(tmp_path / "q")
    with penstock.open(tmp_path / "q") as queue:
        assert queue.stats().ready == 100


def test_a_client_that_exits_leaves_the_holder_alone(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", shared=True) as queue:
        run(
            "import penstock, sys\npenstock.open(sys.argv[1], shared=True).enqueue('one')\n",
            tmp_path / "q",
        )
        assert queue.role == "holder"
        assert queue.stats().ready == 1


def test_a_process_that_ends_at_once_leaves_a_socket_that_is_replaced(tmp_path: Path) -> None:
    run(
        "import os, penstock, sys\n"
        "penstock.open(sys.argv[1], shared=True).enqueue('one')\n"
        "os._exit(0)\n",
        tmp_path / "q",
    )
    assert "SOCKET" in os.listdir(tmp_path / "q")
    with penstock.open(tmp_path / "q", read_only=True) as reader:
        assert reader.stats().ready == 1
    with penstock.open(tmp_path / "q") as alone:  # it does not mind the socket
        assert alone.stats().ready == 1
    with penstock.open(tmp_path / "q", shared=True) as queue:
        assert queue.role == "holder"
        assert queue.stats().ready == 1
    assert was_closed(tmp_path / "q")


def test_a_holder_whose_main_thread_has_ended_answers_large_calls(tmp_path: Path) -> None:
    """Large bodies and answers are handled by threads, also while Python exits."""
    run(
        "import penstock, sys, threading\n"
        "queue = penstock.open(sys.argv[1], shared=True)\n"
        "main = threading.main_thread()\n"
        "def work():\n"
        "    main.join()\n"
        "    queue.enqueue_batch([b'x' * 1000] * 200)\n"
        "    assert len(list(queue.browse())) == 200\n"
        "threading.Thread(target=work).start()\n",
        tmp_path / "q",
    )
    with penstock.open(tmp_path / "q") as queue:
        assert queue.stats().ready == 200
