"""Requests that try to stop a server: `python benchmarks/hostile.py`.

Each case starts a server of its own with default settings. It prints the largest resident memory
and the longest answer time of `/livez`, which is asked for again and again meanwhile: that is the
longest pause of the event loop, as one client sees it. Beside it stands the processor time that the
server took meanwhile, at most: on a busy machine, that is what the pause would be on an idle one.
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

MIB = 1 << 20
QUEUE = "/api/v1/namespaces/default/queues/q"
WAIT_S = 120
PING_EVERY_S = 0.005


class Victim:
    """A server in a process of its own, and what is seen of it."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "serve", str(folder), "--port", str(self.port)],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._wait_until_ready()
        self.longest_s = self.longest_cpu_s = 0.0
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def start_watching(self) -> None:
        """Forget what it took to get here."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")  # resets VmHWM
        self._watching.start()

    def stop(self) -> float:
        """The largest resident memory, in MiB."""
        self._over.set()
        self._watching.join(WAIT_S)
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak_kib = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM"))
        self._process.kill()
        self._process.wait()
        return peak_kib / 1024

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
            began, cpu_s = time.monotonic(), self._cpu_s()
            try:
                connection.request("GET", "/livez")
                connection.getresponse().read()
            except OSError:
                connection.close()
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.longest_cpu_s = max(self.longest_cpu_s, self._cpu_s() - cpu_s)
            time.sleep(PING_EVERY_S)
        connection.close()


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
    "publish a batch of 100,000 with options": (nothing, publish_batch),
    "lease and nack 10,000": (many_small, lease_and_nack_many),
    "metrics and listing of 1,000 queues": (thousand_queues, look_at_all),
    "200 publishes, max_bytes over 200 queues": (two_hundred_with_quota, publish_under_quota),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name has this text")
    parser.add_argument("--dir", default=None, help="where to work; a real disk")
    chosen = parser.parse_args()
    print(f"{'case':<44} {'RSS MiB':>8} {'pause ms':>9} {'CPU ms':>7} {'took s':>7}")
    for name, (prepare, attack) in CASES.items():
        if chosen.only and not any(text in name for text in chosen.only):
            continue
        with tempfile.TemporaryDirectory(dir=chosen.dir) as folder:
            victim = Victim(Path(folder) / "data")
            prepare(victim)
            victim.start_watching()
            began = time.monotonic()
            try:
                attack(victim)
            except OSError as error:
                name = f"{name} ({type(error).__name__})"
            took_s = time.monotonic() - began
            peak_mib = victim.stop()
        pause_ms, cpu_ms = victim.longest_s * 1000, victim.longest_cpu_s * 1000
        print(
            f"{name:<44} {peak_mib:>8.0f} {pause_ms:>9.0f} {cpu_ms:>7.0f} {took_s:>7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
