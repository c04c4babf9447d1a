"""Replies of unknown length: in chunks, no faster than the client reads, ended by the server."""

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.server.call import Answer, Call
from penstock.server.replies import Reply
from penstock.server.routes import Route, RouteTable
from penstock.server.streamed_reply import MOST_STREAMS, StreamedReply, stream
from tests.server.running import RunningServer

REQUEST = b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n"


class Streams:
    """A server with one route, `/stream`, and what happens there."""

    def __init__(self, running: RunningServer) -> None:
        self.running = running
        self.produce: Callable[[StreamedReply], object]
        self.sent_bytes = 0
        routes = RouteTable([Route("GET", "/stream", self._answer, needs_key=False)])
        running.server.service.routes = routes

    def _answer(self, call: Call) -> Answer:
        return stream(call, Reply(b"", 200, "text/plain"), self._produce)

    async def _produce(self, reply: StreamedReply) -> None:
        await self.produce(reply)  # type: ignore[misc]

    async def two_parts(self, reply: StreamedReply) -> None:
        await reply.send(b"one\n")
        await reply.send(b"two\n")

    async def endless(self, reply: StreamedReply) -> None:
        while True:
            await reply.send(b"x" * 65536)
            self.sent_bytes += 65536

    async def silent(self, reply: StreamedReply) -> None:
        await reply.send(b"hello\n")
        await reply.ended.wait()

    async def broken(self, reply: StreamedReply) -> None:
        await reply.send(b"one\n")
        raise RuntimeError("planned")


def received_from(running: RunningServer, meanwhile: Callable[[], None]) -> bytes:
    """Send a request, do something, and return all that is received until the connection closes."""
    received = b""
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as connection:
        connection.sendall(REQUEST)
        meanwhile()
        while part := connection.recv(65536):
            received += part
    return received


@pytest.fixture
def running(tmp_path: Path) -> RunningServer:
    return RunningServer(tmp_path / "data", idle_timeout_s=0.4)


def test_the_parts_arrive_in_chunks_and_the_connection_closes(running: RunningServer) -> None:
    with running:
        streams = Streams(running)
        streams.produce = streams.two_parts
        with running.client() as http:
            answer = http.get("/stream")
        assert (answer.status_code, answer.text) == (200, "one\ntwo\n")
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.headers["connection"] == "close"
        assert "content-length" not in answer.headers


def test_a_reply_that_fails_has_no_end(running: RunningServer) -> None:
    with running:
        streams = Streams(running)
        streams.produce = streams.broken
        received = received_from(running, lambda: None)
        assert received.endswith(b"4\r\none\n\r\n")  # no last chunk: something is missing


def test_a_head_request_gets_no_body(running: RunningServer) -> None:
    with running:
        streams = Streams(running)
        streams.produce = streams.endless
        with running.client() as http:
            assert http.head("/stream").status_code == 200
        assert streams.sent_bytes == 0


def test_a_client_that_does_not_read_is_dropped_and_costs_one_buffer(
    running: RunningServer,
) -> None:
    with running:
        streams = Streams(running)
        streams.produce = streams.endless
        service = running.server.service
        with running.wire(receive_buffer_bytes=4096) as wire:
            wire.send(REQUEST)
            running.until(lambda: service.held.bytes > 0)  # the buffer is full, and counts
            running.until(lambda: not service.streamed_replies)  # by idle_timeout_s
        assert service.held.bytes == 0
        assert streams.sent_bytes < 16 << 20


def test_a_client_that_goes_ends_the_reply(running: RunningServer) -> None:
    with running:
        streams = Streams(running)
        streams.produce = streams.silent
        service = running.server.service
        with running.wire() as wire:
            wire.send(REQUEST)
            running.until(lambda: service.streamed_replies == 1)
        running.until(lambda: not service.streamed_replies and not service.tasks)


def test_a_reply_to_a_client_that_is_gone_does_not_begin(running: RunningServer) -> None:
    async def answer_later(call: Call) -> Answer:
        while call.connection in service.connections:
            await asyncio.sleep(0)
        return stream(call, Reply(b"", 200, "text/plain"), streams.silent)

    with running:
        streams = Streams(running)
        service = running.server.service
        service.routes = RouteTable([Route("GET", "/stream", answer_later, needs_key=False)])
        with running.wire() as wire:
            wire.send(REQUEST)
            running.until(lambda: bool(service.tasks))
            reset = struct.pack("ii", 1, 0)
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        running.until(lambda: not service.tasks)
        assert (service.streamed_replies, len(service.connections)) == (0, 0)


def test_a_server_that_stops_ends_the_reply_at_once(running: RunningServer) -> None:
    with running:
        streams = Streams(running)
        streams.produce = streams.silent
        service = running.server.service

        def stop() -> None:
            running.until(lambda: service.streamed_replies == 1)
            running.stop()

        assert b"hello" in received_from(running, stop)


def test_the_number_of_streamed_replies_is_limited(running: RunningServer) -> None:
    with running:
        streams = Streams(running)
        streams.produce = streams.silent
        running.server.service.streamed_replies = MOST_STREAMS
        with running.client() as http:
            refused = http.get("/stream")
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        running.server.service.streamed_replies = 0
