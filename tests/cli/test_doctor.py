"""`penstock doctor`: what it finds on this machine, at a broker and in a database."""

import errno
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock import codec
from penstock.cli import machine_checks
from penstock.cli.machine_checks import (
    check_clock,
    check_codec,
    check_file_system,
    check_java,
    check_newest_entry,
    check_open_files,
    check_port,
    check_space,
    check_syncs,
    files_below,
)
from penstock.clock import ManualClock
from penstock.ledger.files import OsFiles
from tests.cli.command_line import CommandLine
from tests.cli.test_serve import serving
from tests.harness.postgres_server import PostgresServer

GIB = 1 << 30


def states(answer: Any) -> dict[str, str]:
    return {one["check"]: one["state"] for one in answer.json["checks"]}


def test_a_queue_on_this_machine(command: CommandLine, path: Path) -> None:
    before = sorted(path.rglob("*"))
    found = states(command("doctor", path, "--json"))
    assert {"place", "disk space", "file system", "fsync", "clock"} <= set(found)
    assert {"open files", "Python", "compiled codec", "Java", "port 8080"} <= set(found)
    assert found["Python"] == found["compiled codec"] == "ok"
    assert sorted(path.rglob("*")) == before
    text = command("doctor", path).text
    assert "a queue; last writer: process" in text
    assert "p99" in text


def test_a_running_broker_by_its_directory_and_its_url(
    command: CommandLine, tmp_path: Path
) -> None:
    with serving(tmp_path / "data") as (url, _):
        port = url.rpartition(":")[2]
        found = states(command("doctor", tmp_path / "data", "--port", port, "--json"))
        assert found[f"port {port}"] == "ok"
        found = states(command("doctor", url, "--json"))
        assert found["broker"] == found["clock skew"] == "ok"
    answer = command("doctor", url, "--json")
    assert answer.code == 1
    assert states(answer)["broker"] == "fail"


def test_a_database(command: CommandLine, postgres_server: PostgresServer) -> None:
    answer = command("doctor", postgres_server.url, "--json")
    found = states(answer)
    assert found["PostgreSQL"] == found["rights"] == found["connections"] == "ok"
    missing = command("doctor", "postgresql://127.0.0.1:1/none", "--json")
    assert (missing.code, states(missing)["PostgreSQL"]) == (1, "fail")


def test_a_place_that_cannot_be_used(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert states(command("doctor", tmp_path / "file", "--json")) == {"place": "fail"}
    found = states(command("doctor", tmp_path / "not" / "yet", "--json"))
    assert found["place"] == "ok"
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("place", ["/proc", "/sys", "/proc/1"])
def test_a_place_that_is_no_disk_is_reported_with_all_other_checks(
    command: CommandLine, place: str
) -> None:
    answer = command("doctor", place, "--json")
    found = {one["check"]: one for one in answer.json["checks"]}
    assert (answer.code, answer.err) == (1, "")
    failed = [one for one in found.values() if one["state"] == "fail"]
    assert failed
    assert all(one["advice"] for one in failed)
    assert "chown" not in str(failed)


def test_a_disk_that_cannot_be_written_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    found = check_syncs(tmp_path, ManualClock())
    assert (found.state, "No space left on device" in found.text) == ("fail", True)


@pytest.mark.parametrize(
    ("free", "total", "state"),
    [(50 << 20, 10 * GIB, "fail"), (GIB // 2, 10 * GIB, "warn"), (9 * GIB, 10 * GIB, "ok")],
)
def test_little_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, total: int, state: str
) -> None:
    room = SimpleNamespace(f_bavail=free, f_blocks=total, f_frsize=1, f_files=9, f_favail=9)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    found = check_space(tmp_path)
    assert found.state == state
    assert bool(found.advice) == (state != "ok")


@pytest.mark.parametrize(("kind", "state"), [("nfs4", "fail"), ("tmpfs", "warn"), ("xfs", "ok")])
def test_file_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, state: str
) -> None:
    monkeypatch.setattr(OsFiles, "file_system", lambda self, path: kind)
    assert check_file_system(tmp_path).state == state


@pytest.mark.parametrize(("took_s", "state"), [(0.2, "warn"), (0.001, "ok"), (0.0, "warn")])
def test_sync_latency(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, took_s: float, state: str
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(os, "fdatasync", lambda fd: clock.advance(took_s))
    found = check_syncs(tmp_path, clock)
    assert (found.state, f"p99 {took_s * 1e3:.2f} ms" in found.text) == (state, True)


class _Waiting(ManualClock):
    """A clock on which something happens during a wait."""

    def __init__(self, happens: Callable[["_Waiting"], None], **options: Any) -> None:
        super().__init__(**options)
        self._happens = happens

    def wait(self, condition: Any, timeout_s: float | None) -> None:
        self._happens(self)


@pytest.mark.parametrize(
    ("clock", "ntp", "state"),
    [
        (_Waiting(lambda clock: clock.advance(0.2)), True, "ok"),
        (_Waiting(lambda clock: clock.advance(0.2)), None, "ok"),
        (_Waiting(lambda clock: clock.advance(0.2)), False, "warn"),
        (_Waiting(lambda clock: clock.jump(-3)), True, "warn"),
        (_Waiting(lambda clock: None, now_s=1000), True, "fail"),
    ],
)
def test_clocks(
    monkeypatch: pytest.MonkeyPatch, clock: _Waiting, ntp: bool | None, state: str
) -> None:
    monkeypatch.setattr(machine_checks, "ntp_synchronized", lambda: ntp)
    assert check_clock(clock).state == state


def test_a_clock_that_went_back_is_seen_in_the_segments(path: Path) -> None:
    with penstock.open(path) as queue:
        queue.enqueue(b"x")
    assert check_newest_entry(path, ManualClock(now_s=5e9)) is None
    found = check_newest_entry(path, ManualClock(now_s=1_700_000_000))
    assert found is not None
    assert found.state == "warn"


@pytest.mark.parametrize(("limit", "state"), [(100, "fail"), (1024, "warn"), (65536, "ok")])
def test_open_files(monkeypatch: pytest.MonkeyPatch, limit: int, state: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limit, limit))
    assert check_open_files().state == state


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = check_port("127.0.0.1", port, None)
        assert (found.state, os.strerror(errno.EADDRINUSE) in found.text) == ("warn", True)
        assert check_port("127.0.0.1", port, f"http://127.0.0.1:{port}").state == "ok"


def test_java_and_codec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java().state == "warn"
    java.unlink()
    assert check_java().state == "warn"
    monkeypatch.setattr(machine_checks, "find_spec", lambda name: None)
    assert check_java().state == "ok"
    monkeypatch.setattr(codec, "IMPLEMENTATION", "python")
    assert check_codec().state == "warn"


def test_folders_that_vanish_or_lie_deep_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("shop/orders/messages", "gone", "1/2/3/4/5/6"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.log").touch()
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("gone"):
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert list(files_below(tmp_path)) == [tmp_path / "shop/orders/messages/a.log"]
