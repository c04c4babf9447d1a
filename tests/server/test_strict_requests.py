"""Requests that other servers may read differently are refused, and overhead is limited."""

import json
from collections.abc import Iterator

import pytest

from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Wire]:
    with server.wire() as wire:
        yield wire


@pytest.mark.parametrize(
    "line",
    [
        b"GET  /livez HTTP/1.1",
        b"GET /livez  HTTP/1.1",
        b"GET   /livez   HTTP/1.1",
        b"GET\t/livez HTTP/1.1",
        b" GET /livez HTTP/1.1",
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_request_line_has_single_spaces(
    server: RunningServer, wire: Wire, line: bytes, at_once: bool
) -> None:
    data = line + b"\r\nHost: t\r\n\r\n"
    if at_once:
        wire.send(data)
    else:
        _send_in_bytes(server, wire, data)
    assert wire.answer().status == 400
    assert wire.is_closed_by_server()


@pytest.mark.parametrize(
    "more", [b"X: GET /livez HTTP/\r\n\r\n", b"\r\nGET /livez HTTP/1.1\r\nHost: t\r\n\r\n"]
)
@pytest.mark.parametrize("cut", [0, 5, 30])
def test_a_right_request_line_elsewhere_makes_no_difference(
    server: RunningServer, wire: Wire, more: bytes, cut: int
) -> None:
    data = b"\r\nGET  /livez HTTP/1.1\r\nHost: t\r\n" + more
    if cut:
        wire.send(data[:cut])
        server.until(lambda: True)
    wire.send(data[cut:])
    assert wire.answer().status == 400
    assert wire.is_closed_by_server()


_GET = b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n"
_LONG = (
    b"POST /livez HTTP/1.1\r\nHost: t\r\nContent-Length: 27\r\n\r\n{  }GET /livez HTTP/1.1\r\n\r\n"
)
_CHUNKS = (
    b"POST /livez HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"17\r\nGET /livez HTTP/1.1\r\n\r\n\r\n0\r\nX: y  z\r\n\r\n"
)
_IGNORED = b"GET /livez HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"


@pytest.mark.parametrize("before", [_GET, _LONG, _CHUNKS, _IGNORED, _GET + b"\r\n", _LONG + _GET])
@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_a_pipelined_request_line_has_single_spaces(
    server: RunningServer, wire: Wire, before: bytes, size: int
) -> None:
    """Even if the right line is in the body before it, or in its own headers."""
    wrong = b"GET  /livez HTTP/1.1\r\nHost: t\r\nX: GET /livez HTTP/1.1\r\n\r\n"
    _send_in_bytes(server, wire, before + _GET + wrong + _GET, size)
    statuses = [wire.answer().status for _ in range(before.count(b"Host") + 2)]
    assert statuses[-2:] == [200, 400]
    assert wire.is_closed_by_server()


@pytest.mark.parametrize("before", [_GET, _LONG, _CHUNKS, _IGNORED, _GET + b"\r\n"])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_two_spaces_elsewhere_are_no_problem(
    server: RunningServer, wire: Wire, before: bytes, size: int
) -> None:
    right = b"GET /livez HTTP/1.1\r\nHost: t\r\nX: a  b\r\n\r\n"
    _send_in_bytes(server, wire, before + right + before + right, size)
    statuses = [wire.answer().status for _ in range(4)]
    assert statuses[1] == statuses[3] == 200
    assert statuses[0] == statuses[2] != 400


@pytest.mark.parametrize(
    ("url", "after", "kind"),
    [
        (queue_path("q", "messages"), "/v1/queues", "application/problem+json"),
        ("/v1/queues/q/enqueue", "/livez", "application/json"),
    ],
)
def test_an_error_has_the_format_of_its_own_request(
    wire: Wire, url: str, after: str, kind: str
) -> None:
    wire.send(
        f"POST {url} HTTP/1.1\r\nHost: t\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
        f"GET {after} HTTP/1.1\r\nHost: t\r\n\r\n".encode()
    )
    answer = wire.answer()
    assert (answer.status, answer.headers["content-type"]) == (415, kind)
    assert wire.is_closed_by_server()


def test_http_1_0_gets_no_100_continue(wire: Wire) -> None:
    head = f"POST {queue_path('q', 'messages')} HTTP/1.0\r\nExpect: 100-continue\r\n"
    wire.send(f"{head}Content-Type: text/plain\r\nContent-Length: 1\r\n\r\n".encode())
    wire.send(b"x")
    assert wire.answer().status == 201


def _send_in_bytes(server: RunningServer, wire: Wire, data: bytes, size: int = 1) -> None:
    """Send so many bytes at a time; 0: all at once."""
    size = size or len(data)
    for at in range(0, len(data), size):
        try:
            wire.send(data[at : at + size])
        except OSError:
            return  # it was refused
        server.until(lambda: True)


def test_two_spaces_elsewhere_are_no_error(wire: Wire) -> None:
    body = b'{"payload":  "a  b GET  /livez HTTP/1.1"}'
    for _ in range(2):
        wire.request(
            "POST",
            queue_path("q", "messages"),
            body,
            "X-Two:  a  b",
            "Content-Type: application/json",
        )
    assert [wire.answer().status, wire.answer().status] == [201, 201]


@pytest.mark.parametrize(
    "host",
    [
        "a/b",
        "http://a",
        "a b",
        "a\x01b",
        "a\x7f",
        "a,b",
        "a@b",
        "a?b",
        "a#b",
        "a:port",
        "a:1:2",
        "[::1",
        "::1",
        "a\\b",
        "\xe4.example",
        "x" * 300,
    ],
)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_odd_host_is_refused(wire: Wire, host: str, version: str) -> None:
    wire.send(f"GET /livez HTTP/{version}\r\nHost: {host}\r\n\r\n".encode("latin-1"))
    assert wire.answer().status == 400
    assert wire.is_closed_by_server()


@pytest.mark.parametrize("url", ["/livez#", "/livez?#a", "/#/livez", "http://t/livez#a", "#", "*#"])
def test_a_fragment_is_refused(wire: Wire, url: str) -> None:
    wire.send(f"GET {url} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
    assert wire.answer().status == 400


@pytest.mark.parametrize(
    "host", ["a", "a.example:80", "[::1]", "[::1]:8080", "A-b_c.d", "1.2.3.4", ""]
)
def test_usual_hosts_are_accepted(wire: Wire, host: str) -> None:
    wire.send(f"GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert wire.answer().status == 200


@pytest.mark.parametrize("overhead", [b"5;" + b"x" * 4000, b"0\r\nX: " + b"x" * 4000])
def test_chunk_extensions_and_trailers_that_do_not_end_are_refused(
    server: RunningServer, wire: Wire, overhead: bytes
) -> None:
    path = queue_path("q", "messages")
    wire.request("POST", path, b"", "Transfer-Encoding: chunked", length=False)
    wire.send(overhead)
    try:
        for _ in range(40):
            wire.send(b"x" * 4000)
    except OSError:
        pass  # it was refused
    assert wire.answer().status == 431
    server.until(lambda: not server.server.service.held.bytes)


def test_many_small_chunks_are_no_error(wire: Wire) -> None:
    body = json.dumps({"payload": "x" * 50_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    headers = ("Transfer-Encoding: chunked", "Content-Type: application/json")
    path = queue_path("q", "messages")
    wire.request("POST", path, b"", *headers, length=False)
    wire.send(chunks + b"0\r\n\r\n")
    assert wire.answer().status == 201


@pytest.mark.parametrize("count", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("sync", ["never", "always"])
def test_a_websocket_behind_pipelined_requests_is_answered_in_order(
    server: RunningServer, wire: Wire, queue: str, count: int, sync: str
) -> None:
    with server.client() as http:
        http.put(queue_path(queue), json={"sync": sync, "min_free_bytes": 0})
    request = b'{"payload": 1}'
    one = (
        f"POST {queue_path(queue, 'messages')} HTTP/1.1\r\nHost: t\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(request)}\r\n\r\n"
    ).encode() + request
    handshake = (
        f"GET {queue_path(queue, 'stream')} HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()
    ping = bytes([0x89, 0x80, 0, 0, 0, 0])
    wire.send(one * count + handshake + ping)
    received = b""
    while b" 101 " not in received or bytes([0x8A, 0]) not in received.split(b" 101 ")[1]:
        received += wire.socket.recv(1 << 16)  # up to the pong, among messages
    replies, _, _ = received.partition(b" 101 ")
    assert replies.count(b"HTTP/1.1 201 ") == replies.count(b"HTTP/1.1 ") == count
