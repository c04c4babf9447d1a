"""Hostile requests against a server: `python benchmarks/hostile.py`.

Each case starts a server with default settings, polls `/livez`, and reports the maximum of each:

- RSS: resident memory.
- loop: processor time of the event loop's thread between two heartbeats in the loop. No single
  callback can take longer. Target: at most 100 ms.
- process: processor time of all threads of the server between two heartbeats. It includes threads
  that hold the interpreter lock.
- gap: wall time between two heartbeats. livez: response time of `/livez`. On a busy machine, most
  of both is time that other processes used.
"""

import argparse
import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from loop_probe import LAYOUT
from measure import machine_facts

import penstock
from penstock.ledger.files import OsFiles

MIB = 1 << 20
QUEUE = "/api/v1/namespaces/default/queues/q"
WAIT_S = 120
PING_EVERY_S = 0.005
MOST_LOOP_MS = 100
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
COLUMNS = ("RSS MiB", "loop ms", "process ms", "gap ms", "livez ms", "took s", "others %")


class Victim:
    """A server in a process of its own, and what is seen of it."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self._found = folder.parent / "probe"
        self._found.write_bytes(bytes(LAYOUT.size))
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(HERE / "loop_probe.py"),
                str(self._found),
                "serve",
                str(folder),
                "--port",
                str(self.port),
            ],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._wait_until_ready()
        self._livez_s = 0.0
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def start_watching(self) -> None:
        """Forget what it took to get here."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")  # resets VmHWM
        with self._found.open("r+b") as file:  # in place: the server has it mapped
            file.write(bytes(LAYOUT.size))
        self._began, self._cpu_began_s, self._busy_began_s = (
            time.monotonic(),
            self._cpu_s(),
            _busy_s(),
        )
        self._watching.start()

    def stop(self) -> dict[str, float]:
        """Stop the server. Return the figures, by column."""
        took_s = time.monotonic() - self._began
        self._over.set()
        self._watching.join(WAIT_S)
        others_s = (_busy_s() - self._busy_began_s) - (self._cpu_s() - self._cpu_began_s)
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak_kib = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM"))
        gap_s, loop_s, process_s = LAYOUT.unpack(self._found.read_bytes())
        self._process.kill()
        self._process.wait()
        others = 100 * max(others_s, 0.0) / (took_s * (os.cpu_count() or 1))
        found = (peak_kib / 1024, loop_s * 1000, process_s * 1000, gap_s * 1000)
        figures = (*found, self._livez_s * 1000, took_s, others)
        return {name: round(value, 1) for name, value in zip(COLUMNS, figures, strict=True)}

    def call(self, method: str, path: str, body: bytes = b"", kind: str = "json") -> bytes:
        """A request of a client that behaves."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            headers = {"content-type": f"application/{kind}"} if body else {}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.read()
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def _cpu_s(self) -> float:
        """Processor time of all its threads so far."""
        total_ns = 0
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            try:
                total_ns += int((task / "schedstat").read_text().split()[0])
            except OSError:
                continue  # it has ended
        return total_ns / 1e9

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            try:
                if b'"ready"' in self.call("GET", "/readyz"):
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise SystemExit("the server did not start")

    def _watch(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        while not self._over.is_set():
            began = time.monotonic()
            try:
                connection.request("GET", "/livez")
                connection.getresponse().read()
            except OSError:
                connection.close()
            self._livez_s = max(self._livez_s, time.monotonic() - began)
            time.sleep(PING_EVERY_S)
        connection.close()


def _busy_s() -> float:
    """Return the processor time that the machine has spent on anything, this script included."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# -- what is prepared ------------------------------------------------------------------------------


def forty_large(victim: Victim) -> None:
    """40 messages of 12 MiB."""
    for _ in range(40):
        victim.call("POST", f"{QUEUE}/messages", os.urandom(12 * MIB), "octet-stream")


def many_small(victim: Victim) -> None:
    """20,000 messages of a few bytes."""
    for _ in range(2):
        body = json.dumps([{"payload": n} for n in range(10_000)])
        victim.call("POST", f"{QUEUE}/messages", body.encode())


def thousand_queues(victim: Victim) -> None:
    """1,000 queues."""
    for number in range(1000):
        victim.call("PUT", f"/api/v1/namespaces/default/queues/q{number}")


def two_hundred_with_quota(victim: Victim) -> None:
    """200 queues in a namespace with `max_bytes`."""
    body = json.dumps({"name": "quota", "max_bytes": 1 << 40}).encode()
    victim.call("POST", "/api/v1/namespaces", body)
    for number in range(200):
        victim.call("POST", f"/api/v1/namespaces/quota/queues/q{number}/messages", b'{"payload":1}')


def nothing(victim: Victim) -> None:
    """An empty server."""


# -- what is sent ----------------------------------------------------------------------------------


def lease_all(victim: Victim) -> None:
    victim.call("POST", f"{QUEUE}/lease", b'{"max":10000}')


def browse_all(victim: Victim) -> None:
    victim.call("GET", f"{QUEUE}/messages?limit=1000")


def lease_and_do_not_read(victim: Victim) -> None:
    body = b'{"max":10000}'
    held = []
    for _ in range(30):
        one = victim.connect()
        one.sendall(_request(f"{QUEUE}/lease", body))
        held.append(one)
    time.sleep(5)


def slow_stream(victim: Victim) -> None:
    one = victim.connect()
    one.sendall(
        f"GET {QUEUE}/stream?credit=10000 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n".encode()
    )
    time.sleep(5)


def half_bodies(victim: Victim) -> None:
    held = []
    part = bytes(1 * MIB)
    for _ in range(200):
        one = victim.connect()
        one.settimeout(2)
        try:
            one.sendall(_request(f"{QUEUE}/messages", part, length=10 * MIB))
            for _ in range(8):
                one.sendall(part)
        except OSError:
            pass  # refused
        held.append(one)
    time.sleep(1)


def publish_base64(victim: Victim) -> None:
    payload = base64.b64encode(os.urandom(16 * MIB)).decode()
    body = json.dumps({"payload_b64": payload, "priority": 7}).encode()
    for _ in range(3):
        victim.call("POST", f"{QUEUE}/messages", body)
    for _ in range(3):
        victim.call("POST", f"{QUEUE}/lease")


def publish_compressed(victim: Victim) -> None:
    payload = b"".join(b"%d," % n for n in range(2_200_000))[: 16 * MIB]
    for _ in range(2):
        victim.call("POST", f"{QUEUE}/messages?compression=gzip", payload, "octet-stream")
    for _ in range(2):
        victim.call("POST", f"{QUEUE}/lease")


def publish_nested(victim: Victim) -> None:
    body = b'{"payload":[' + b"{}," * (5 * MIB) + b"{}]}"
    for _ in range(2):
        victim.call("POST", f"{QUEUE}/messages", body)
    victim.call("POST", f"{QUEUE}/lease")


def publish_keys(victim: Victim) -> None:
    for count in (590_000, 99_000):
        payload = json.dumps({str(number): 1 for number in range(count)}).encode()
        for _ in range(3):
            victim.call("POST", f"{QUEUE}/messages", b'{"payload":%s}' % payload)


def publish_batch(victim: Victim) -> None:
    body = json.dumps([{"payload": n, "priority": n % 9} for n in range(100_000)]).encode()
    victim.call("POST", f"{QUEUE}/messages", body)


def lease_and_nack_many(victim: Victim) -> None:
    found = json.loads(victim.call("POST", f"{QUEUE}/lease", b'{"max":10000}'))["messages"]
    body = {"nack": [{"receipt": one["receipt"], "reason": "busy"} for one in found]}
    victim.call("POST", "/api/v1/settle", json.dumps(body).encode())


def look_at_all(victim: Victim) -> None:
    for _ in range(5):
        victim.call("GET", "/metrics")
        victim.call("GET", "/api/v1/namespaces/default/queues?limit=1000&stats=true")


def publish_under_quota(victim: Victim) -> None:
    for _ in range(200):
        victim.call("POST", "/api/v1/namespaces/quota/queues/q7/messages", b'{"payload":1}')


def _request(path: str, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {size}\r\n\r\n".encode()
        + body
    )


def wait(victim: Victim) -> None:
    time.sleep(5)


CASES: dict[str, tuple[Callable[[Victim], None], Callable[[Victim], None]]] = {
    "no attack": (nothing, wait),
    "lease max=10000, 40 of 12 MiB": (forty_large, lease_all),
    "GET messages?limit=1000, 40 of 12 MiB": (forty_large, browse_all),
    "30 leases that are not read": (forty_large, lease_and_do_not_read),
    "WebSocket that is not read, credit 10000": (forty_large, slow_stream),
    "200 half-sent bodies of 10 MiB": (nothing, half_bodies),
    "publish and lease 16 MiB as base64": (nothing, publish_base64),
    "publish and lease 16 MiB, gzip": (nothing, publish_compressed),
    "publish and lease 5 million objects": (nothing, publish_nested),
    "publish 590,000 and 99,000 distinct keys": (nothing, publish_keys),
    "publish a batch of 100,000 with options": (nothing, publish_batch),
    "lease and nack 10,000": (many_small, lease_and_nack_many),
    "metrics and listing of 1,000 queues": (thousand_queues, look_at_all),
    "200 publishes, max_bytes over 200 queues": (two_hundred_with_quota, publish_under_quota),
}


def run(name: str, directory: str | None) -> dict[str, float]:
    """Run one case. Return its figures."""
    prepare, attack = CASES[name]
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        victim = Victim(Path(folder) / "data")
        prepare(victim)
        victim.start_watching()
        try:
            attack(victim)
        except OSError:
            pass  # refused, which is an answer
        return victim.stop()


def write(out: Path, found: dict[str, dict[str, float]], directory: str | None) -> None:
    """Write the results as a page and as JSON."""
    file_system = OsFiles().file_system(directory or tempfile.gettempdir())
    facts = {"penstock": penstock.__version__, **machine_facts(file_system)}
    facts["load"] = " ".join(f"{load:.1f}" for load in os.getloadavg())
    content = {"benchmark": "hostile", "facts": facts, "rows": found}
    (out / "hostile.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = ["# Attacks on a server, measured", "", "| | |", "|---|---|"]
    lines += [f"| {key.replace('_', ' ')} | {value} |" for key, value in facts.items()]
    lines += ["", "What each column says stands at the top of `hostile.py`.", ""]
    lines += [f"| case | {' | '.join(COLUMNS)} | loop at most {MOST_LOOP_MS} ms |"]
    lines += ["|---" * (len(COLUMNS) + 2) + "|"]
    for name, figures in found.items():
        cells = " | ".join(f"{figures[column]:g}" for column in COLUMNS)
        lines.append(f"| {name} | {cells} | {_verdict(figures)} |")
    (out / "hostile.md").write_text("\n".join(lines) + "\n")


def _verdict(figures: dict[str, float]) -> str:
    return "met" if figures["loop ms"] <= MOST_LOOP_MS else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="run only cases whose name contains this"
    )
    parser.add_argument("--dir", default=None, help="directory to work in, on a real disk")
    parser.add_argument("--out", type=Path, default=None, help="directory of the results")
    chosen = parser.parse_args()
    print(f"{'case':<44}" + "".join(f"{column:>11}" for column in COLUMNS))
    found = {}
    for name in CASES:
        if chosen.only and not any(text in name for text in chosen.only):
            continue
        figures = found[name] = run(name, chosen.dir)
        cells = "".join(f"{figures[column]:>11.0f}" for column in COLUMNS)
        print(f"{name:<44}{cells}  {_verdict(figures)}", flush=True)
    if chosen.out or not chosen.only:
        write(chosen.out or RESULTS, found, chosen.dir)


if __name__ == "__main__":
    main()
