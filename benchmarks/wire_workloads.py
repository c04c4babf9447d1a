"""Workloads of the wire benchmark: `wrk` sends requests to a server in its own process.

Bodies vary in size, and each request has a different `traceparent` header. The bare loop is uvloop,
the httptools parser, msgspec and a fixed reply: the cost of a request without a broker.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.request import Request, urlopen

from measure import Figures, run_workload
from server_peers import cpu_s, free_port, penstock, postgres, postgres_binaries, running
from server_workloads import beanstalkd_publish

HERE = Path(__file__).parent
QUEUE = "/api/v1/namespaces/bench/queues/q"
WARM_S = 1
LEASED_PER_S = 25_000  # more than any run leases
ABANDONED, DELAYED = 1_000, 10_000

REQUESTS: Mapping[str, Mapping[str, str]] = {  # variables for wire.lua
    "publish": {},
    "rivetq": {"WIRE_PATH": "/v1/queues/d/enqueue"},
    "epochqueue": {"WIRE_PATH": "/namespaces/bench/queues/e/messages", "WIRE_FIELD": "body"},
    "lease": {"WIRE_KIND": "lease"},
    "settle": {"WIRE_KIND": "settle"},
    "stats": {"WIRE_KIND": "get", "WIRE_PATH": QUEUE},
    "browse": {"WIRE_KIND": "get", "WIRE_PATH": f"{QUEUE}/messages?limit=10"},
}


def wire_penstock(
    directory: str, request: str, connections: int, sync: str, seconds: int, busy: bool = False
) -> Figures:
    """Send one kind of request. `busy` adds abandoned leases and delayed messages to the queue."""
    environment = dict(REQUESTS[request])
    with penstock(directory, sync) as (port, pid):
        if busy:
            _publish(port, ABANDONED)
            _lease(port, ABANDONED)
            _publish(port, DELAYED, delay_s=3600)
        if request in ("lease", "settle", "browse"):
            _publish(port, LEASED_PER_S * (seconds + WARM_S))
        if request == "settle":
            receipts = _lease(port, LEASED_PER_S * (seconds + WARM_S))
            file = Path(directory) / "receipts"
            file.write_text("\n".join(receipts))
            environment["WIRE_RECEIPTS"] = str(file)
        elif request != "publish":
            _publish(port, 1)  # so that the queue exists
        return _load(port, pid, connections, seconds, environment)


def wire_bare(directory: str, connections: int, seconds: int) -> Figures:
    port = free_port()
    with running([sys.executable, __file__, "bare", str(port)], port) as pid:
        return _load(port, pid, connections, seconds, {})


def postgres_inserts(directory: str, connections: int, seconds: int) -> Figures:
    """Single inserts of varied sizes by `pgbench`, PostgreSQL's own load generator."""
    binaries = postgres_binaries()
    assert binaries is not None
    with postgres(directory) as port:
        address = ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres"]
        table = "create table q (id bigserial primary key, payload bytea not null)"
        subprocess.run(
            [str(binaries / "psql"), *address, "-qc", table], check=True, stdout=subprocess.DEVNULL
        )
        script = Path(directory) / "insert.sql"
        script.write_text(
            "\\set size random(20, 420)\n"
            "insert into q (payload) values (repeat('x', :size)::bytea);\n"
        )
        command = [str(binaries / "pgbench"), *address, "-n", "-M", "prepared", "-j", "1"]
        command += ["-c", str(connections), "-f", str(script)]
        subprocess.run([*command, "-T", str(WARM_S), "postgres"], check=True, capture_output=True)
        said = subprocess.run(
            [*command, "-T", str(seconds), "postgres"], check=True, capture_output=True, text=True
        ).stdout
    found = re.search(r"tps = ([\d.]+)", said)
    assert found is not None, said
    return {"rate": float(found[1])}


def _load(
    port: int, pid: int, connections: int, seconds: int, environment: Mapping[str, str]
) -> Figures:
    """Run wrk, after a second to warm up. Any reply that is not 2xx is an error."""
    if environment.get("WIRE_KIND") != "settle":  # a receipt can be used once
        _wrk(port, connections, WARM_S, environment)
    before = cpu_s(pid)
    count, rate = _wrk(port, connections, seconds, environment)
    return {"rate": rate, "cpu_us": (cpu_s(pid) - before) / count * 1e6}


def _wrk(
    port: int, connections: int, seconds: int, environment: Mapping[str, str]
) -> tuple[int, float]:
    said = subprocess.run(
        [
            *("wrk", "-t1", f"-c{connections}", f"-d{seconds}s"),
            *("-s", str(HERE / "wire.lua"), f"http://127.0.0.1:{port}"),
        ],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = re.search(r"(\d+) requests in .*?Requests/sec:\s+([\d.]+)", said, re.DOTALL)
    if found is None or "Non-2xx" in said:
        raise RuntimeError(said)
    return int(found[1]), float(found[2])


def _publish(port: int, count: int, delay_s: float = 0) -> None:
    options = {"delay_s": delay_s} if delay_s else {}
    sizes = [20 + number * 37 % 400 for number in range(1000)]
    while count > 0:
        some = [{"payload": "x" * size, **options} for size in sizes[:count]]
        _post(port, f"{QUEUE}/messages", some)
        count -= len(some)


def _lease(port: int, count: int) -> list[str]:
    """Return receipts of leased messages."""
    receipts: list[str] = []
    while len(receipts) < count:
        wanted = {"max": min(count - len(receipts), 1000), "lease_s": 3600}
        found = _post(port, f"{QUEUE}/lease", wanted)["messages"]
        receipts += [one["receipt"] for one in found]
    return receipts


def _post(port: int, path: str, body: object) -> dict[str, list[dict[str, str]]]:
    headers = {"Content-Type": "application/json"}
    request = Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)
    with urlopen(request) as answer:
        found: dict[str, list[dict[str, str]]] = json.loads(answer.read())
        return found


def serve_bare(port: int) -> None:
    """Run the bare loop."""
    import httptools
    import msgspec
    import uvloop

    class Body(msgspec.Struct):
        payload: msgspec.Raw = msgspec.Raw()

    decode = msgspec.json.Decoder(Body).decode
    reply = (
        b"HTTP/1.1 201 Created\r\ndate: Tue, 17 Nov 2026 03:00:00 GMT\r\n"
        b"content-type: application/json\r\ncache-control: no-store\r\n"
        b"x-content-type-options: nosniff\r\nx-request-id: 0123abcd-1f\r\n"
        b'content-length: 35\r\n\r\n{"id":"01HF7YAT00000000G0000000G1"}'
    )

    class Bare(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: asyncio.Transport = transport  # type: ignore[assignment]
            self.parser = httptools.HttpRequestParser(self)

        def data_received(self, data: bytes) -> None:
            self.parser.feed_data(data)

        def on_url(self, url: bytes) -> None:
            self.url, self.headers, self.body = url, {}, b""

        def on_header(self, name: bytes, value: bytes) -> None:
            self.headers[name] = value

        def on_body(self, body: bytes) -> None:
            self.body += body

        def on_message_complete(self) -> None:
            if self.body:
                decode(self.body)
            self.transport.write(reply)

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", port)
        await server.serve_forever()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


if __name__ == "__main__":
    if sys.argv[1] == "bare":
        serve_bare(int(sys.argv[2]))
    else:
        works = (beanstalkd_publish, postgres_inserts, wire_bare, wire_penstock)
        run_workload({work.__name__: work for work in works})
