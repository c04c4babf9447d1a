"""What `penstock bench` measures in a directory: limits of the machine, and a queue beside them.

Each row works for about half a second. A share compares a rate with limits that were measured in
the same run; several limits add up, as one call meets them one after the other. The rate of
fdatasync is measured before and after the durable rows, because other programs use the disk too.
"""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import penstock
from penstock.cli.started_broker import started_broker
from penstock.clock import SystemClock
from penstock.codec import ENTRY_OVERHEAD_BYTES, IMPLEMENTATION, crc32c
from penstock.errors import PenstockError
from penstock.ledger import Cursor, Ledger
from penstock.ledger.settings import SyncPolicy
from penstock.model import NS, NewMessage
from penstock.queue.facade import AnyQueue

ROW_S = 0.5
BATCH = 100
THREADS = 8
UNSTEADY = 1.5
MIB = 1 << 20
MOST_BYTES = 256 * MIB  # written by one row
DURABLE_BATCH = {"fdatasync": 1 / BATCH, "disk": 1.0}
_ECHO = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer = server.accept()[0]
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(65536):
    peer.sendall(data)
"""


Needs = Mapping[str, float]  # by limit: calls for each message, or 1 if it counts bytes


class Limit(NamedTuple):
    """What the machine can do."""

    name: str
    per_s: float
    unit: str  # of `per_s`: calls, bytes


class Row(NamedTuple):
    """What a queue does, and the share of the limits that it reaches."""

    name: str
    messages_per_s: float
    limit: str  # names of the limits, with +; "" if none applies
    share: float | None


class Report(NamedTuple):
    """One run."""

    machine: str
    limits: list[Limit]
    rows: list[Row]
    notes: list[str]  # what was left out, or disturbed


def measure(directory: Path, size: int, on_row: Callable[[str], None], row_s: float) -> Report:
    """Measure in a temporary directory below this one."""
    with TemporaryDirectory(dir=directory, prefix="penstock-bench-") as place:
        run = _Run(Path(place), size, on_row, row_s)
        run.limits()
        run.embedded()
        run.broker()
        run.measure_fdatasync_again()
    return Report(_machine(), list(run.found.values()), run.rows(), run.notes)


def _machine() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.python_implementation()} "
        f"{platform.python_version()}, Penstock {penstock.__version__} ({IMPLEMENTATION})"
    )


class _Run:
    def __init__(self, place: Path, size: int, on_row: Callable[[str], None], row_s: float) -> None:
        self._place, self._on_row, self._row_s = place, on_row, row_s
        self._payload = os.urandom(size)
        self._entry_bytes = size + ENTRY_OVERHEAD_BYTES
        self.found: dict[str, Limit] = {}
        self._rates: list[tuple[str, float, Needs]] = []
        self.notes: list[str] = []

    # -- the machine -------------------------------------------------------------------------------

    def limits(self) -> None:
        """Measure what each call of the operating system costs."""
        entry = bytes(self._entry_bytes)
        most = MOST_BYTES // len(entry)
        with self._file() as fd:
            self._limit("write", lambda: os.write(fd, entry), 1, "calls", most)
        self._limit_fdatasync()
        block = os.urandom(MIB)
        with self._file() as fd:

            def write_block() -> None:
                os.write(fd, block)
                os.fdatasync(fd)

            self._limit("disk", write_block, MIB, "bytes", MOST_BYTES // MIB)
        self._limit("checksum", lambda: crc32c(block), MIB, "bytes")
        with _echo() as peer:
            request = bytes(300 + len(self._payload))  # as large as a publish over HTTP

            def round_trip() -> None:
                peer.sendall(request)
                left = len(request)
                while left:
                    left -= len(peer.recv(left))

            self._limit("loopback", round_trip, 1, "calls")

    def _limit_fdatasync(self) -> None:
        entry = bytes(self._entry_bytes)
        with self._file() as fd:

            def durable() -> None:
                os.write(fd, entry)
                os.fdatasync(fd)

            self._limit("fdatasync", durable, 1, "calls", MOST_BYTES // len(entry))

    def measure_fdatasync_again(self) -> None:
        """Replace the rate by the mean of two, and note it if they differ much."""
        first = self.found["fdatasync"]
        self._limit_fdatasync()
        slow, fast = sorted((first.per_s, self.found["fdatasync"].per_s))
        self.found["fdatasync"] = first._replace(per_s=(slow + fast) / 2)
        if fast > UNSTEADY * slow:
            self.notes.append(
                f"the rate of fdatasync was between {slow:,.0f} and {fast:,.0f} in this run: "
                f"shares of it are rough"
            )

    # -- a queue in this process -------------------------------------------------------------------

    def embedded(self) -> None:
        """Measure a queue in a directory, without and with a sync before each answer."""
        with self._queue("never") as queue:
            self._publish(queue, "publish", {"write": 1})
            self._consume(queue, "lease and ack", {"write": 2})
            self._publish_batches(queue, "publish, batches", {})
            self._consume_batches(queue, "lease and ack, batches", {})
        with self._queue("always") as queue:
            self._publish(queue, "publish, durable", {"fdatasync": 1})
            self._publish(queue, f"publish, durable, {THREADS} threads", {"fdatasync": 1}, THREADS)
            self._publish_batches(queue, "publish, durable, batches", DURABLE_BATCH)
        self._scan()

    def broker(self) -> None:
        """Measure a broker over HTTP, which syncs before each answer."""
        try:
            with (
                started_broker(str(self._place / "broker"), settings={}) as url,
                penstock.open(url, queue="default/bench") as queue,
            ):
                self._publish(queue, "broker: publish", {"fdatasync": 1, "loopback": 1})
                self._publish_batches(queue, "broker: publish, batches", DURABLE_BATCH)
                self._consume_batches(queue, "broker: lease and ack, batches", {})
        except PenstockError as error:
            self.notes.append(f"broker: {error}")

    # -- rows --------------------------------------------------------------------------------------

    def _publish(self, queue: AnyQueue, name: str, needs: Needs, threads: int = 1) -> None:
        self._row(name, lambda: queue.enqueue(self._payload), 1, needs, threads)

    def _publish_batches(self, queue: AnyQueue, name: str, needs: Needs) -> None:
        batch = [NewMessage(payload=self._payload)] * BATCH
        self._row(f"{name} of {BATCH}", lambda: queue.publish(batch), BATCH, needs)

    def _consume(self, queue: AnyQueue, name: str, needs: Needs) -> None:
        self._row(name, lambda: queue.ack(queue.lease()), 1, needs)

    def _consume_batches(self, queue: AnyQueue, name: str, needs: Needs) -> None:
        left = queue.stats().ready // BATCH  # whole batches only, so that each call has work
        self._row(
            f"{name} of {BATCH}", lambda: queue.ack(queue.lease(BATCH)), BATCH, needs, 1, left
        )

    def _scan(self) -> None:
        with Ledger.open(str(self._place / "never"), read_only=True) as ledger:
            cursor = Cursor(ledger.messages, 1)
            began_ns, count = SystemClock.monotonic_ns(), 0
            while entries := cursor.read(1000):
                count += len(entries)
            seconds = (SystemClock.monotonic_ns() - began_ns) / NS
        self._add("scan, every checksum", count / seconds, {"checksum": 1})

    def _row(
        self,
        name: str,
        work: Callable[[], object],
        messages: int,
        needs: Needs,
        threads: int = 1,
        most: int | None = None,
    ) -> None:
        self._on_row(name)
        most = MOST_BYTES // self._entry_bytes // messages if most is None else most
        if not most:
            self.notes.append(f"{name}: too few messages were published before")
            return
        self._add(name, self._rate(work, most, threads) * messages, needs)

    def _add(self, name: str, per_s: float, needs: Needs) -> None:
        self._rates.append((name, per_s, needs))

    def rows(self) -> list[Row]:
        """Return the rates, compared with the limits."""
        found = []
        for name, per_s, needs in self._rates:
            needed_s = sum(
                count * self._seconds_per_message(self.found[limit])
                for limit, count in needs.items()
            )
            share = per_s * needed_s if needs else None
            found.append(Row(name, per_s, " + ".join(needs), share))
        return found

    def _seconds_per_message(self, limit: Limit) -> float:
        return (self._entry_bytes if limit.unit == "bytes" else 1) / limit.per_s

    def _limit(
        self, name: str, work: Callable[[], object], amount: int, unit: str, most: int = 1 << 60
    ) -> None:
        self._on_row(name)
        self.found[name] = Limit(name, self._rate(work, most) * amount, unit)

    def _rate(self, work: Callable[[], object], most: int, threads: int = 1) -> float:
        """Return the calls a second, made for a while or up to a number."""
        began_ns = SystemClock.monotonic_ns()
        end_ns = began_ns + int(self._row_s * NS)

        def run(_: int) -> int:
            count = 0
            while (SystemClock.monotonic_ns() < end_ns and count < most // threads) or not count:
                work()
                count += 1
            return count

        if threads == 1:
            calls = run(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                calls = sum(pool.map(run, range(threads)))
        return calls * NS / (SystemClock.monotonic_ns() - began_ns)

    # -- places ------------------------------------------------------------------------------------

    @contextmanager
    def _file(self) -> Iterator[int]:
        path = self._place / "file"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)
            path.unlink()

    def _queue(self, sync: SyncPolicy) -> penstock.Queue:
        return penstock.open(self._place / sync, sync=sync)


@contextmanager
def _echo() -> Iterator[socket.socket]:
    """Connect to a process that sends back what it gets."""
    with subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield peer
        finally:
            process.kill()
