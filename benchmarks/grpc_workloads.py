"""Workloads of the gRPC benchmark. Each runs in its own process, started by `measure.Runner`.

The broker runs in a process of its own and syncs each commit, as it does by default. Payloads have
100 bytes. The callers are tasks of one process: over gRPC on one channel, over HTTP with Penstock's
client. Making requests and reading answers is part of the time.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
from measure import Figures, run_workload

from penstock import aio
from penstock.protobuf.descriptors import METHODS

PAYLOAD = bytes(range(28, 128))
CALLERS = 8
QUEUE = "bench"


@contextmanager
def _broker(directory: str) -> Iterator[tuple[str, str]]:
    """The URL of HTTP and the address of gRPC."""
    command = [sys.executable, "-m", "penstock", "serve", directory, "--port", "0"]
    command += ["--grpc", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            http, rpc = json.loads(process.stdout.readline())["urls"]
            yield http, rpc.removeprefix("grpc://")
        finally:
            process.terminate()


Work = Callable[[], Awaitable[None]]


async def _each(calls: int, work: Work) -> None:
    async def caller() -> None:
        for _ in range(calls // CALLERS):
            await work()

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


def _timed(calls: int, size: int, opened: Any, fill: bool) -> Figures:
    """Time `calls` calls for `size` messages each. `opened` gives the two kinds of work."""

    async def prepare_and_run() -> Figures:
        async with opened as (publish, consume):
            if fill:
                await _each(calls, publish)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await _each(calls, consume if fill else publish)
            count = calls // CALLERS * CALLERS * size
            return {"rate": count / (loop.time() - began)}

    return asyncio.run(prepare_and_run())


@asynccontextmanager
async def _over_grpc(address: str, size: int) -> AsyncIterator[tuple[Work, Work]]:
    async with grpc.aio.insecure_channel(address) as channel:

        def method(name: str) -> Any:
            one = METHODS[name]
            return one.request, channel.unary_unary(
                one.path,
                request_serializer=one.request.SerializeToString,
                response_deserializer=one.response.FromString,
            )

        (publishing, publish_), (leasing, lease_), (settling, settle_) = map(
            method, ("Publish", "Lease", "Settle")
        )

        async def publish() -> None:
            request = publishing(queue=QUEUE)
            for _ in range(size):
                request.messages.add(payload=PAYLOAD)
            await publish_(request)

        async def consume() -> None:
            leased = (await lease_(leasing(queue=QUEUE, max=size, wait_s=10))).messages
            request = settling()
            for one in leased:
                request.ack.add(receipt=one.receipt)
            await settle_(request)

        yield publish, consume


@asynccontextmanager
async def _over_http(url: str, size: int) -> AsyncIterator[tuple[Work, Work]]:
    async with aio.connect(f"{url}/default/{QUEUE}") as queue:

        async def publish() -> None:
            await queue.enqueue_batch([PAYLOAD] * size)

        async def consume() -> None:
            await queue.ack(await queue.lease(size, wait_s=10))

        yield publish, consume


def publish_grpc(directory: str, calls: int, size: int) -> Figures:
    with _broker(directory) as (_, address):
        return _timed(calls, size, _over_grpc(address, size), False)


def publish_http(directory: str, calls: int, size: int) -> Figures:
    with _broker(directory) as (url, _):
        return _timed(calls, size, _over_http(url, size), False)


def consume_grpc(directory: str, calls: int, size: int) -> Figures:
    with _broker(directory) as (_, address):
        return _timed(calls, size, _over_grpc(address, size), True)


def consume_http(directory: str, calls: int, size: int) -> Figures:
    with _broker(directory) as (url, _):
        return _timed(calls, size, _over_http(url, size), True)


WORKLOADS = {
    work.__name__: work for work in (publish_grpc, publish_http, consume_grpc, consume_http)
}

if __name__ == "__main__":
    run_workload(WORKLOADS)
