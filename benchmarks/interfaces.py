"""Every way into a queue, side by side: `make bench-interfaces`.

The figures of docs/which-interface.md come from here; see interfaces_workloads.py.
"""

import sys
from collections.abc import Callable

from command import HERE, Benchmark, run
from interfaces_clients import SQS_BATCH
from measure import Contender, Row, version_of

CLIENTS, BATCH = 16, 100

# The name of an interface, and what is measured.
NAMES = {
    "embedded": "embedded",
    "own_http": "HTTP, penstock.client",
    "native_http": "HTTP",
    "rivetq": "RivetQ",
    "epochqueue": "EpochQueue",
    "web_socket": "WebSocket",
    "own_grpc": "gRPC, penstock.client",
    "grpc_unary": "gRPC",
    "grpc_stream": "gRPC, Consume",
    "pipelined": "beanstalk",
    "greenstalk": "beanstalk, greenstalk",
    "boto3": "SQS, boto3",
}
DOES = {
    "embedded": "threads of one process call the queue, sync=always",
    "own_http": "tasks share one penstock.aio.connect, default options: it adds dedup ids",
    "native_http": "connections of one loop, requests written by hand",
    "rivetq": "as HTTP; one message a publish, a lease and an ack",
    "epochqueue": "as HTTP; batches are published, and acked one by one",
    "web_socket": "published as HTTP; pushed by websockets, credit 100, an ack for each message",
    "own_grpc": "the same at grpc://",
    "grpc_unary": "tasks share one channel of grpc.aio: Publish, Lease, Settle",
    "grpc_stream": "published as gRPC; pushed by Consume, credit 100, acked as they came",
    "pipelined": "connections of one loop, commands written by hand; a batch is pipelined",
    "greenstalk": "threads with a connection each",
    "boto3": f"threads share one client; batches of {SQS_BATCH}, which is SQS's maximum",
}
CANNOT_WAIT = ("rivetq", "epochqueue")
NO_BATCHES = ("rivetq", "web_socket", "grpc_stream", "greenstalk")


def rows(*, quick: bool) -> list[Row]:
    """Return all rows. A quick run shows that all of them work."""
    seconds = 0.2 if quick else 1.0
    return [
        Row(
            name="latency",
            title="one client that publishes, and one that waits for messages",
            unit="µs",
            contenders=[
                _contender(
                    one,
                    "latencies",
                    seconds=seconds,
                    deliveries=0 if one in CANNOT_WAIT else 5 if quick else 200,
                )
                for one in NAMES
            ],
            targets=[],
        ),
        _rates_row("singles", "one message a call", list(NAMES), 1, seconds),
        _rates_row(
            "batches",
            f"{BATCH} messages a call",
            [one for one in NAMES if one not in NO_BATCHES],
            BATCH,
            seconds,
        ),
    ]


def _rates_row(name: str, title: str, interfaces: list[str], size: int, seconds: float) -> Row:
    return Row(
        name=name,
        title=f"{title}, {CLIENTS} clients of one process",
        unit="messages/s",
        contenders=[
            _contender(one, "rates", clients=CLIENTS, size=size, seconds=seconds)
            for one in interfaces
        ],
        targets=[],
    )


def _contender(interface: str, workload: str, **arguments: float) -> Contender:
    peers = {"greenstalk": "greenstalk", "boto3": "boto3", "web_socket": "websockets"}
    return Contender(
        name=NAMES[interface],
        workload=workload,
        arguments={"interface": interface, **arguments},  # type: ignore[dict-item]
        peer=peers.get(interface),
        does=DOES[interface],
    )


def versions() -> dict[str, str]:
    packages = ("penstock", "uvloop", "grpcio", "websockets", "greenstalk", "boto3")
    found: Callable[[str], str | None] = version_of
    return {name: found(name) or "not installed" for name in packages}


BENCHMARK = Benchmark(
    name="interfaces",
    title="Interfaces",
    workloads=HERE / "interfaces_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=0,
    rounds=3,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
