"""Malformed frames, oversized and half-sent requests, floods: others are served, memory bounded."""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, repeat
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker import QueueName
from penstock.broker.access import INSIDE
from penstock.errors import PenstockError
from penstock.operations import GetStats
from penstock.protobuf.descriptors import METHODS
from penstock.protobuf.messages import new_messages
from penstock.protobuf.operations import OPERATIONS, operation_of, request_of
from penstock.server.grpc.call import parse
from penstock.server.grpc.consuming import consume
from penstock.server.grpc.leasing import settlements_of
from tests.server.grpc.calling import RIVETQ_METHODS, Caller, address_of
from tests.server.grpc.fake_context import FakeContext, run_with
from tests.server.running import RunningServer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
PUBLISH = METHODS["Publish"].path


def connect(server: RunningServer) -> socket.socket:
    host, _, port = address_of(server).rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def is_closed(one: socket.socket) -> bool:
    """Return whether the server closes the connection; read what it sends before."""
    try:
        while one.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def headers_frame(server: RunningServer, path: str, *, flags: int = 4) -> bytes:
    """Return the frame that opens a call, with literal headers."""
    found = b"\x83\x86"  # :method POST, :scheme http
    pairs = [
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    for name, value in pairs:
        found += b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return frame(1, flags, 1, found)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with short time limits and small sizes."""
    data: Path = tmp_path_factory.mktemp("strict") / "data"
    with RunningServer(
        data,
        grpc="127.0.0.1:0",
        header_timeout_s=0.3,
        body_timeout_s=0.3,
        idle_timeout_s=1.0,
        grpc_max_message_bytes=100_000,
        grpc_max_calls=20,
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def _others_are_served(strict: RunningServer) -> Iterator[None]:
    yield
    with Caller(address_of(strict)) as caller:
        caller.publish("others", b"x")
    assert strict.server.service.held.bytes == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 1000,
        PREFACE + b"\xff" * 9000,
        PREFACE + SETTINGS + frame(0, 1, 7, b"data of no stream" * 10) + b"\xff" * 9000,
        PREFACE + SETTINGS + frame(9, 4, 1, b"continuation of nothing"),
        PREFACE + SETTINGS + frame(1, 4, 1, b"\xff" * 50),
        PREFACE + SETTINGS + frame(8, 0, 0, b"\x00\x00\x00\x00"),
        PREFACE + SETTINGS + frame(4, 0, 0, b"12345"),
    ],
    ids=["http1", "zeros", "ones", "data", "continuation", "hpack", "window", "settings"],
)
def test_malformed_frames_end_the_connection(strict: RunningServer, sent: bytes) -> None:
    with connect(strict) as one:
        one.sendall(sent)
        assert is_closed(one)


def test_a_connection_that_says_nothing_is_closed(strict: RunningServer) -> None:
    with connect(strict) as one:
        assert is_closed(one)


def test_a_half_sent_preface_is_not_waited_for(strict: RunningServer) -> None:
    with connect(strict) as one:
        one.sendall(PREFACE[:10])
        assert is_closed(one)


def test_a_request_that_never_arrives_ends_the_call(strict: RunningServer) -> None:
    with connect(strict) as one:
        message = b"\x00" + struct.pack(">I", 50_000) + b"x" * 100  # 100 of 50,000 bytes
        opened = headers_frame(strict, PUBLISH) + frame(0, 0, 1, message)
        one.sendall(PREFACE + SETTINGS + opened)
        received = b""
        while b"request_too_slow" not in received:
            more = one.recv(65536)
            assert more, received
            received += more


def test_a_call_without_a_request(strict: RunningServer) -> None:
    with connect(strict) as one:
        one.sendall(PREFACE + SETTINGS + headers_frame(strict, PUBLISH, flags=5))
        received = b""
        while b"invalid_input" not in received:
            more = one.recv(65536)
            assert more, received
            received += more


def test_an_oversized_request_is_refused(strict: RunningServer) -> None:
    with Caller(address_of(strict)) as caller:
        caller.publish("q", b"x" * 99_000)
        with pytest.raises(grpc.RpcError) as caught:
            caller.publish("q", b"x" * 100_001)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caller.ready("q") == (1, 0)


def test_a_compressed_request_is_refused_before_it_is_unpacked(strict: RunningServer) -> None:
    method = METHODS["Publish"]
    request = method.request(queue="bomb", messages=[{"payload": b"\0" * 90_000}])
    raw = request.SerializeToString()
    with grpc.insecure_channel(address_of(strict)) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(method.path)(raw, compression=grpc.Compression.Gzip, timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("name", ["Publish", "Lease", "Settle", "Browse", "Consume"])
def test_bytes_that_are_no_request(strict: RunningServer, name: str) -> None:
    with grpc.insecure_channel(address_of(strict)) as channel:
        for raw in (b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x01\xff"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(METHODS[name].path)(raw, timeout=30)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, raw


def test_metadata_that_is_too_large_is_refused(strict: RunningServer) -> None:
    with grpc.insecure_channel(address_of(strict)) as channel:
        call = channel.unary_unary(METHODS["ListQueues"].path)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=[("x-many", "v" * 20_000)], timeout=30)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_more_calls_than_the_limit_are_refused_until_others_end(strict: RunningServer) -> None:
    waiting = strict.server.broker.waiting
    with Caller(address_of(strict), own=True) as caller, Caller(address_of(strict)) as more:
        calls = [caller.future("Lease", queue="flood", wait_s=30) for _ in range(20)]
        strict.until(lambda: len(waiting) == 20)
        with pytest.raises(grpc.RpcError) as caught:
            more.publish("flood", b"x")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()
        strict.until(lambda: len(waiting) == 0)


def test_calls_that_come_at_once_are_all_taken(tmp_path: Path) -> None:
    """By itself, gRPC drops some of more than 1,000 that the server has not looked at yet."""
    is_held, go_on = Event(), Event()

    async def hold() -> None:
        is_held.set()
        go_on.wait(30)

    with (
        RunningServer(tmp_path / "data", grpc="127.0.0.1:0") as server,
        Caller(address_of(server), own=True) as caller,
        ThreadPoolExecutor(1) as pool,
    ):
        caller.publish("flood", b"x")
        pool.submit(server.call, hold())
        assert is_held.wait(30)
        calls = [
            caller.future("Publish", queue="flood", messages=[{"payload": b"x"}])
            for _ in range(1500)
        ]
        go_on.set()
        assert Counter(call.code() for call in calls) == {grpc.StatusCode.OK: 1500}
        assert caller.ready("flood") == (1501, 0)


def open_unread(server: RunningServer, **start: Any) -> socket.socket:
    """Open a stream of a client that reads nothing, and gives no more window than 64 KiB."""
    one = connect(server)
    request = METHODS["Consume"].request(start=start).SerializeToString()
    message = b"\x00" + struct.pack(">I", len(request)) + request
    opened = headers_frame(server, METHODS["Consume"].path)
    one.sendall(PREFACE + SETTINGS + opened + frame(0, 0, 1, message))
    return one


def fill(caller: Caller, queue: str, count: int, size: int) -> None:
    caller.call("CreateQueue", queue=queue)
    for _ in range(count):
        caller.publish(queue, b"x" * size)


def test_a_reader_that_stops_reading_holds_one_response(tmp_path: Path) -> None:
    """Its stream ends after `idle_timeout_s`, and its messages are released."""
    with RunningServer(tmp_path / "data", grpc="127.0.0.1:0", idle_timeout_s=1.0) as server:
        held = server.server.service.held
        with Caller(address_of(server)) as caller:
            fill(caller, "slow", 8, 1_000_000)
            with open_unread(server, queue="slow", credit={"messages": 8}):
                server.until(lambda: held.bytes > 1_000_000)
                assert held.bytes < 3_000_000
                found: list[Any] = []
                while len(found) < 8:
                    found += caller.lease("slow", max=8, wait_s=20)
                assert {one.attempt for one in found} == {1}


def test_a_reader_that_stops_reading_leases_no_more_than_it_is_sent(tmp_path: Path) -> None:
    """What it could not take anyway stays ready for others."""
    with RunningServer(tmp_path / "data", grpc="127.0.0.1:0") as server:
        held = server.server.service.held
        with Caller(address_of(server)) as caller:
            fill(caller, "slow", 20, 200_000)
            with open_unread(server, queue="slow", credit={"messages": 100}):
                server.until(lambda: held.bytes > 100_000)
                assert caller.ready("slow") == (18, 2)  # at most 512 KiB
                assert 800_000 <= held.bytes < 850_000  # twice: gRPC has a copy


def test_the_reason_of_an_end_is_not_lost_while_a_message_is_being_sent(tmp_path: Path) -> None:
    """The client reads nothing when the stream ends, and everything after it."""
    with RunningServer(tmp_path / "data", grpc="127.0.0.1:0") as server:
        held = server.server.service.held
        with Caller(address_of(server)) as caller:
            fill(caller, "slow", 1, 1_000_000)
        with open_unread(server, queue="slow") as one:
            server.until(lambda: held.bytes > 2_000_000)
            one.sendall(frame(0, 0, 1, b"\x00\x00\x00\x00\x01\xff"))  # no request
            server.until(lambda: held.bytes < 1_100_000)  # gRPC keeps its copy
            more = struct.pack(">I", 2_000_000)
            one.sendall(frame(8, 0, 0, more) + frame(8, 0, 1, more))
            received = b""
            while b"invalid_input" not in received:
                part = one.recv(65536)
                assert part, received[-1000:]
                received += part
            assert received.count(b"x") > 900_000
            server.until(lambda: held.bytes == 0)


def test_an_answer_that_is_not_read_counts_until_its_call_is_over(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", grpc="127.0.0.1:0") as server:
        held = server.server.service.held
        with Caller(address_of(server)) as caller:
            fill(caller, "slow", 1, 1_000_000)
        request = METHODS["Browse"].request(queue="slow").SerializeToString()
        message = b"\x00" + struct.pack(">I", len(request)) + request
        with connect(server) as one:
            opened = headers_frame(server, METHODS["Browse"].path)
            one.sendall(PREFACE + SETTINGS + opened + frame(0, 1, 1, message))
            server.until(lambda: held.bytes > 2_000_000)
        server.until(lambda: held.bytes == 0)


def test_readers_that_stop_reading_hold_no_more_than_max_buffered_bytes(tmp_path: Path) -> None:
    """Together, and what gRPC keeps for them counts."""
    queue = QueueName.checked("default", "slow")

    async def fill_at_once() -> None:
        await server.server.broker.publish(INSIDE, queue, [b"x" * 300_000] * 20)

    async def leased() -> int:
        return (await server.server.broker.run(INSIDE, GetStats(), queue)).leased

    with RunningServer(
        tmp_path / "data", grpc="127.0.0.1:0", max_buffered_bytes=2_000_000
    ) as server:
        held, waiting = server.server.service.held, server.server.broker.waiting
        with Caller(address_of(server)) as caller, ExitStack() as opened:
            caller.call("CreateQueue", queue="slow")
            for _ in range(10):
                opened.enter_context(open_unread(server, queue="slow", credit={"messages": 100}))
            server.until(lambda: len(waiting) == 10)
            server.call(fill_at_once())
            server.until(lambda: held.bytes > 1_800_000 and not waiting)
            assert held.bytes < held.max_bytes
            assert server.call(leased()) == 3  # the others stay ready
            opened.close()
            server.until(lambda: held.bytes == 0)
            found: list[Any] = []
            while len(found) < 20:
                found += caller.lease("slow", max=8, wait_s=20)
            assert {one.attempt for one in found} == {1}


def test_settlements_whose_answers_are_not_read_are_not_taken_without_end(
    strict: RunningServer,
) -> None:
    """A client that settles and reads nothing is no longer read."""
    request = METHODS["Consume"].request
    start = request(start={"queue": "unread"}).SerializeToString()
    settle = request(settle={"release": ["x" * 32] * 900}).SerializeToString()
    held = strict.server.service.held

    async def blocked() -> None:
        await asyncio.Event().wait()

    async def settle_on_and_on() -> tuple[int, int]:
        context = FakeContext(chain([start], repeat(settle)), on_write=blocked)
        calling = asyncio.create_task(run_with(strict, consume, context))
        for _ in range(2000):
            await asyncio.sleep(0)
        found = context.reads, held.bytes
        calling.cancel()
        await asyncio.wait([calling])
        return found

    reads, size = strict.call(settle_on_and_on())
    assert reads == 1 + 11 + 1  # the start, 9,900 receipts, and those that have to wait
    assert size < 12 * 900 * 600


# -- fuzz ------------------------------------------------------------------------------------------

_EVERY = [*METHODS.values(), *RIVETQ_METHODS.values()]


@given(st.sampled_from(_EVERY), st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(method: Any, raw: bytes) -> None:
    """And every request is an operation or refused: no other error."""
    try:
        request = parse(method.request, raw)
        if method.name in OPERATIONS and method.path.startswith("/penstock"):
            operation = operation_of(OPERATIONS[method.name], request)
            request_of(operation)
        elif method.path == METHODS["Publish"].path:
            new_messages(request.messages)
        elif method.path == METHODS["Settle"].path:
            settlements_of(request)
    except PenstockError:
        pass


_numbers = st.integers(-(1 << 63), (1 << 63) - 1)
_values = {
    1: st.floats(),
    3: _numbers,
    4: st.integers(0, (1 << 64) - 1),
    8: st.booleans(),
    9: st.text(max_size=30),
    12: st.binary(max_size=30),
    13: st.integers(0, (1 << 32) - 1),
    5: st.integers(-(1 << 31), (1 << 31) - 1),
}


def _fill_schedule(schedule: Any, data: st.DataObject) -> None:
    schedule.name = data.draw(st.sampled_from(["nightly", "", "a/b"]))
    schedule.message.payload = data.draw(st.binary(max_size=30))
    for field in schedule.DESCRIPTOR.fields:
        if field.type in _values and field.name != "name" and data.draw(st.booleans()):
            setattr(schedule, field.name, data.draw(_values[field.type]))


@settings(max_examples=settings().max_examples // 4)
@given(st.sampled_from(sorted(OPERATIONS)), st.data())
def test_any_request_is_an_operation_that_travels_back_or_is_refused(
    name: str, data: st.DataObject
) -> None:
    request = METHODS[name].request()
    for field in request.DESCRIPTOR.fields:
        if field.name in ("max_rate", "namespace", "queue") or not data.draw(st.booleans()):
            continue
        if field.name == "ids":
            request.ids.extend(data.draw(st.lists(st.text(max_size=30), max_size=3)))
        elif field.name == "schedule":
            _fill_schedule(request.schedule, data)
        else:
            setattr(request, field.name, data.draw(_values[field.type]))
    try:
        operation = operation_of(OPERATIONS[name], request)
    except PenstockError:
        return
    again = operation_of(OPERATIONS[name], request_of(operation)[1])
    assert again == operation
