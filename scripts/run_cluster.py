"""Two brokers on one PostgreSQL with a synchronous standby, on this machine: `make run-cluster`.

A client publishes through the first broker; another consumes through the second. Kill the primary,
or a broker, and watch: nothing that was answered is lost. All data is removed at the end.

Here, this script promotes the standby. In production that is the work of Patroni; see deploy/.
"""

import argparse
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import penstock  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402
from tests.harness.postgres_server import PostgresPair, free_port  # noqa: E402

QUEUE = "demo/orders"
START_S = 60
SETTINGS = {"fsync": "on", "max_wal_size": "1GB", "wal_keep_size": "1GB"}
HELP = "p: kill the primary   1, 2: kill a broker   s: state of the database   q: quit"


class Broker:
    """A process that serves; it is started again after it was killed."""

    def __init__(self, database: str, port: int, directory: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        cache = directory / f"cache-{port}"
        cache.mkdir()
        self._command = [sys.executable, "-m", "penstock", "serve", "--store", database]
        self._command += ["--port", str(port)]
        self._environment = {**os.environ, "PENSTOCK_BROKER_CACHE_DIRECTORY": str(cache)}
        self._log = directory / f"broker-{port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log
            )
        until = monotonic() + START_S
        while monotonic() < until:
            if self._process.poll() is not None:
                break
            try:
                self.readiness()
                return
            except OSError:
                sleep(0.1)
        raise SystemExit(f"the broker at {self.url} did not start:\n{self._log.read_text()}")

    def readiness(self) -> dict[str, object]:
        with urlopen(f"{self.url}/readyz", timeout=5) as answer:
            found: dict[str, object] = json.loads(answer.read())
            return found

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


class Clients:
    """A publisher and a consumer, each in a thread. They retry while a call is not answered."""

    def __init__(self, publish_at: Broker, consume_at: Broker) -> None:
        self._urls = publish_at.url, consume_at.url
        self.published: set[int] = set()  # answered
        self.received: list[int] = []
        self._is_over = threading.Event()
        self._is_published = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._publish, self._consume)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop publishing, and wait until everything was consumed."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(90)

    def _publish(self) -> None:
        with penstock.open(f"{self._urls[0]}/{QUEUE}", retry_s=60) as queue:
            number = 0
            while not self._is_over.is_set():
                number += 1
                # The dedup id makes a retry safe, also if the first attempt was carried out.
                queue.enqueue(str(number), dedup_id=str(number))
                self.published.add(number)
                sleep(0.005)
        self._is_published.set()

    def _consume(self) -> None:
        with penstock.open(f"{self._urls[1]}/{QUEUE}", retry_s=60) as queue:
            while not (self._is_published.is_set() and self.published <= set(self.received)):
                try:
                    for leased in queue.lease(50, wait_s=1):
                        self.received.append(int(leased.payload))
                        queue.ack(leased.receipt)
                except PenstockError as error:
                    print(f"  consumer: {error}")

    def line(self) -> str:
        twice = len(self.received) - len(set(self.received))
        waiting = len(self.published - set(self.received))
        return (
            f"published {len(self.published):6}   consumed {len(set(self.received)):6}   "
            f"waiting {waiting:4}   delivered twice {twice}"
        )


def fail_over(pair: PostgresPair) -> None:
    print(f"  kill -9 of the primary (port {pair.primary.port}); the standby is promoted")
    pair.fail_over()
    print(f"  the primary is at port {pair.primary.port}; the old one is its standby now")


def restart(broker: Broker) -> None:
    print(f"  kill -9 of the broker at {broker.url}; it is started again in three seconds")
    broker.kill()
    sleep(3)
    broker.start()


def watch(pair: PostgresPair, brokers: list[Broker], clients: Clients) -> None:
    """Print a line a second, and obey the keyboard, until q or the end of the input."""
    print(f"\n{HELP} (then Enter)\n")
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], 1)
        typed = os.read(sys.stdin.fileno(), 1024) if readable else b"\n"
        if not typed:
            return
        for word in typed.decode(errors="replace").lower().split():
            if word == "q":
                return
            obey(word, pair, brokers)
        print(clients.line())


def obey(word: str, pair: PostgresPair, brokers: list[Broker]) -> None:
    if word == "p":
        fail_over(pair)
    elif word in ("1", "2"):
        restart(brokers[int(word) - 1])
    elif word == "s":
        try:
            print(json.dumps(brokers[1].readiness()["database"], indent=1))
        except OSError as error:
            print(f"  not ready: {error}")
    else:
        print(HELP)


def demonstrate(pair: PostgresPair, brokers: list[Broker], clients: Clients, count: int) -> None:
    """Kill the primary some times, and a broker once, without a person."""
    for _ in range(count):
        for _ in range(3):
            sleep(1)
            print(clients.line())
        fail_over(pair)
    restart(brokers[0])
    sleep(2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", type=int, nargs=2, default=(8080, 8081), help="0: any free ones")
    parser.add_argument(
        "--failovers", type=int, default=0, help="kill the primary so often, and end by itself"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if not arguments.failovers:  # a person watches: say why a call waits
        logging.basicConfig(format="  %(message)s")
    directory = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        pair = PostgresPair(**SETTINGS)
        stack.callback(pair.remove)
        print("starting PostgreSQL: a primary and a synchronous standby …")
        pair.start()
        print(f"  ports {pair.primary.port} and {pair.standby.port}: {pair.url}")
        brokers = [Broker(pair.url, port or free_port(), directory) for port in arguments.ports]
        for broker in brokers:
            stack.callback(broker.stop)
            broker.start()
            print(f"  broker at {broker.url}")
        clients = Clients(*brokers)
        clients.start()
        if arguments.failovers:
            demonstrate(pair, brokers, clients, arguments.failovers)
        else:
            watch(pair, brokers, clients)
        print("stopping: the rest is consumed …")
        clients.stop()
        print(clients.line())
        lost = clients.published - set(clients.received)
        print(f"lost: {len(lost)}")
        return 1 if lost else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(1)
