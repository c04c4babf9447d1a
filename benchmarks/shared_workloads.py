"""Workloads of the benchmark of shared directories. Each runs in its own process.

One thread publishes messages of 100 bytes, one call after the other; or leases and acks each. The
queues sync at an interval. CPU time is that of this process and of the one that serves it.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from measure import Figures, run_workload
from server_peers import penstock as broker

import penstock

PAYLOAD = "x" * 100
WARM = 50
_HOLD = """
import penstock, sys
with penstock.open(sys.argv[1], shared=True) as queue:
    queue.enqueue("first")
    print("holding", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _holder(path: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds a directory and does nothing else."""
    command = [sys.executable, "-c", _HOLD, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holding\n"
        try:
            yield process
        finally:
            process.communicate()


def _timed(count: int, work: Callable[[], object], server: int | None = None) -> Figures:
    for _ in range(WARM):
        work()
    start, cpu_s = perf_counter(), _cpu_s(server)
    for _ in range(count):
        work()
    took_s = perf_counter() - start
    return {"rate": count / took_s, "cpu_us": (_cpu_s(server) - cpu_s) / count * 1e6}


def _cpu_s(server: int | None) -> float:
    """Return the CPU time of this process and of a server."""
    times = os.times()
    own_s = times.user + times.system
    if server is None:
        return own_s
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    return own_s + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _call_of(queue: penstock.AnyQueue, does: str, count: int) -> Callable[[], object]:
    if does == "publish":
        return lambda: queue.enqueue(PAYLOAD)
    for start in range(0, count + WARM, 1000):
        queue.enqueue_batch([PAYLOAD] * min(1000, count + WARM - start))

    def consume() -> None:
        (job,) = queue.lease()
        queue.ack(job)

    return consume


def embedded(directory: str, count: int, does: str) -> Figures:
    with penstock.open(Path(directory) / "queue") as queue:
        return _timed(count, _call_of(queue, does, count))


def holder(directory: str, count: int, does: str) -> Figures:
    with penstock.open(Path(directory) / "queue", shared=True) as queue:
        return _timed(count, _call_of(queue, does, count))


def client(directory: str, count: int, does: str) -> Figures:
    path = f"{directory}/queue"
    with _holder(path) as process, penstock.open(path, shared=True) as queue:
        return _timed(count, _call_of(queue, does, count), process.pid)


def http_client(directory: str, count: int, does: str) -> Figures:
    with (
        broker(directory, "interval") as (port, process),
        penstock.connect(f"http://127.0.0.1:{port}/bench/queue") as queue,
    ):
        return _timed(count, _call_of(queue, does, count), process)


def http_by_hand(directory: str, count: int, does: str) -> Figures:
    """Requests of `http.client`, without dedup ids and retries."""
    path = "/api/v1/namespaces/bench/queues/queue"
    with broker(directory, "interval") as (port, process):
        connection = http.client.HTTPConnection("127.0.0.1", port)

        def ask(path: str, body: object) -> object:
            data = json.dumps(body)
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())

        publish = {"payload": PAYLOAD}
        if does == "publish":
            return _timed(count, lambda: ask(f"{path}/messages", publish), process)
        for start in range(0, count + WARM, 1000):
            ask(f"{path}/messages", [publish] * min(1000, count + WARM - start))

        def consume() -> None:
            answer: dict[str, list[dict[str, str]]] = ask(f"{path}/lease", {"max": 1})  # type: ignore[assignment]
            ask("/api/v1/settle", {"ack": [answer["messages"][0]["receipt"]]})

        return _timed(count, consume, process)


def takeover(directory: str, count: int) -> Figures:
    """From the kill of the holder to the next answer, the median."""
    path, took_s = f"{directory}/queue", []
    for _ in range(count):
        with _holder(path) as process, penstock.open(path, shared=True) as queue:
            queue.enqueue(PAYLOAD)
            start = perf_counter()
            process.send_signal(signal.SIGKILL)
            queue.enqueue(PAYLOAD)
            took_s.append(perf_counter() - start)
    return {"milliseconds": sorted(took_s)[len(took_s) // 2] * 1000}


if __name__ == "__main__":
    run_workload(
        {
            "embedded": embedded,
            "holder": holder,
            "client": client,
            "http_client": http_client,
            "http_by_hand": http_by_hand,
            "takeover": takeover,
        }
    )
