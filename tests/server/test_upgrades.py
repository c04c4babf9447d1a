"""An Upgrade that is not to WebSocket is ignored: the request is carried out, body included."""

import base64
import json
from collections.abc import Callable, Iterator

import pytest

from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire

H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ")
UPGRADES = {
    "h2c": H2C,
    "unknown": ("Upgrade: foo", "Connection: upgrade"),
    "several": ("Connection: keep-alive, Upgrade", "Upgrade: websocket, h2c"),
    "two connection headers": ("Upgrade: h2c", "Connection: Upgrade", "Connection: keep-alive"),
    "two upgrades": ("Upgrade: websocket", "Upgrade: h2c", "Connection: Upgrade"),
}
JSON = "Content-Type: application/json"


def with_length(method: str, path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: t", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(method: str, path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: t", *headers, "Transfer-Encoding: chunked"]
    halves = [body[: len(body) // 2], body[len(body) // 2 :]]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(half), half) for half in halves if half)
    return "\r\n".join([*lines, "", ""]).encode() + chunks + b"0\r\nX-Trailer: 1\r\n\r\n"


def in_one(data: bytes) -> list[bytes]:
    return [data]


def behind_the_head(data: bytes) -> list[bytes]:
    end = data.index(b"\r\n\r\n") + 4
    return [data[:end], data[end:]]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Wire]:
    with server.wire() as wire:
        yield wire


def leased_payloads(wire: Wire, queue: str, count: int) -> list[bytes]:
    """What is in the queue, as bytes; over a request without an upgrade."""
    wire.request("POST", queue_path(queue, "lease?payload=b64"), b'{"max": %d}' % count, JSON)
    messages = wire.answer().json["messages"]
    return [base64.b64decode(message["payload_b64"]) for message in messages]


PUBLISHES = {
    "json": ("/api/v1/namespaces/default/queues/{}/messages", JSON, b'{"payload": "kept"}'),
    "octets": (
        "/api/v1/namespaces/default/queues/{}/messages",
        "Content-Type: application/octet-stream",
        b'"kept"',
    ),
    "rivetq": ("/v1/queues/{}/enqueue", JSON, b'{"payload": "kept"}'),
    "epochqueue": (
        "/namespaces/default/queues/{}/messages",
        JSON,
        b'{"body": "%s"}' % base64.b64encode(b'"kept"'),
    ),
}


@pytest.mark.parametrize("split", [in_one, behind_the_head, byte_by_byte])
@pytest.mark.parametrize("framed", [with_length, chunked])
@pytest.mark.parametrize("publish", PUBLISHES)
def test_a_publish_keeps_its_body(
    server: RunningServer,
    wire: Wire,
    queue: str,
    publish: str,
    framed: Callable[..., bytes],
    split: Callable[[bytes], list[bytes]],
) -> None:
    path, content_type, body = PUBLISHES[publish]
    for _ in range(2):  # the second time, the head may be a known one
        data = framed("POST", path.format(queue), body, content_type, *H2C)
        for piece in split(data):
            wire.send(piece)
        assert wire.answer().status in (200, 201)
    assert leased_payloads(wire, queue, 9) == [b'"kept"'] * 2


@pytest.mark.parametrize("framed", [with_length, chunked])
@pytest.mark.parametrize("upgrade", UPGRADES)
def test_any_upgrade_but_a_websocket_is_ignored(
    server: RunningServer, wire: Wire, queue: str, upgrade: str, framed: Callable[..., bytes]
) -> None:
    path, body = queue_path(queue, "messages"), b'{"payload": "kept"}'
    wire.send(framed("POST", path, body, JSON, *UPGRADES[upgrade]))
    assert wire.answer().status == 201
    assert leased_payloads(wire, queue, 9) == [b'"kept"']


@pytest.mark.parametrize("framed", [with_length, chunked])
@pytest.mark.parametrize("split", [in_one, byte_by_byte])
def test_pipelined_requests_behind_an_upgrade_are_all_answered(
    server: RunningServer,
    wire: Wire,
    queue: str,
    framed: Callable[..., bytes],
    split: Callable[[bytes], list[bytes]],
) -> None:
    path = queue_path(queue, "messages")
    requests = [
        framed("POST", path, b'{"payload": 0}', JSON, *H2C),
        framed("POST", path, b"1", "Content-Type: text/plain", *H2C),
        b"GET /livez HTTP/1.1\r\nHost: t\r\nUpgrade: foo\r\nConnection: Upgrade\r\n\r\n",
        framed("POST", path, b'{"payload": 2}', JSON),
        framed("POST", path, b'{"payload": 3}', JSON, *H2C),
        with_length("POST", path, b"", JSON, *H2C),
        framed("POST", path, b'{"payload": 4}', JSON),
    ]
    for piece in split(b"".join(requests)):
        wire.send(piece)
    statuses = [wire.answer().status for _ in requests]
    assert statuses == [201, 201, 200, 201, 201, 400, 201]
    assert leased_payloads(wire, queue, 9) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("framed", [with_length, chunked])
def test_a_discard_discards_what_it_names(
    server: RunningServer, wire: Wire, queue: str, framed: Callable[..., bytes]
) -> None:
    doomed = [{"payload": n, "max_attempts": 1} for n in range(3)]
    wire.json_request("POST", queue_path(queue, "messages"), doomed)
    wire.answer()
    wire.json_request("POST", queue_path(queue, "lease"), {"max": 3})
    receipts = [message["receipt"] for message in wire.answer().json["messages"]]
    wire.json_request("POST", "/api/v1/settle", {"nack": [{"receipt": one} for one in receipts]})
    wire.answer()
    wire.request("GET", queue_path(queue, "dead"))
    ids = [letter["id"] for letter in wire.answer().json["messages"]]
    assert len(ids) == 3
    body = json.dumps({"ids": ids[1:2]}).encode()
    wire.send(framed("POST", queue_path(queue, "discard"), body, JSON, *H2C))
    assert wire.answer().json == {"discarded": 1}
    wire.request("GET", queue_path(queue, "dead"))
    assert [letter["id"] for letter in wire.answer().json["messages"]] == [ids[0], ids[2]]


def test_a_large_body_behind_an_upgrade_is_whole(
    server: RunningServer, wire: Wire, queue: str
) -> None:
    body = bytes(range(256)) * 2048
    octets = "Content-Type: application/octet-stream"
    wire.send(with_length("POST", queue_path(queue, "messages"), body, octets, *H2C))
    assert wire.answer().status == 201
    assert leased_payloads(wire, queue, 1) == [body]


def test_the_limits_hold_behind_an_upgrade(server: RunningServer, queue: str) -> None:
    most = server.settings.max_body_bytes
    path = queue_path(queue, "messages")
    with server.wire() as wire:
        wire.request("POST", path, b"", *H2C, f"Content-Length: {most + 1}", length=False)
        assert (wire.answer().status, wire.is_closed_by_server()) == (413, True)
    with server.wire() as wire:
        wire.request("POST", path, b"zz\r\n", *H2C, "Transfer-Encoding: chunked", length=False)
        assert (wire.answer().status, wire.is_closed_by_server()) == (400, True)
    with server.wire() as wire:
        trailers = b"".join(b"T%d: %s\r\n" % (n, b"x" * 1000) for n in range(200))
        wire.request(
            "POST", path, b"0\r\n" + trailers, *H2C, "Transfer-Encoding: chunked", length=False
        )
        assert (wire.answer().status, wire.is_closed_by_server()) == (431, True)


def test_what_is_expected_is_continued_behind_an_upgrade(
    server: RunningServer, wire: Wire, queue: str
) -> None:
    path, body = queue_path(queue, "messages"), b'{"payload": 1}'
    data = with_length("POST", path, body, JSON, "Expect: 100-continue", *H2C)
    wire.send(data[: -len(body)])
    assert wire.answer().status == 100
    wire.send(body)
    assert wire.answer().status == 201


def test_connection_close_is_honoured_behind_an_upgrade(
    server: RunningServer, wire: Wire, queue: str
) -> None:
    close = ("Upgrade: h2c", "Connection: Upgrade, close")
    wire.send(with_length("POST", queue_path(queue, "messages"), b'{"payload": 1}', JSON, *close))
    assert wire.answer().status == 201
    assert wire.is_closed_by_server()
