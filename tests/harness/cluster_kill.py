"""Several brokers on one PostgreSQL, under load from clients, while processes are killed.

The clients talk to any broker, go to another one if theirs is gone, and note what was answered. At
the end, the queues are compared with these notes.
"""

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.errors import NoSuchQueue
from penstock.names import QueueName
from penstock.operations import Browse
from tests.conformance.conftest import Heard
from tests.harness.postgres_server import free_port

_PATIENCE_S = 60.0
_QUEUES = ("orders", "mail", "jobs", "logs")
_CONFIG = """
[server]
data = "{url}"
port = {port}
log_level = "{log_level}"

[broker]
cache_directory = "{cache}"

[queues]
segment_bytes = 65536
snapshot_every = 100
min_free_bytes = 0
lease_s = {lease_s}
"""


@dataclass
class Told:
    """What the clients were answered."""

    published: dict[str, str] = field(default_factory=dict)  # id -> payload
    asked: set[str] = field(default_factory=set)  # acks that were sent
    acked: set[str] = field(default_factory=set)  # … and answered
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class BrokerProcess:
    """A process that serves, and is started again after it was killed."""

    def __init__(
        self,
        directory: Path,
        url: str,
        number: int,
        *,
        log_level: str = "error",
        lease_s: float = 30.0,
    ) -> None:
        self.number = number
        self.port = free_port()
        cache = directory / f"cache-{number}"
        cache.mkdir()
        self._config = directory / f"broker-{number}.toml"
        self._config.write_text(
            _CONFIG.format(
                url=url, port=self.port, cache=cache, log_level=log_level, lease_s=lease_s
            )
        )
        self._log = directory / f"broker-{number}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "serve", "--config", str(self._config)],
                stdout=log,
                stderr=log,
            )

    def stop(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_PATIENCE_S)
            self._process = None

    def signal(self, number: int) -> None:
        """Send a signal that it survives."""
        assert self._process is not None
        self._process.send_signal(number)

    def is_ready(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"the broker ended: {self._log.read_text()[-3000:]}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def wait_ready(self) -> None:
        pause = threading.Event()
        for _ in range(int(_PATIENCE_S / 0.05)):
            if self.is_ready():
                return
            pause.wait(0.05)
        raise AssertionError("the broker did not become ready")


class ClusterUnderLoad:
    """Brokers and clients, from entering the context until `finish` or leaving it."""

    def __init__(self, directory: Path, url: str, *, brokers: int = 2, seed: str = "") -> None:
        self._url = url
        self.random = Random(seed)
        self.brokers = [BrokerProcess(directory, url, number) for number in range(brokers)]
        self.told = Told()
        self._changed = threading.Condition()
        self._is_over = threading.Event()
        self._clients = [
            threading.Thread(target=self._work, args=(work, self.random.random()), daemon=True)
            for work in (_publish, _publish, _consume, _consume)
        ]

    def __enter__(self) -> "ClusterUnderLoad":
        try:
            for broker in self.brokers:
                broker.start()
            for broker in self.brokers:
                self.wait_ready(broker)
        except BaseException:
            self.__exit__()
            raise
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end_clients()
        for broker in self.brokers:
            broker.stop(signal.SIGKILL)

    def wait_ready(self, broker: BrokerProcess) -> None:
        broker.wait_ready()

    def wait_answers(self, count: int, *, may_lose: bool = False) -> None:
        """Return when this many more publishes and acks were answered.

        Assert that no acked message was delivered again, unless the run is meant to lose.
        """
        with self._changed:
            wanted = self._answers + count
            assert self._changed.wait_for(lambda: self._answers >= wanted, _PATIENCE_S), (
                f"the clients are not answered: {self.told.errors[-5:]}"
            )
        assert may_lose or not self.told.wrong, self.told.wrong

    @property
    def _answers(self) -> int:
        return len(self.told.published) + len(self.told.acked)

    def finish(self) -> None:
        """End the clients, and stop the brokers in good order."""
        self._end_clients()
        for broker in self.brokers:
            broker.stop(signal.SIGTERM)

    def _end_clients(self) -> None:
        self._is_over.set()
        for client in self._clients:
            if client.is_alive():
                client.join(_PATIENCE_S)

    # -- clients -----------------------------------------------------------------------------------

    def _work(self, work: Any, seed: float) -> None:
        random = Random(seed)
        connection: http.client.HTTPConnection | None = None
        while not self._is_over.is_set():
            try:
                if connection is None:
                    port = random.choice(self.brokers).port
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
                work(self, connection, random)
            except (OSError, http.client.HTTPException) as error:
                self.told.errors.append(repr(error)[:300])
                if connection is not None:
                    connection.close()
                connection = None
                self._is_over.wait(0.02)
        if connection is not None:
            connection.close()

    def ask(self, connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.status >= 400:
            raise OSError(text)
        return json.loads(text)

    def note(self, change: Any) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    # -- the end -----------------------------------------------------------------------------------

    def judge(self) -> None:
        """Assert that nothing answered is lost, and nothing acked is there again."""
        lost, back = self.losses()
        assert not back, f"acked, and there again: {back}"
        assert not lost, f"published and answered, and gone: {lost}"
        assert not self.told.wrong, self.told.wrong

    def losses(self) -> tuple[set[str], set[str]]:
        """Return what was published and is gone, and what was acked and is back."""
        found = asyncio.run(self._unsettled())
        back = self.told.acked & found.keys()
        lost = self.told.published.keys() - found.keys() - self.told.asked
        for id_, payload in found.items():
            assert self.told.published.get(id_, payload) == payload
        return lost, back

    async def _unsettled(self) -> dict[str, str]:
        store = PostgresStore(self._url, ClusterOptions())
        await store.open(Heard())
        found: dict[str, str] = {}
        try:
            for name in _QUEUES:
                after = 0
                while True:
                    browse = Browse(after_seq=after, limit=1000, budget=1_000_000)
                    try:
                        page = await store.run(QueueName("kill", name), browse)
                    except NoSuchQueue:
                        break
                    for row in page.rows:
                        found[row.message.id] = row.message.payload.decode()
                    after = page.next_seq
                    if not after:
                        break
        finally:
            await store.close()
        return found


def _publish(cluster: ClusterUnderLoad, connection: Any, random: Random) -> None:
    payloads = [f"{random.random()}" for _ in range(random.choice([1, 5]))]
    path = f"/api/v1/namespaces/kill/queues/{random.choice(_QUEUES)}/messages"
    answer = cluster.ask(connection, path, [{"payload": payload} for payload in payloads])
    ids = [one["id"] for one in answer["messages"]]
    news = {id_: json.dumps(text) for id_, text in zip(ids, payloads, strict=True)}
    cluster.note(lambda: cluster.told.published.update(news))


def _consume(cluster: ClusterUnderLoad, connection: Any, random: Random) -> None:
    done = set(cluster.told.acked)
    path = f"/api/v1/namespaces/kill/queues/{random.choice(_QUEUES)}/lease"
    body = {"max": 3, "lease_s": 600, "wait_s": random.choice([0, 0, 0.2])}
    leased = cluster.ask(connection, path, body)["messages"]
    back = {one["id"] for one in leased} & done
    if back:
        cluster.told.wrong.append(f"acked, and delivered again: {back}")
    for one in leased:
        cluster.told.asked.add(one["id"])
        answer = cluster.ask(connection, "/api/v1/settle", {"ack": [one["receipt"]]})
        if answer["results"][0]["status"] == "done":
            cluster.note(lambda id_=one["id"]: cluster.told.acked.add(id_))


def kill_hard(broker: BrokerProcess) -> None:
    broker.stop(signal.SIGKILL)
