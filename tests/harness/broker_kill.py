"""A real server, killed under load from several clients, again and again; and what was answered.

A warm process forks a server for each life, so that a life does not begin with a second of imports.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import penstock
from penstock.errors import NotALedger

_PATIENCE_S = 60
_QUEUES = ("orders", "mail")
_NOTHING_TO_LEASE: dict[str, Any] = {"messages": []}
_CONFIG = """
[server]
data = "{data}"
port = {port}
log_level = "error"

[queues]
segment_bytes = 65536
snapshot_every = 100
min_free_bytes = 0
"""


@dataclass
class Told:
    """What the clients were answered, over all lives."""

    published: dict[str, str] = field(default_factory=dict)  # id -> payload
    asked: set[str] = field(default_factory=set)  # acks that were sent
    acked: set[str] = field(default_factory=set)  # … and answered
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class BrokerKills:
    """One data directory, many lives."""

    def __init__(self, directory: Path, seed: str) -> None:
        self.data = directory / "data"
        self._random = Random(seed)
        self._port = _free_port()
        self._config = directory / "penstock.toml"
        self._config.write_text(_CONFIG.format(data=self.data, port=self._port))
        self.told = Told()
        self._template = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.broker_kill", str(self._config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._template.communicate(timeout=_PATIENCE_S)

    def live(self) -> None:
        """Start a server, let clients work, kill it after so many answers."""
        pid = self._fork()
        enough = threading.Event()
        clients = [
            threading.Thread(target=self._work, args=(work, self._random.random(), enough))
            for work in (_publish, _publish, _consume, _consume)
        ]
        self._until = self.told.answers + self._random.randrange(20, 200)
        for client in clients:
            client.start()
        assert enough.wait(_PATIENCE_S), "the clients were not answered"
        os.kill(pid, signal.SIGKILL)
        self._reap()
        for client in clients:
            client.join(_PATIENCE_S)
            assert not client.is_alive()
        assert not self.told.wrong, self.told.wrong

    def judge(self) -> None:
        """Nothing that was answered is lost, nothing that was acked is back."""
        found: set[str] = set()
        for name in _QUEUES:
            try:
                queue = penstock.open(self.data / "kill" / name, read_only=True)
            except NotALedger:
                continue  # killed before the queue's first publish was answered: it holds nothing
            with queue:
                alive = {message.id: message.payload.decode() for message in queue.browse()}
            found |= alive.keys()
            for id_, payload in alive.items():
                assert self.told.published.get(id_, payload) == payload
        back = self.told.acked & found
        assert not back, f"acked, and there again: {back}"
        lost = self.told.published.keys() - found - self.told.asked
        assert not lost, f"published and answered, and gone: {lost}"

    # -- the server --------------------------------------------------------------------------------

    def _fork(self) -> int:
        assert self._template.stdin is not None
        assert self._template.stdout is not None
        self._template.stdin.write("live\n")
        self._template.stdin.flush()
        return int(self._template.stdout.readline())

    def _reap(self) -> None:
        assert self._template.stdout is not None
        assert self._template.stdout.readline() == "ended\n"

    # -- the clients -------------------------------------------------------------------------------

    def _work(self, work: Any, seed: float, enough: threading.Event) -> None:
        random = Random(seed)
        connection = _connected(self._port, enough)
        try:
            while not enough.is_set():
                work(self, connection, random)
                if self.told.answers >= self._until:
                    enough.set()
        except (OSError, http.client.HTTPException):
            pass  # it was killed
        finally:
            connection.close()

    def ask(self, connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.status >= 500:
            raise OSError(text)
        answer = json.loads(text)
        if answer != _NOTHING_TO_LEASE:  # or a life could end before the first publish is answered
            with self.told.lock:
                self.told.answers += 1
        return answer


def _publish(kills: BrokerKills, connection: http.client.HTTPConnection, random: Random) -> None:
    payloads = [f"{random.random()}" for _ in range(random.choice([1, 5]))]
    path = f"/api/v1/namespaces/kill/queues/{random.choice(_QUEUES)}/messages"
    answer = kills.ask(connection, path, [{"payload": payload} for payload in payloads])
    with kills.told.lock:
        for one, payload in zip(answer["messages"], payloads, strict=True):
            kills.told.published[one["id"]] = json.dumps(payload)


def _consume(kills: BrokerKills, connection: http.client.HTTPConnection, random: Random) -> None:
    with kills.told.lock:
        done = set(kills.told.acked)
    path = f"/api/v1/namespaces/kill/queues/{random.choice(_QUEUES)}/lease"
    leased = kills.ask(connection, path, {"max": 3, "lease_s": 600})["messages"]
    back = {one["id"] for one in leased} & done
    if back:
        kills.told.wrong.append(f"acked, and delivered again: {back}")
    for one in leased:
        with kills.told.lock:
            kills.told.asked.add(one["id"])
        answer = kills.ask(connection, "/api/v1/settle", {"ack": [one["receipt"]]})
        if answer["results"][0]["status"] == "done":
            with kills.told.lock:
                kills.told.acked.add(one["id"])


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _connected(port: int, enough: threading.Event) -> http.client.HTTPConnection:
    """Once the server listens and is ready; it is being started."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            response.read()
            if response.status == 200 or enough.is_set():
                return connection
        except OSError:
            if enough.is_set():
                return connection
        connection.close()
        enough.wait(0.02)


def _template() -> None:
    """For each line: fork a server, tell its pid, and that it ended."""
    from penstock.server.configuration import load_configuration
    from penstock.server.serve import serve

    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            serve(load_configuration(Path(sys.argv[1]), {}))
            os._exit(0)
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    _template()
