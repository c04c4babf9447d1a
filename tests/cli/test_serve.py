"""`penstock serve`, as the process that it is."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.tasks import Tasks
from tests.cli.command_line import CommandLine


@contextmanager
def serving(data: Path, *options: str) -> "Iterator[tuple[str, subprocess.Popen[str]]]":
    """The URL of a broker, and its process."""
    line = [sys.executable, "-m", "penstock", "serve", str(data), "--port", "0", "--json", *options]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"], process
        finally:
            process.kill()


def test_it_serves_until_it_is_told_to_stop_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (url, process):
        with penstock.open(f"{url}/shop/orders") as queue:
            kept = queue.enqueue(b"kept")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    with serving(tmp_path / "data") as (url, process):
        with penstock.open(f"{url}/shop/orders") as queue:
            assert [message.id for message in queue.browse()] == [kept]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def failing(*arguments: object) -> str:
    """What `serve` says on stderr when it cannot."""
    line = [sys.executable, "-m", "penstock", "serve", *map(str, arguments)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    return ended.stderr


def test_a_data_directory_that_another_serves_is_told_in_one_line(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (url, _):
        told = failing(tmp_path / "data", "--port", 0)
        assert told.count("\n") == 1
        assert "is being written by" in told and "serving" not in told
        with penstock.open(f"{url}/shop/orders") as queue:
            queue.enqueue(b"it goes on")


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (url, _):
        port = urlsplit(url).port
        told = failing(tmp_path / "other", "--port", port)
    assert told.count("\n") == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in told and "serving" not in told
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("form", "begins"), [("auto", "2"), ("json", "{"), ("text", "2")])
def test_people_get_lines_and_pipes_get_json(tmp_path: Path, form: str, begins: str) -> None:
    """stderr is a terminal here; with `serving` above it is a pipe."""
    reading, terminal = pty.openpty()
    line = [sys.executable, "-m", "penstock", "serve", str(tmp_path / "data"), "--port", "0"]
    environment = {**os.environ, "PENSTOCK_SERVER_LOG_FORMAT": form}
    with subprocess.Popen(line, stderr=terminal, env=environment) as process:
        os.close(terminal)
        with os.fdopen(reading, encoding="utf-8") as told:
            first = told.readline()
        process.kill()
    assert first.startswith(begins)
    assert "listening" in first


def test_a_pipe_gets_json(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (_, process):
        assert process.stderr is not None
        assert json.loads(process.stderr.readline())["event"] == "listening"


def test_a_queue_is_not_taken_for_a_data_directory(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "orders") as queue:
        queue.enqueue(b"x")
    told = failing(tmp_path / "orders", "--port", 0)
    assert told.count("\n") == 1 and "is a queue itself" in told


@pytest.mark.parametrize("is_in_use", [True, False])
def test_the_directory_of_tasks_is_not_taken_for_a_data_directory(
    tmp_path: Path, is_in_use: bool
) -> None:
    path = tmp_path / "work"
    with Tasks(path) as tasks:
        job = tasks.add(lambda: None, name="send", queue="mail").enqueue()
        if not is_in_use:
            tasks.close()
        told = failing(path, "--port", 0)
        assert told.count("\n") == 1 and "queue 'mail', as Tasks makes it" in told
        assert os.listdir(path) == ["mail"]
        assert is_in_use is False or job.state() == "ready"


def test_a_shared_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data", shared=True, queue="mail") as queue:
        told = failing(tmp_path / "data", "--port", 0)
        assert told.count("\n") == 1 and "is being written by" in told
        assert queue.enqueue(b"x")


def test_tasks_of_a_data_directory_are_told_to_use_the_url(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (url, _):
        with (
            Tasks(tmp_path / "data") as tasks,
            pytest.raises(InvalidInput, match="URL of the brok"),
        ):
            tasks.add(lambda: None, name="send", queue="mail").enqueue()
        assert "mail" not in os.listdir(tmp_path / "data")
        with Tasks(url) as tasks:
            job = tasks.add(lambda: None, name="send", queue="mail").enqueue()
            with penstock.open(tmp_path / "data", shared=True, queue="mail") as queue:
                assert queue.get(job.id).id == job.id


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[server]\nport = 1\nlog_level = "error"\n[queues]\nlease_s = 7\n')
    with (
        serving(tmp_path / "data", "--config", str(file)) as (url, _),
        penstock.open(f"{url}/shop/orders") as queue,
    ):
        queue.enqueue(b"x")
        (job,) = queue.lease()
    assert 0 < job.deadline - job.published_at < 8


def test_a_wrong_setting_is_refused_with_its_line(command: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[server]\nprot = 1\n")
    answer = command("serve", tmp_path / "data", "--config", file)
    assert answer.code == 2
    assert "line 2" in answer.err and "'prot'" in answer.err
    assert not (tmp_path / "data").exists()


def test_an_open_door_is_refused(command: CommandLine, tmp_path: Path) -> None:
    answer = command("serve", tmp_path / "data", "--host", "0.0.0.0", "--port", 0)
    assert answer.code == 2
    assert "insecure" in answer.err


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('httptools', 'prometheus_client', 'uvloop', 'msgspec', 'httpx2'):\n"
        "    sys.modules[name] = None\n"
        "from penstock.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    for line, extra in (
        (["serve", str(tmp_path)], "server"),
        (["keys", "list", str(tmp_path)], "server"),
        (["queues", "list", str(tmp_path)], "server"),
        (["stats", "https://127.0.0.1:1/default/q"], "client"),
    ):
        result = subprocess.run(
            [sys.executable, "-c", program, *line], capture_output=True, text=True, check=False
        )
        assert result.returncode == 2, result
        assert f"pip install '.[{extra}]'" in result.stderr
        assert result.stderr.count("\n") == 1
