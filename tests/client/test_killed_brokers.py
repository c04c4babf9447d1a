"""Clients that publish and work while the broker is killed and comes back: they do not notice."""

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Thread

import penstock
from penstock.model import NewMessage
from penstock.worker import Worker, WorkerOptions
from tests.server.serving_process import ServingProcess

EACH, PUBLISHERS, KILLS = 40, 3, 3
_PATIENCE_S = 100


class Brokers:
    """One after the other, on the same port and data."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._config = directory / "penstock.toml"
        data = directory / "data"
        self._config.write_text(f'[server]\ndata = "{data}"\nport = {self.port}\n')

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/shop/orders"

    @contextmanager
    def one(self) -> Iterator[None]:
        """Killed at the end."""
        with ServingProcess(self._config) as process:
            process.wait_for("listening")
            yield


class Progress:
    """What was answered so far, and a way to wait for more of it."""

    def __init__(self) -> None:
        self._changed = Condition()
        self.done: list[tuple[str, str]] = []

    def add(self, payload: str, answer: str) -> None:
        with self._changed:
            self.done.append((payload, answer))
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.done) >= count, _PATIENCE_S)


def test_every_publish_is_answered_and_published_once(tmp_path: Path) -> None:
    brokers, progress = Brokers(tmp_path), Progress()

    def publish(name: int) -> None:
        with penstock.open(brokers.url, retry_s=_PATIENCE_S) as queue:
            for number in range(EACH):
                payload = f"{name}-{number}"
                progress.add(payload, queue.enqueue(payload))

    threads = [Thread(target=publish, args=(name,), daemon=True) for name in range(PUBLISHERS)]
    for thread in threads:
        thread.start()
    total = EACH * PUBLISHERS
    for kill in range(1, KILLS + 1):
        with brokers.one():
            progress.wait_for(total * kill // (KILLS + 1))
    with brokers.one():
        for thread in threads:
            thread.join(_PATIENCE_S)
        with penstock.open(brokers.url) as queue:
            there = {message.payload.decode(): message.id for message in queue.browse()}
            assert queue.stats().published == total
    assert there == dict(progress.done)


def test_a_worker_outlives_its_broker_and_handles_every_message(tmp_path: Path) -> None:
    brokers, progress = Brokers(tmp_path), Progress()
    total = 60
    # What the killed broker had leased comes back after a second; then the worker finds no more.
    options = WorkerOptions(concurrency=4, lease_s=1, idle_s=3)
    worker = Worker(
        brokers.url,
        lambda job: progress.add(job.payload.decode(), job.id),
        options=options,
    )
    thread = Thread(target=worker.run, daemon=True)
    with brokers.one():
        with penstock.open(brokers.url) as queue:
            queue.enqueue_batch(
                [NewMessage(payload=f"{n}", max_attempts=100) for n in range(total)]
            )
        thread.start()
        progress.wait_for(total // 3)
    with brokers.one(), penstock.open(brokers.url) as queue:
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()
        assert (queue.stats().ready, queue.stats().dead) == (0, 0)
    handled = Counter(payload for payload, _ in progress.done)
    assert set(handled) == {f"{n}" for n in range(total)}
