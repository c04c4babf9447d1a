"""Commands on a directory that processes share."""

import os
from pathlib import Path

import pytest

import penstock
from tests.cli.command_line import CommandLine
from tests.server.running import RunningServer


def test_commands_that_change_are_clients_of_the_holder(
    command: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "q"
    with penstock.open(path, shared=True) as queue:
        assert command("enqueue", path, "one").code == 0
        assert command("enqueue", path, "two").code == 0
        assert command("dequeue", path).text == "one\n"
        assert command("pause", path).code == 0
        assert queue.stats().paused
        assert command("purge", path, "--yes").code == 0
        assert queue.stats().ready == 0


def test_commands_that_read_need_no_holder(command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "q"
    with penstock.open(path, shared=True) as queue:
        id_ = queue.enqueue("one")
        assert command("stats", path, "--json").json["ready"] == 1
        assert command("peek", path, "--json").json["id"] == id_
        assert command("verify", path).code == 0


def test_a_queue_of_a_shared_data_directory(command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "data" / "shop" / "orders"
    with penstock.open(tmp_path / "data", shared=True, queue="shop/orders") as queue:
        assert command("enqueue", path, "one").code == 0
        assert queue.stats().ready == 1
    with RunningServer(tmp_path / "data"):
        assert command("dequeue", path).text == "one\n"


def test_a_directory_that_is_not_shared_is_refused(command: CommandLine, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q"):
        answer = command("enqueue", tmp_path / "q", "one")
    assert answer.code != 0
    assert "shared=True" in answer.err


@pytest.mark.parametrize("where", ["queue", "data"])
def test_a_worker_shares(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"tasks_{where}.py").write_text("def handle(job):\n    pass\n")
    path = tmp_path / "q" if where == "queue" else tmp_path / "data" / "shop" / "orders"
    options = {} if where == "queue" else {"queue": "shop/orders"}
    opened = path if where == "queue" else tmp_path / "data"
    with penstock.open(opened, shared=True, **options) as queue:  # type: ignore[call-overload]
        queue.enqueue_batch([b"one", b"two"])
        answer = command(
            *("worker", f"tasks_{where}:handle", "--queue", path, "--shared", "--idle", "0.3"),
            "--json",
        )
        assert answer.code == 0, answer.err
        assert queue.stats().acked == 2
    assert "SOCKET" not in os.listdir(opened)


def test_a_url_is_not_shared(command: CommandLine) -> None:
    answer = command("worker", "os:getpid", "--queue", "http://127.0.0.1:1/a/b", "--shared")
    assert answer.code != 0
    assert "--shared is for directories" in answer.err
