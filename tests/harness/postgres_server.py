"""PostgreSQL servers for tests: each in a directory of its own, run by a user that is not root."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psycopg

from penstock.broker.postgres.database import Database, Session

_DEADLINE_S = 60
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "fsync": "off",  # processes are killed, power is not cut
    "log_min_messages": "warning",
    "autovacuum_naptime": "10s",
}


def binaries() -> Path:
    """Return the directory of the server's programs: Debian does not put them in PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    program = shutil.which("initdb")
    if program is None:
        raise AssertionError("there is no PostgreSQL server: run scripts/setup-machine test")
    return Path(program).parent


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _user() -> str | None:
    """Return the user that runs the server: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


class PostgresServer:
    """One server, from `start` to `stop`. The user is `penstock`, its password `secret`."""

    def __init__(self, **settings: str) -> None:
        self._user = _user()
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        if self._user is not None:
            shutil.chown(self.directory, self._user)
        self.data = self.directory / "data"
        self.port = free_port()
        self.settings = {**_SETTINGS, "unix_socket_directories": str(self.directory), **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://penstock:secret@127.0.0.1:{self.port}/postgres"

    def create(self) -> "PostgresServer":
        """Make a new database."""
        password = self.directory / "password"
        password.write_text("secret")
        self._own(password)
        self.run(
            "initdb", "-D", self.data, "-U", "penstock", "--pwfile", password, "-A",
            "scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C", "--data-checksums",
        )  # fmt: skip
        with (self.data / "pg_hba.conf").open("a") as access:
            access.write("host replication all 127.0.0.1/32 scram-sha-256\n")
        return self

    def copy_of(self, primary: "PostgresServer", name: str) -> "PostgresServer":
        """Make a standby of another server, which is to be running."""
        passwords = self.directory / "passwords"
        passwords.write_text("*:*:*:*:secret\n")
        passwords.chmod(0o600)
        self._own(passwords)
        shutil.rmtree(self.data, ignore_errors=True)
        self.run(
            "pg_basebackup", "-R", "-D", self.data, "-X", "stream", "-c", "fast", "--no-sync",
            "-d", f"host=127.0.0.1 port={primary.port} user=penstock application_name={name} "
            f"passfile={passwords}",
        )  # fmt: skip
        return self

    def stop_following(self) -> None:
        """Have a standby receive nothing more from its primary."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("alter system set primary_conninfo = ''")
            connection.execute("select pg_reload_conf()")

    def start(self) -> "PostgresServer":
        """Start it, and return when it takes connections."""
        options = [f"-c{name}={value}" for name, value in self.settings.items()]
        log = (self.directory / "log").open("ab")
        self._process = subprocess.Popen(
            [str(binaries() / "postgres"), "-D", str(self.data), "-p", str(self.port), *options],
            stdout=log,
            stderr=log,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
            cwd=self.directory,
            start_new_session=True,
        )
        log.close()
        self.run("pg_isready", "-q", "-h", "127.0.0.1", "-p", self.port, "-t", "1", tries=600)
        return self

    def kill(self) -> None:
        """Kill the server and all its processes at once, as a crash of the machine does."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in [pid, *map(int, children)]:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        self._process.wait(_DEADLINE_S)
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_DEADLINE_S)
            self._process = None

    def promote(self) -> None:
        """Make a standby the primary."""
        self.run("pg_ctl", "promote", "-D", self.data, "-w")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, program: str, *words: object, tries: int = 1) -> None:
        for left in reversed(range(tries)):
            done = subprocess.run(
                [str(binaries() / program), *map(str, words)],
                capture_output=True,
                text=True,
                timeout=_DEADLINE_S,
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
                cwd=self.directory,
                check=False,
            )
            if done.returncode == 0:
                return
            if not left or (self._process is not None and self._process.poll() is not None):
                log = self.directory / "log"
                said = log.read_text() if log.exists() else ""
                raise AssertionError(f"{program} failed: {done.stderr}\n{said[-2000:]}")

    def _own(self, path: Path) -> None:
        if self._user is not None:
            shutil.chown(path, self._user)


class PostgresPair:
    """A primary and a synchronous standby. They change places in each failover."""

    def __init__(self, **settings: str) -> None:
        settings = {"synchronous_standby_names": "*", "wal_keep_size": "256MB", **settings}
        self.primary = PostgresServer(**settings)
        self.standby = PostgresServer(**settings)
        ports = sorted([self.primary.port, self.standby.port])
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.url = f"postgresql://penstock:secret@{hosts}/postgres"

    def start(self) -> "PostgresPair":
        self.primary.create().start()
        self.standby.copy_of(self.primary, "standby").start()
        return self

    def fail_over(self) -> None:
        """Kill the primary, promote the standby, and make a new standby of the killed one."""
        self.primary.kill()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary
        self.standby.copy_of(self.primary, "standby").start()

    def remove(self) -> None:
        self.standby.remove()
        self.primary.remove()


def new_queue(database: Database, *, token: int = 1) -> int:
    """Add the row of a queue with no files, and return its number."""

    def add(session: Session) -> int:
        session.execute("insert into namespace values ('n', 0, '{}', 0, 0) on conflict do nothing")
        row = session.one(
            "insert into queue (namespace, name, identity, is_made, token) select 'n', "
            "'q' || count(*), count(*), true, %s from queue returning id",
            (token,),
        )
        number: int = row[0]
        return number

    return database.transact(add)
