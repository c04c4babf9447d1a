from pathlib import Path

import pytest

import penstock
from tests.cli.command_line import CommandLine


@pytest.fixture
def command(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.setenv("COLUMNS", "80")
    return CommandLine(capsysbinary, monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty queue's directory."""
    path = tmp_path / "orders"
    penstock.open(path).close()
    return path


@pytest.fixture
def lived_in(tmp_path: Path) -> Path:
    """A queue in which much has happened: every state but `cancelled` is in it."""
    path = tmp_path / "lived-in"
    with penstock.open(path, max_attempts=1, segment_bytes=1024) as queue:
        queue.groups.create("audit")
        for n in range(50):
            queue.enqueue(b"plain %d" % n)
        queue.enqueue("umlauts: ä, \x1b[31mescapes\x1b[0m, [bold]markup[/bold]", priority=9)
        queue.enqueue(b"\xff\x00", priority=8, headers={"kind": "binary"})
        queue.enqueue("later", delay=3600)
        queue.enqueue("gone", ttl=0)
        queue.enqueue("first of a key", key="k", priority=7)
        queue.enqueue("second of a key", key="k", priority=7)
        queue.dequeue_batch(2)
        queue.lease(1, lease_s=600, holder="worker-1")  # the first of the key
        for reason in ("ConnectionError: refused", "ValueError: not a number"):
            queue.nack(queue.lease(1), reason)
        queue.dequeue_batch(5, group="audit")
    return path
