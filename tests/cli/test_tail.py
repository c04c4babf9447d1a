"""`penstock tail`, beside the process that writes."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from tests.cli.command_line import CommandLine, listing


def test_the_last_messages_once(command: CommandLine, path: Path) -> None:
    with penstock.open(path) as queue:
        queue.enqueue_batch([b"%d" % n for n in range(20)])
        queue.dequeue_batch(20)
    lines = command("tail", path, "--once", "-n", 3, "--json").json_lines
    assert [line["payload"] for line in lines] == ["17", "18", "19"]
    assert len(command("tail", path, "--once").text.splitlines()) == 10
    assert command("tail", path, "--once", "-n", 0).out == b""


def test_count_stops_it(command: CommandLine, path: Path) -> None:
    with penstock.open(path) as queue:
        queue.enqueue_batch([b"%d" % n for n in range(20)])
    assert len(command("tail", path, "-n", 5, "--count", 4, "--json").json_lines) == 4


def test_an_empty_queue_has_no_last_messages(command: CommandLine, path: Path) -> None:
    answer = command("tail", path, "--once")
    assert (answer.code, answer.out, answer.err) == (0, b"", "")


@contextmanager
def follow(path: Path, *options: str) -> "Iterator[subprocess.Popen[str]]":
    line = [sys.executable, "-m", "penstock", "tail", str(path), "--interval", "10ms", *options]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        try:
            yield follower
        finally:
            follower.kill()


def payloads(follower: "subprocess.Popen[str]", count: int) -> list[str]:
    """The next so many, as they come."""
    assert follower.stdout is not None
    return [json.loads(follower.stdout.readline())["payload"] for _ in range(count)]


def test_each_message_is_shown_once_as_another_process_writes_it(path: Path) -> None:
    with (
        penstock.open(path, segment_bytes=2048) as queue,
        follow(path, "--json", "-n", "200", "--count", "200") as follower,
    ):
        for n in range(0, 200, 50):
            numbers = [str(m) for m in range(n, n + 50)]
            for number in numbers:
                queue.enqueue(number)
            assert payloads(follower, 50) == numbers
            queue.dequeue_batch(40)
            queue.compact()
        assert follower.wait(timeout=60) == 0


def test_following_changes_nothing(command: CommandLine, lived_in: Path) -> None:
    before = listing(lived_in)
    command("tail", lived_in, "--count", "5")
    assert listing(lived_in) == before


def test_damage_is_told_once(path: Path) -> None:
    with penstock.open(path, segment_bytes=2048) as queue:
        for n in range(200):
            queue.enqueue(b"%d" % n)
        file = sorted((path / "messages").glob("*.log"))[0]
        data = bytearray(file.read_bytes())
        data[300] ^= 1
        file.write_bytes(data)
        with follow(path, "--json", "-n", "200", "--count", "201") as follower:
            assert len(payloads(follower, 199)) == 199
            queue.enqueue_batch([b"more", b"and more"])
            _, err = follower.communicate(timeout=60)
    assert err.count("warning: damage") == 1


@pytest.fixture
def _heeds_interrupts() -> Iterator[None]:
    """A suite that a shell runs in the background ignores them, and so would its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heeds_interrupts")
def test_an_interrupt_ends_it_quietly(path: Path) -> None:
    with penstock.open(path) as queue:
        queue.enqueue(b"there")
    with follow(path, "--json") as follower:
        assert payloads(follower, 1) == ["there"]
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=60)
    assert (follower.returncode, err) == (0, "")
