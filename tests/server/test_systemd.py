"""What systemd is told: at the start, at a reload, by the watchdog, at the end."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.server.systemd import Notifier
from tests.harness.virtual_loop import VirtualLoop

_PATIENCE_S = 30


class Systemd:
    """The socket that systemd listens on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(_PATIENCE_S)

    def __enter__(self) -> "Systemd":
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def next(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()

    def wait_for(self, line: str) -> list[str]:
        while line not in (found := self.next()):
            pass
        return found

    def all_so_far(self) -> list[str]:
        self._socket.setblocking(False)
        found = []
        while True:
            try:
                found += self.next()
            except BlockingIOError:
                self._socket.settimeout(_PATIENCE_S)
                return found


def test_a_served_directory_reports_each_step(tmp_path: Path) -> None:
    with Systemd(tmp_path / "notify") as systemd:
        _check_life(systemd, tmp_path / "data")


def _check_life(systemd: Systemd, data: Path) -> None:
    environment = {**os.environ, "NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "40000"}
    line = [sys.executable, "-m", "penstock", "serve", str(data), "--port", "0"]
    with subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL) as broker:
        try:
            assert systemd.next()[0].startswith("EXTEND_TIMEOUT_USEC=")
            systemd.wait_for("READY=1")
            systemd.wait_for("WATCHDOG=1")
            broker.send_signal(signal.SIGHUP)
            reloading = systemd.wait_for("RELOADING=1")
            assert reloading[1].startswith("MONOTONIC_USEC=")
            systemd.wait_for("READY=1")
            # A loop that hangs feeds no watchdog: here the whole process is stopped.
            broker.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, broker.pid, os.WSTOPPED | os.WNOWAIT)
            systemd.all_so_far()
            assert systemd.all_so_far() == []
            broker.send_signal(signal.SIGCONT)
            systemd.wait_for("WATCHDOG=1")
            broker.terminate()
            systemd.wait_for("STOPPING=1")
            assert broker.wait(60) == 0
        finally:
            broker.kill()


def test_the_watchdog_is_fed_by_the_event_loop_at_half_its_time(tmp_path: Path) -> None:
    with Systemd(tmp_path / "notify") as systemd:
        _check_watchdog(systemd)


def _check_watchdog(systemd: Systemd) -> None:
    loop = VirtualLoop()
    notifier = Notifier({"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "30000000"})
    notifier.start(loop)
    notifier.ready()
    systemd.all_so_far()
    for _ in range(4):
        loop.run_until_complete(_sleep(15))
    assert systemd.all_so_far() == ["WATCHDOG=1"] * 4
    notifier.stopping()
    loop.run_until_complete(_sleep(60))
    assert systemd.all_so_far() == ["STOPPING=1", "STATUS=Stopping"]
    loop.close()


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@pytest.mark.parametrize(
    "environment",
    [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "x"}],
)
def test_without_systemd_nothing_happens(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)
    notifier.reloading()
    notifier.ready()
    notifier.stopping()
