"""`penstock dequeue`."""

import subprocess
import sys
from pathlib import Path

import penstock
from tests.cli.command_line import CommandLine


def fill(path: Path, count: int) -> None:
    with penstock.open(path) as queue:
        queue.enqueue_batch([b"%d" % n for n in range(count)])


def test_payloads_are_printed_as_they_are_and_gone(command: CommandLine, path: Path) -> None:
    with penstock.open(path) as queue:
        queue.enqueue(b"\x00\xff")
    assert command("dequeue", path).out == b"\x00\xff\n"
    assert command("dequeue", path).code == 1


def test_count_and_all(command: CommandLine, path: Path) -> None:
    fill(path, 300)
    assert command("dequeue", path, "-n", 3).out == b"0\n1\n2\n"
    assert len(command("dequeue", path, "--all").out.splitlines()) == 297


def test_messages_of_one_key_come_in_order(command: CommandLine, path: Path) -> None:
    with penstock.open(path) as queue:
        for n in range(5):
            queue.enqueue(b"%d" % n, key="k")
    assert command("dequeue", path, "-n", 4).out == b"0\n1\n2\n3\n"


def test_json_lines(command: CommandLine, path: Path) -> None:
    fill(path, 2)
    lines = command("dequeue", path, "--all", "--json").json_lines
    assert [line["payload"] for line in lines] == ["0", "1"]


def test_of_a_group(command: CommandLine, path: Path) -> None:
    fill(path, 1)
    with penstock.open(path) as queue:
        queue.groups.create("audit")
    assert command("dequeue", path, "-g", "audit").out == b"0\n"
    assert command("dequeue", path, "-g", "audit").code == 1
    assert command("dequeue", path).out == b"0\n"


def test_none_is_said_and_is_exit_code_1(command: CommandLine, path: Path) -> None:
    answer = command("dequeue", path, "--wait", "10ms")
    assert (answer.code, answer.out) == (1, b"")
    assert "no message is ready" in answer.err


def test_message_stays_where_the_output_breaks(path: Path) -> None:
    fill(path, 100)
    line = [sys.executable, "-m", "penstock", "dequeue", str(path), "--all"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.close()
        assert reader.stderr is not None
        assert reader.stderr.read() == b""
    assert reader.returncode == 1
    with penstock.open(path) as queue:
        assert queue.stats().ready == 100
