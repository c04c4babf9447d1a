"""Start the servers to measure on loopback, in a directory of the run, and stop them at its end."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
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
def running(
    command: list[str], port: int, *, stop: signal.Signals = signal.SIGTERM, **options: object
) -> Iterator[int]:
    """The server's process id, once it listens."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )  # type: ignore[call-overload]
    try:
        _wait_for(port, process)
        yield process.pid
    finally:
        process.send_signal(stop)
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
def penstock(location: str, sync: str) -> Iterator[tuple[int, int]]:
    """Its port and process id. The location is a directory, or the URL of a database."""
    port = free_port()
    store = ["--store", location] if "://" in location else [location]
    command = [sys.executable, "-m", "penstock", "serve", *store, "--port", str(port)]
    environment = {**os.environ, "PENSTOCK_QUEUES_SYNC": sync}
    with running(command, port, env=environment) as pid:
        wait_until_ready(port)
        yield port, pid


def wait_until_ready(port: int) -> None:
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
def postgres(directory: str, *, checksums: bool = False, **settings: str) -> Iterator[int]:
    """As it is set up by default, durable at every commit, but for the settings given."""
    data = _postgres_directory(directory) / "pg"
    words = ["-D", str(data), "-A", "trust", "-U", _POSTGRES_USER]
    _run_postgres("initdb", *words, *(["--data-checksums"] if checksums else []), cwd=data.parent)
    with _postgres_running(data, settings) as port:
        yield port


@contextmanager
def postgres_standby(directory: str, primary: int) -> Iterator[None]:
    """A standby of the server at a port."""
    data = _postgres_directory(directory) / "standby"
    address = ["-h", "127.0.0.1", "-p", str(primary), "-U", _POSTGRES_USER]
    copy = ["-R", "-X", "stream", "-c", "fast", "-D", str(data)]
    _run_postgres("pg_basebackup", *address, *copy, cwd=data.parent)
    with _postgres_running(data, {}):
        yield


def postgres_url(port: int) -> str:
    return f"postgresql://{_POSTGRES_USER}@127.0.0.1:{port}/postgres"


def _postgres_directory(directory: str) -> Path:
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        shutil.chown(place, _POSTGRES_USER)
        place.parent.chmod(0o711)  # it refuses to run as root, and has to get there
    return place


@contextmanager
def _postgres_running(data: Path, settings: Mapping[str, str]) -> Iterator[int]:
    port = free_port()
    words = ["-D", str(data), "-p", str(port), "-k", "", "-h", "127.0.0.1"]
    chosen = {"max_connections": "200", **settings}
    words += [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
    command = [_postgres_program("postgres"), *words]
    with running(command, port, stop=signal.SIGINT, cwd=data.parent, **_postgres_user()):
        until = monotonic() + _START_S
        ready = [_postgres_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.run(ready).returncode != 0:
            if monotonic() > until:
                raise RuntimeError("PostgreSQL does not get ready")
            sleep(0.05)
        yield port


def _run_postgres(program: str, *words: str, cwd: Path) -> None:
    command = [_postgres_program(program), *words]
    subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        check=True,
        cwd=cwd,
        **_postgres_user(),  # type: ignore[call-overload]
    )


def _postgres_program(name: str) -> str:
    binaries = postgres_binaries()
    if binaries is None:
        raise RuntimeError("PostgreSQL is not installed")
    return str(binaries / name)


def _postgres_user() -> dict[str, object]:
    return {"user": _POSTGRES_USER} if os.geteuid() == 0 else {}


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
