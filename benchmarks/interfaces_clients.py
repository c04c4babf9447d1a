"""One client for each interface, behind one form: what the benchmark of interfaces calls.

A client of tasks is an `AsyncClient`, one that blocks its thread is a `BlockingClient`. Both
publish messages, and take steps of consuming: a step leases and settles up to `size` messages, or
handles one frame of a stream, and returns how many messages it settled.
"""

import base64
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, Protocol

from server_load import BeanstalkLine, HttpLine, connect, http_post

QUEUE = "bench"
PATH = f"/api/v1/namespaces/default/queues/{QUEUE}"
WAIT_S = 5
CREDIT = 100  # of a stream
SQS_BATCH = 10  # the most that SQS takes


class Order(NamedTuple):
    """A message: JSON of some hundred bytes; one in four has a header."""

    payload: bytes
    headers: dict[str, str] | None


def orders(count: int = 64) -> list[Order]:
    """Return messages of varied sizes, from 80 to 540 bytes."""
    made = []
    for number in range(count):
        lines = [{"sku": f"A-{number * 7 + n}", "count": n + 1} for n in range(1 + number % 16)]
        order = {"order": 10_000 + number, "customer": f"customer-{number % 9}", "lines": lines}
        text = json.dumps({**order, "note": "x" * (number * 37 % 60)}, separators=(",", ":"))
        made.append(Order(text.encode(), {"tenant": f"t{number % 5}"} if number % 4 == 0 else None))
    return made


class Addresses(NamedTuple):
    """Where a broker listens."""

    http: str
    grpc: str
    beanstalk: str

    @property
    def port(self) -> int:
        return int(self.http.rpartition(":")[2])


class AsyncClient(Protocol):
    """A connection that tasks use."""

    async def prepare(self) -> None:
        """Connect a stream, before messages are wanted."""

    async def publish(self, messages: Sequence[Order]) -> None: ...

    async def consume(self, size: int) -> int: ...

    async def receive(self) -> None:
        """Wait for one message. It is settled by the next call."""


class BlockingClient(Protocol):
    """A connection that a thread uses."""

    def publish(self, messages: Sequence[Order]) -> None: ...

    def consume(self, size: int) -> int: ...

    def receive(self) -> None: ...


# -- embedded, and Penstock's own client -----------------------------------------------------------


class EmbeddedClient:
    """The queue in this process."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._held: Any = None

    def publish(self, messages: Sequence[Order]) -> None:
        if len(messages) == 1:
            self._queue.enqueue(messages[0].payload, headers=messages[0].headers)
        else:
            self._queue.enqueue_batch([_new_message(one) for one in messages])

    def consume(self, size: int) -> int:
        leased = self._queue.lease(size)
        if leased:
            self._queue.ack(leased)
        return len(leased)

    def receive(self) -> None:
        if self._held:
            self._queue.ack(self._held)
        self._held = self._queue.lease(1, wait_s=WAIT_S)
        assert self._held


class _NoStream:
    async def prepare(self) -> None:
        pass


class OwnClient(_NoStream):
    """Penstock's client, over HTTP or gRPC as its address says."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._held: Any = None

    async def publish(self, messages: Sequence[Order]) -> None:
        if len(messages) == 1:
            await self._queue.enqueue(messages[0].payload, headers=messages[0].headers)
        else:
            await self._queue.enqueue_batch([_new_message(one) for one in messages])

    async def consume(self, size: int) -> int:
        leased = await self._queue.lease(size)
        if leased:
            await self._queue.ack(leased)
        return len(leased)

    async def receive(self) -> None:
        if self._held:
            await self._queue.ack(self._held)
        self._held = await self._queue.lease(1, wait_s=WAIT_S)
        assert self._held


def _new_message(order: Order) -> Any:
    import penstock

    if order.headers is None:
        return order.payload
    return penstock.NewMessage(payload=order.payload, headers=order.headers)


@contextmanager
def embedded(directory: str, count: int) -> Iterator[list[BlockingClient]]:
    import penstock

    with penstock.open(f"{directory}/{QUEUE}", sync="always") as queue:
        yield [EmbeddedClient(queue) for _ in range(count)]


@asynccontextmanager
async def _own(url: str, count: int) -> AsyncIterator[list[AsyncClient]]:
    from penstock import aio

    async with aio.connect(f"{url}/default/{QUEUE}") as queue:
        yield [OwnClient(queue) for _ in range(count)]


def own_http(addresses: Addresses, count: int) -> Any:
    return _own(addresses.http, count)


def own_grpc(addresses: Addresses, count: int) -> Any:
    return _own(f"grpc://{addresses.grpc}", count)


# -- HTTP as it is: native, RivetQ, EpochQueue -----------------------------------------------------


class _PlainHttpLine(HttpLine):
    """Answers 204 have no length."""

    def answer_in(self, data: bytes) -> tuple[bytes | None, int]:
        if data.startswith(b"HTTP/1.1 204"):
            end = data.find(b"\r\n\r\n") + 4
            return (None, 0) if end < 4 else (b"", end)
        return super().answer_in(data)


class _HttpClient(_NoStream):
    def __init__(self, line: HttpLine) -> None:
        self._line = line
        self._held: list[Any] = []

    async def _call(self, path: str, body: object) -> Any:
        return json.loads(await self._line.ask(http_post(path, json.dumps(body).encode())) or "{}")

    async def _ask(self, method: str, path: str) -> Any:
        request = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        return json.loads(await self._line.ask(request.encode()) or "{}")


class NativeHttpClient(_HttpClient):
    """`/api/v1` with requests written by hand."""

    async def publish(self, messages: Sequence[Order]) -> None:
        bodies = [_with(b'"payload":%s' % one.payload, "headers", one) for one in messages]
        body = bodies[0] if len(bodies) == 1 else b"[%s]" % b",".join(bodies)
        await self._line.ask(http_post(f"{PATH}/messages", body))

    async def consume(self, size: int) -> int:
        found = (await self._call(f"{PATH}/lease", {"max": size}))["messages"]
        if found:
            await self._call("/api/v1/settle", {"ack": [one["receipt"] for one in found]})
        return len(found)

    async def receive(self) -> None:
        if self._held:
            await self._call("/api/v1/settle", {"ack": [one["receipt"] for one in self._held]})
        body = {"max": 1, "wait_s": WAIT_S}
        self._held = (await self._call(f"{PATH}/lease", body))["messages"]
        assert self._held


class RivetqClient(_HttpClient):
    """RivetQ: one job a publish, one job an ack; leases do not wait."""

    async def publish(self, messages: Sequence[Order]) -> None:
        for one in messages:
            body = _with(b'"payload":%s' % one.payload, "headers", one)
            await self._line.ask(http_post(f"/v1/queues/{QUEUE}/enqueue", body))

    async def consume(self, size: int) -> int:
        found = (await self._call(f"/v1/queues/{QUEUE}/lease", {"max_jobs": size}))["jobs"]
        for job in found:
            await self._call("/v1/ack", {"job_id": job["id"], "lease_id": job["lease_id"]})
        return len(found)

    async def receive(self) -> None:
        raise NotImplementedError("it cannot wait for a message")


class EpochqueueClient(_HttpClient):
    """EpochQueue: batches are published, messages are acked one by one; receiving does not wait."""

    _PATH = f"/namespaces/default/queues/{QUEUE}"

    async def publish(self, messages: Sequence[Order]) -> None:
        bodies = [
            _with(b'"body":"%s"' % base64.b64encode(one.payload), "metadata", one)
            for one in messages
        ]
        path = f"{self._PATH}/messages" + ("" if len(bodies) == 1 else "/batch")
        body = bodies[0] if len(bodies) == 1 else b"[%s]" % b",".join(bodies)
        await self._line.ask(http_post(path, body))

    async def consume(self, size: int) -> int:
        found = (await self._ask("GET", f"{self._PATH}/messages?n={size}"))["messages"]
        for one in found:
            await self._ask("DELETE", f"/messages/{one['receipt_handle']}")
        return len(found)

    async def receive(self) -> None:
        raise NotImplementedError("it cannot wait for a message")


def _with(field: bytes, name: str, order: Order) -> bytes:
    if order.headers is None:
        return b"{%s}" % field
    return b'{%s,"%s":%s}' % (field, name.encode(), json.dumps(order.headers).encode())


@asynccontextmanager
async def _over_http(
    kind: type[Any], addresses: Addresses, count: int
) -> AsyncIterator[list[AsyncClient]]:
    lines = await connect(_PlainHttpLine, addresses.port, count)
    yield [kind(line) for line in lines]
    for line in lines:
        line.transport.abort()


def native_http(addresses: Addresses, count: int) -> Any:
    return _over_http(NativeHttpClient, addresses, count)


def rivetq(addresses: Addresses, count: int) -> Any:
    return _over_http(RivetqClient, addresses, count)


def epochqueue(addresses: Addresses, count: int) -> Any:
    return _over_http(EpochqueueClient, addresses, count)


# -- WebSocket -------------------------------------------------------------------------------------


class WebSocketClient(NativeHttpClient):
    """Messages are pushed over a WebSocket, and published over HTTP."""

    def __init__(self, line: HttpLine, url: str) -> None:
        super().__init__(line)
        self._url = url
        self._stream: Any = None
        self._has_credit = False

    async def prepare(self) -> None:
        import websockets

        self._stream = await websockets.connect(self._url, ping_interval=None)

    async def _frame(self) -> dict[str, Any]:
        if not self._has_credit:
            self._has_credit = True
            await self._stream.send(json.dumps({"type": "credit", "credit": CREDIT}))
        frame: dict[str, Any] = json.loads(await self._stream.recv())
        assert frame["type"] != "error", frame
        return frame

    async def _ack(self, receipt: str) -> None:
        await self._stream.send(json.dumps({"type": "ack", "receipt": receipt}))

    async def consume(self, size: int) -> int:
        frame = await self._frame()
        if frame["type"] == "settled":
            return 1
        await self._ack(frame["receipt"])
        return 0

    async def receive(self) -> None:
        if self._held:
            await self._ack(self._held.pop())
        frame = await self._frame()
        while frame["type"] != "message":
            frame = await self._frame()
        self._held = [frame["receipt"]]

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.transport.abort()


@asynccontextmanager
async def web_socket(addresses: Addresses, count: int) -> AsyncIterator[list[AsyncClient]]:
    lines = await connect(_PlainHttpLine, addresses.port, count)
    url = f"ws://127.0.0.1:{addresses.port}{PATH}/stream?credit=0"
    clients = [WebSocketClient(line, url) for line in lines]
    yield list(clients)
    for client, line in zip(clients, lines, strict=True):
        await client.close()
        line.transport.abort()


# -- gRPC ------------------------------------------------------------------------------------------


class GrpcClient(_NoStream):
    """Unary calls on a channel that all tasks share."""

    def __init__(self, channel: Any) -> None:
        from penstock.protobuf.descriptors import METHODS

        def method(name: str) -> Any:
            one = METHODS[name]
            made = channel.unary_unary(
                one.path,
                request_serializer=one.request.SerializeToString,
                response_deserializer=one.response.FromString,
            )
            return lambda **fields: made(one.request(**fields))

        self._publish, self._lease, self._settle = map(method, ("Publish", "Lease", "Settle"))
        self._held: list[str] = []

    async def publish(self, messages: Sequence[Order]) -> None:
        fields = [{"payload": one.payload, "headers": one.headers or {}} for one in messages]
        await self._publish(queue=QUEUE, messages=fields)

    async def consume(self, size: int) -> int:
        found = (await self._lease(queue=QUEUE, max=size)).messages
        if found:
            await self._settle(ack=[{"receipt": one.receipt} for one in found])
        return len(found)

    async def receive(self) -> None:
        if self._held:
            await self._settle(ack=[{"receipt": one} for one in self._held])
        found = (await self._lease(queue=QUEUE, max=1, wait_s=WAIT_S)).messages
        self._held = [one.receipt for one in found]
        assert self._held


class GrpcStreamClient(GrpcClient):
    """`Consume`: messages are pushed, and settled on the same call, as they came."""

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        from penstock.protobuf.descriptors import METHODS

        method = METHODS["Consume"]
        self._request = method.request
        self._open = channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        self._stream: Any = None
        self._has_credit = False

    async def prepare(self) -> None:
        self._stream = self._open()
        start = {"queue": QUEUE, "credit": {"messages": 0}}
        await self._stream.write(self._request(start=start))

    async def _response(self) -> Any:
        if not self._has_credit:
            self._has_credit = True
            await self._stream.write(self._request(credit={"messages": CREDIT}))
        return await self._stream.read()

    async def _ack(self, receipts: Sequence[str]) -> None:
        settle = {"ack": [{"receipt": one} for one in receipts]}
        await self._stream.write(self._request(settle=settle))

    async def consume(self, size: int) -> int:
        response = await self._response()
        if response.HasField("settled"):
            return len(response.settled.results)
        await self._ack([one.receipt for one in response.delivered.messages])
        return 0

    async def receive(self) -> None:
        if self._held:
            await self._ack(self._held)
            self._held = []
        response = await self._response()
        while not response.HasField("delivered"):
            response = await self._response()
        self._held = [one.receipt for one in response.delivered.messages]


@asynccontextmanager
async def _over_grpc(
    kind: type[Any], addresses: Addresses, count: int
) -> AsyncIterator[list[AsyncClient]]:
    import grpc

    async with grpc.aio.insecure_channel(addresses.grpc) as channel:
        clients = [kind(channel) for _ in range(count)]
        yield clients


def grpc_unary(addresses: Addresses, count: int) -> Any:
    return _over_grpc(GrpcClient, addresses, count)


def grpc_stream(addresses: Addresses, count: int) -> Any:
    return _over_grpc(GrpcStreamClient, addresses, count)


# -- beanstalk -------------------------------------------------------------------------------------


class GreenstalkClient:
    """The client library greenstalk, one connection for each thread."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._held: Any = None

    def publish(self, messages: Sequence[Order]) -> None:
        for one in messages:
            self._client.put(one.payload)

    def consume(self, size: int) -> int:
        import greenstalk

        try:
            job = self._client.reserve(timeout=0)
        except greenstalk.TimedOutError:
            return 0
        self._client.delete(job)
        return 1

    def receive(self) -> None:
        if self._held:
            self._client.delete(self._held)
        self._held = self._client.reserve(timeout=WAIT_S)


class _ManyAnswers(BeanstalkLine):
    """Answers to several commands that were sent together; those to reserves are their ids."""

    count = 1

    def answer_in(self, data: bytes) -> tuple[bytes | None, int]:
        answers, at = [], 0
        for _ in range(self.count):
            answer, after = super().answer_in(data[at:] if at else data)
            if answer is None:
                return None, 0
            answers.append(answer)
            at += after
        return b"\n".join(answers), at


class PipelinedClient(_NoStream):
    """Commands written to a socket by hand; several are sent before the first answer is read."""

    def __init__(self, line: _ManyAnswers) -> None:
        self._line = line
        self._held: list[bytes] = []

    async def _send(self, commands: Sequence[bytes]) -> list[bytes]:
        self._line.count = len(commands)
        return (await self._line.ask(b"".join(commands))).split(b"\n")

    async def publish(self, messages: Sequence[Order]) -> None:
        puts = [
            b"put 65536 0 60 %d\r\n%s\r\n" % (len(one.payload), one.payload) for one in messages
        ]
        answers = await self._send(puts)
        assert answers[-1].startswith(b"INSERTED"), answers[-1]

    async def consume(self, size: int) -> int:
        answers = await self._send([b"reserve-with-timeout 0\r\n"] * size)
        ids = [one for one in answers if one.isdigit()]
        if ids:
            await self._send([b"delete %s\r\n" % one for one in ids])
        return len(ids)

    async def receive(self) -> None:
        if self._held:
            await self._send([b"delete %s\r\n" % one for one in self._held])
        self._held = await self._send([b"reserve-with-timeout %d\r\n" % WAIT_S])
        assert self._held[0].isdigit(), self._held


@contextmanager
def greenstalk_threads(addresses: Addresses, count: int) -> Iterator[list[BlockingClient]]:
    import greenstalk

    host, _, port = addresses.beanstalk.rpartition(":")
    clients = [
        greenstalk.Client((host, int(port)), encoding=None, use=QUEUE, watch=QUEUE)
        for _ in range(count)
    ]
    yield [GreenstalkClient(client) for client in clients]
    for client in clients:
        client.close()


@asynccontextmanager
async def pipelined(addresses: Addresses, count: int) -> AsyncIterator[list[AsyncClient]]:
    port = int(addresses.beanstalk.rpartition(":")[2])
    lines = await connect(_ManyAnswers, port, count)
    for line in lines:
        line.count = 3
        await line.ask(b"use %s\r\nwatch %s\r\nignore default\r\n" % ((QUEUE.encode(),) * 2))
    yield [PipelinedClient(line) for line in lines]
    for line in lines:
        line.transport.abort()


# -- SQS -------------------------------------------------------------------------------------------


class SqsClient:
    """boto3, which threads share."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self._url = url
        self._held: list[Any] = []

    def publish(self, messages: Sequence[Order]) -> None:
        if len(messages) == 1:
            self._client.send_message(QueueUrl=self._url, **_sqs_message(messages[0]))
            return
        for at in range(0, len(messages), SQS_BATCH):
            part = messages[at : at + SQS_BATCH]
            entries = [{"Id": str(n), **_sqs_message(one)} for n, one in enumerate(part)]
            answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
            assert len(answer["Successful"]) == len(part), answer

    def consume(self, size: int) -> int:
        found = self._receive(min(size, SQS_BATCH), 0)
        self._delete(found)
        return len(found)

    def receive(self) -> None:
        self._delete(self._held)
        self._held = self._receive(1, WAIT_S)
        assert self._held

    def _receive(self, most: int, wait_s: int) -> list[Any]:
        answer = self._client.receive_message(
            QueueUrl=self._url, MaxNumberOfMessages=most, WaitTimeSeconds=wait_s
        )
        found: list[Any] = answer.get("Messages", [])
        return found

    def _delete(self, found: Sequence[Any]) -> None:
        if len(found) == 1:
            handle = found[0]["ReceiptHandle"]
            self._client.delete_message(QueueUrl=self._url, ReceiptHandle=handle)
        elif found:
            entries = [
                {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(found)
            ]
            self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)


def _sqs_message(order: Order) -> dict[str, Any]:
    message: dict[str, Any] = {"MessageBody": order.payload.decode()}
    if order.headers is not None:
        message["MessageAttributes"] = {
            name: {"DataType": "String", "StringValue": value}
            for name, value in order.headers.items()
        }
    return message


@contextmanager
def boto3_threads(addresses: Addresses, count: int) -> Iterator[list[BlockingClient]]:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "sqs",
        endpoint_url=addresses.http,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(max_pool_connections=count, retries={"max_attempts": 0}),
    )
    url = client.create_queue(QueueName=QUEUE)["QueueUrl"]
    yield [SqsClient(client, url) for _ in range(count)]
    client.close()


OF_TASKS = {
    "own_http": own_http,
    "own_grpc": own_grpc,
    "native_http": native_http,
    "rivetq": rivetq,
    "epochqueue": epochqueue,
    "web_socket": web_socket,
    "grpc_unary": grpc_unary,
    "grpc_stream": grpc_stream,
    "pipelined": pipelined,
}
OF_THREADS = {"greenstalk": greenstalk_threads, "boto3": boto3_threads}
