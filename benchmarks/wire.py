"""Requests over HTTP, as ratios of a bare loop in the same run: `python benchmarks/wire.py`.

The load is `wrk` (Debian) with varied body sizes and a `traceparent` header that is never the same.
The bare loop is uvloop, the httptools parser, msgspec and a fixed reply: the cost of a request
before the broker does anything. Machines drift, so each row runs beside the bare loop, and only the
ratio counts. CPU is user and system time of the server for each request.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep
from typing import NamedTuple
from urllib.request import Request, urlopen

from server_peers import free_port, penstock

_FILL = 300_000
_HERE = Path(__file__).parent
_QUEUE = "/api/v1/namespaces/bench/queues/q"


class Row(NamedTuple):
    """One kind of request."""

    name: str
    connections: int = 64
    sync: str = "interval"
    environment: Mapping[str, str] = {}  # for wire.lua


ROWS = (
    Row("publish"),
    Row("publish durable", sync="always"),
    Row("publish durable 256", 256, "always"),
    Row("rivetq enqueue", environment={"WIRE_PATH": "/v1/queues/d/enqueue"}),
    Row(
        "epochqueue publish",
        environment={"WIRE_PATH": "/namespaces/bench/queues/e/messages", "WIRE_FIELD": "body"},
    ),
    Row("lease + ack", environment={"WIRE_KIND": "lease"}),
    Row("lease + ack durable", sync="always", environment={"WIRE_KIND": "lease"}),
    Row("stats", environment={"WIRE_KIND": "get", "WIRE_PATH": _QUEUE}),
    Row("browse 10", environment={"WIRE_KIND": "get", "WIRE_PATH": f"{_QUEUE}/messages?limit=10"}),
)


class Figures(NamedTuple):
    rate: float
    cpu_us: float


def load(port: int, pid: int, row: Row, seconds: int) -> Figures:
    """Run wrk once. Any reply that is not 2xx is an error."""
    before = _cpu_s(pid)
    command = ["wrk", "-t1", f"-c{row.connections}", f"-d{seconds}s", "-s", str(_HERE / "wire.lua")]
    environment = {**os.environ, **row.environment}
    said = subprocess.run(
        [*command, f"http://127.0.0.1:{port}"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = re.search(r"(\d+) requests in .*?Requests/sec:\s+([\d.]+)", said, re.DOTALL)
    if found is None or "Non-2xx" in said:
        raise RuntimeError(said)
    return Figures(float(found[2]), (_cpu_s(pid) - before) / int(found[1]) * 1e6)


def fill(port: int, count: int) -> None:
    """Publish messages for rows that lease."""
    batch = json.dumps([{"payload": "x" * 98}] * 1000).encode()
    for _ in range(count // 1000):
        request = Request(
            f"http://127.0.0.1:{port}{_QUEUE}/messages",
            batch,
            {"Content-Type": "application/json"},
        )
        urlopen(request).close()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def bare() -> Iterator[tuple[int, int]]:
    """Run the bare loop: its port and process id."""
    port = free_port()
    process = subprocess.Popen([sys.executable, __file__, "--bare", str(port)])
    try:
        sleep(1)
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


def serve_bare(port: int) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[row.name for row in ROWS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        serve_bare(arguments.bare)
        return
    rows = [row for row in ROWS if row.name in arguments.only]
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=_HERE))
        bare_loop = stack.enter_context(bare())
        servers = {
            sync: stack.enter_context(penstock(f"{directory}/{sync}", sync))
            for sync in {row.sync for row in rows}
        }
        print(f"{'row':22} {'ratio':>6} {'rate':>8} {'CPU µs':>7} {'bare':>8} {'CPU µs':>7}")
        for row in rows:
            found: list[tuple[float, Figures, Figures]] = []
            if "lease" in row.name:
                fill(servers[row.sync][0], _FILL)
            for _ in range(arguments.rounds):
                base = load(*bare_loop, row._replace(environment={}), arguments.seconds)
                ours = load(*servers[row.sync], row, arguments.seconds)
                found.append((ours.rate / base.rate, ours, base))
            ratio = statistics.median(one[0] for one in found)
            _, ours, base = min(found, key=lambda one: abs(one[0] - ratio))
            print(
                f"{row.name:22} {ratio:6.2f} {ours.rate:8.0f} {ours.cpu_us:7.1f} "
                f"{base.rate:8.0f} {base.cpu_us:7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
