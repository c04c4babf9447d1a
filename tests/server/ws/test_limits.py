"""What a WebSocket client can hold, and what it cannot upset."""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.server.ws.native import NativeFrames
from penstock.server.ws.protocol import WebSocketProtocol
from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire
from tests.server.ws.client import opened, stream_path

Client = httpx2.Client
HANDSHAKE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


def test_credit_is_in_bytes_as_well(tmp_path: Path) -> None:
    broker = {"max_unsettled_bytes": 250_000}
    with RunningServer(tmp_path / "data", broker=broker) as server, server.client() as http:
        for _ in range(6):
            http.post(queue_path("q", "messages"), content=b"x" * 100_000)
        with opened(server, stream_path("q", "?credit=100")) as stream:
            first = stream.messages(3)  # the third goes beyond, and is the last
            stats = http.get(queue_path("q")).json()["stats"]
            assert (stats["ready"], stats["leased"]) == (3, 3)
            for one in first:
                assert stream.settle(type="ack", receipt=one["receipt"])["status"] == "done"
            assert len(stream.messages(1)) == 1


def test_a_stream_that_is_not_read_holds_little(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", ws_ping_s=60) as server, server.client() as http:
        service = server.server.service
        for _ in range(20):
            http.post(queue_path("q", "messages"), content=b"x" * (4 << 20))
        with server.wire() as wire:
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.request("GET", stream_path("q", "?credit=10000"), b"", *HANDSHAKE, length=False)
            server.until(lambda: service.held.bytes > 4 << 20)
            assert service.held.bytes <= 32 << 20
            assert http.get(queue_path("q")).json()["stats"]["ready"] > 0
        server.until(lambda: service.held.bytes == 0)


@pytest.mark.parametrize("headers", [("Content-Length: 5",), ("Transfer-Encoding: chunked",)])
def test_a_handshake_with_a_body_is_refused(
    server: RunningServer, queue: str, headers: tuple[str, ...]
) -> None:
    with server.wire() as wire:
        wire.request("GET", stream_path(queue), b"", *HANDSHAKE, *headers, length=False)
        answer = wire.answer()
        assert (answer.status, answer.code) == (400, "bad_request")
        assert wire.is_closed_by_server()


def _frame(opcode: int, data: bytes) -> bytes:
    assert len(data) < 126
    return bytes([0x80 | opcode, 0x80 | len(data), 0, 0, 0, 0]) + data


def _shake_hands(wire: Wire, queue: str) -> None:
    wire.request("GET", stream_path(queue), b"", *HANDSHAKE, length=False)
    assert wire.answer().status == 101


def test_frames_sent_with_the_handshake_are_read_after_it(
    server: RunningServer, http: Client, queue: str
) -> None:
    http.put(queue_path(queue))
    handshake = "\r\n".join([f"GET {stream_path(queue)} HTTP/1.1", "Host: t", *HANDSHAKE, "", ""])
    frames = _frame(9, b"early") + _frame(1, b"nonsense") + _frame(8, b"\x03\xe8")
    for at in (len(frames), 3):
        with server.wire() as wire:
            wire.send(handshake.encode() + frames[:at])
            received = wire.socket.recv(4096)  # the reply to the handshake
            wire.send(frames[at:])
            received += wire.socket.makefile("rb").read()
        head, sent = received.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 101 ")
        assert sent.startswith(b"\x8a\x05early")
        assert sent.endswith(b"\x88\x02\x03\xe8")


def test_a_text_that_is_not_utf8_ends_the_stream_and_logs_nothing(
    server: RunningServer, http: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    http.put(queue_path(queue))
    with server.wire() as wire, caplog.at_level(logging.WARNING):
        _shake_hands(wire, queue)
        wire.send(_frame(1, b"\xff\xfe"))
        close = wire.socket.recv(4)
        assert close[0] == 0x88
        assert int.from_bytes(close[2:4], "big") == 1007
        wire.socket.shutdown(socket.SHUT_WR)
    assert [record.message for record in caplog.records] == []


def test_pings_of_a_client_that_does_not_read_pile_up_nowhere(
    server: RunningServer, http: Client, queue: str
) -> None:
    http.put(queue_path(queue))
    service = server.server.service
    with server.wire() as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        _shake_hands(wire, queue)
        pings = _frame(9, bytes(125)) * 1000
        for _ in range(80):  # 10 MB
            wire.send(pings)
        server.until(lambda: service.held.bytes > 0)
        assert service.held.bytes < 1 << 20
    server.until(lambda: service.held.bytes == 0)


def test_a_message_has_a_limited_number_of_fragments(
    server: RunningServer, http: Client, queue: str
) -> None:
    http.put(queue_path(queue))
    begin, go_on = b"\x01\x80\0\0\0\0", b"\x00\x80\0\0\0\0"
    with server.wire() as wire:
        _shake_hands(wire, queue)
        wire.send(begin + go_on * 10_001)
        close = wire.socket.recv(4)
        assert close[0] == 0x88
        assert int.from_bytes(close[2:4], "big") == 1009
        wire.socket.shutdown(socket.SHUT_WR)
    with server.wire() as wire:
        _shake_hands(wire, queue)
        wire.send(begin + go_on * 9_998 + _frame(0, b"x"))
        assert wire.socket.recv(4)[0] == 0x81  # an error frame: this is no JSON


@pytest.mark.parametrize(
    ("frame", "of", "handler"),
    [
        (_frame(9, b""), WebSocketProtocol, "handle_ping"),
        (_frame(1, b""), NativeFrames, "handle"),
    ],
    ids=["pings", "texts"],
)
def test_many_small_frames_do_not_hold_up_others(
    server: RunningServer,
    http: Client,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    frame: bytes,
    of: type,
    handler: str,
) -> None:
    handled = 0
    handle = getattr(of, handler)

    def counting(*args: Any) -> Any:
        nonlocal handled
        handled += 1
        return handle(*args)

    async def flood(wire: Wire, count: int) -> int:
        wire.send(frame * count)  # the loop does nothing meanwhile, so it arrives at once
        most = seen = 0
        while seen < count:
            await asyncio.sleep(0)
            most, seen = max(most, handled - seen), handled
        return most

    monkeypatch.setattr(of, handler, counting)
    http.put(queue_path(queue))
    with server.wire() as wire:
        _shake_hands(wire, queue)
        assert server.call(flood(wire, 10_000)) <= 1000
