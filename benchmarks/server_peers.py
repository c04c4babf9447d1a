"""Start the servers to measure on loopback, in a directory of the run, and stop them at its end."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep

_START_S = 30
_POSTGRES_USER = "postgres"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], port: int, **options: object) -> Iterator[int]:
    """The server's process id, once it listens."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )  # type: ignore[call-overload]
    try:
        _wait_for(port, process)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    until = monotonic() + _START_S
    while monotonic() < until:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not listen on {port}")


@contextmanager
def penstock(directory: str, sync: str) -> Iterator[tuple[int, int]]:
    """Its port and process id."""
    port = free_port()
    command = [sys.executable, "-m", "penstock", "serve", directory, "--port", str(port)]
    environment = {**os.environ, "PENSTOCK_QUEUES_SYNC": sync}
    with running(command, port, env=environment) as pid:
        _wait_until_ready(port)
        yield port, pid


def _wait_until_ready(port: int) -> None:
    """It listens before it has recovered."""
    until = monotonic() + _START_S
    while monotonic() < until:
        connection = HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/readyz")
        status = connection.getresponse().status
        connection.close()
        if status == 200:
            return
        sleep(0.02)
    raise RuntimeError("the broker does not get ready")


@contextmanager
def beanstalkd(directory: str, sync_ms: int) -> Iterator[int]:
    """Binlog on; `sync_ms` 0: a sync for each write."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", directory]
    with running([*command, "-f", str(sync_ms)], port):
        yield port


@contextmanager
def redis(directory: str, sync: str) -> Iterator[int]:
    """Append-only file; `sync` always or everysec."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = ["redis-server", "--port", str(port), "--dir", directory, "--save", ""]
    command += ["--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", sync]
    with running(command, port):
        yield port


@contextmanager
def postgres(directory: str) -> Iterator[int]:
    """As it is set up by default: durable at every commit."""
    binaries = postgres_binaries()
    if binaries is None:
        raise RuntimeError("PostgreSQL is not installed")
    user = _POSTGRES_USER if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        shutil.chown(place, user)
        place.parent.chmod(0o711)  # it refuses to run as root, and has to get there
    port = free_port()
    data = str(place / "pg")
    options: dict[str, object] = {"user": user} if os.geteuid() == 0 else {}
    subprocess.run(
        [str(binaries / "initdb"), "-D", data, "-A", "trust", "-U", _POSTGRES_USER],
        stdout=subprocess.DEVNULL,
        check=True,
        cwd=place,
        **options,  # type: ignore[call-overload]
    )
    command = [str(binaries / "postgres"), "-D", data, "-p", str(port), "-k", data]
    command += ["-h", "127.0.0.1", "-c", "max_connections=100"]
    with running(command, port, cwd=place, **options):
        yield port


def postgres_binaries() -> Path | None:
    """Debian keeps them out of the path, by version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


def is_there(program: str) -> bool:
    return postgres_binaries() is not None if program == "postgres" else bool(shutil.which(program))


def version_of_program(program: str) -> str:
    """What it prints of its version, in short."""
    if not is_there(program):
        return "not installed"
    binaries = postgres_binaries()
    name = str(binaries / program) if program == "postgres" and binaries else program
    flag = "--version" if program in ("postgres", "redis-server") else "-v"
    text = subprocess.run([name, flag], capture_output=True, text=True).stdout.split()
    return next((word.removeprefix("v=") for word in text if any(c.isdigit() for c in word)), "?")


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Memory of a process that is its own; pages of mapped files are the kernel's."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
