"""Bad input: requests that do not end. Each has a time limit, which is short in these tests."""

import socket
from collections.abc import Iterator

import pytest

from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire

LIMIT_S = 0.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Impatient."""
    with RunningServer(
        tmp_path_factory.mktemp("slow") / "data",
        header_timeout_s=LIMIT_S,
        body_timeout_s=LIMIT_S,
        idle_timeout_s=LIMIT_S,
    ) as running:
        yield running


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Wire]:
    with server.wire() as connection:
        yield connection
    with server.wire() as another:  # whatever happened, it serves on
        another.request("GET", "/livez")
        assert another.answer().status == 200


PUBLISH = queue_path("orders", "messages")
JSON = "Content-Type: application/json"
HEAD = f"POST {PUBLISH} HTTP/1.1\r\nHost: t\r\n{JSON}\r\n"


def test_half_a_header_is_answered_with_408_and_closed(wire: Wire) -> None:
    wire.send(b"GET /livez HTTP/1.1\r\nHost: te")
    answer = wire.answer()
    assert (answer.status, answer.code) == (408, "request_too_slow")
    assert answer.headers["connection"] == "close"
    assert wire.is_closed_by_server()


def test_headers_that_trickle_in_are_not_given_more_time(server: RunningServer, wire: Wire) -> None:
    """Each byte is progress, but all of them together have one limit."""
    wire.send(b"GET /livez HTTP/1.1\r\nX-Slow: ")
    wire.socket.settimeout(0.02)
    for _ in range(1000):
        try:
            wire.send(b"x")
            if wire.socket.recv(1, 2):  # MSG_PEEK: the answer is there
                break
        except TimeoutError:
            continue
    wire.socket.settimeout(30)
    assert wire.answer().status == 408


def test_half_a_body_is_answered_with_408_and_closed(wire: Wire) -> None:
    wire.send(f"{HEAD}Content-Length: 99\r\n\r\n{{".encode())
    answer = wire.answer()
    assert (answer.status, answer.code) == (408, "request_too_slow")
    assert wire.is_closed_by_server()


def test_half_a_chunked_body_is_answered_with_408_and_closed(wire: Wire) -> None:
    wire.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
    wire.send(b'5\r\n{"pay')
    assert wire.answer().status == 408
    assert wire.is_closed_by_server()


def test_a_connection_without_a_request_is_closed(wire: Wire) -> None:
    assert wire.is_closed_by_server()


def test_an_idle_connection_is_closed_between_requests(wire: Wire) -> None:
    wire.request("GET", "/livez")
    assert wire.answer().status == 200
    assert wire.is_closed_by_server()


def test_a_long_poll_is_not_idle(wire: Wire) -> None:
    wire.json_request("POST", queue_path("patient", "lease"), {"wait_s": 1.2})
    answer = wire.answer()
    assert (answer.status, answer.json) == (200, {"messages": []})


def test_a_client_that_does_not_take_its_answer_is_dropped(server: RunningServer) -> None:
    """Its answers would fill memory; they are kept for as long as an idle connection is."""
    with server.client() as http:
        for _ in range(8):
            http.post(PUBLISH, content=b"x" * (1 << 18), headers={"content-type": "text/plain"})
    with server.wire() as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(8):
            wire.request("GET", f"{PUBLISH}?limit=8")
        server.until(lambda: not len(server.server.service.connections))
