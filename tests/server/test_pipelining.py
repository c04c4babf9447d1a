"""Keep-alive, pipelining, and clients that go away."""

import json

import httpx2
import pytest

from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire


def request_text(method: str, path: str, body: object = None, *headers: str) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: t", *headers]
    if body is not None:
        lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


def test_pipelined_requests_are_answered_in_order(server: RunningServer, queue: str) -> None:
    """Those that need a task among those that do not."""
    publish, lease = queue_path(queue, "messages"), queue_path(queue, "lease")
    with server.wire() as wire:
        wire.send(
            request_text("POST", publish, {"payload": 1})
            + request_text("GET", "/livez")
            + request_text("POST", publish, [{"payload": 2}, {"payload": 3}])
            + request_text("POST", lease, {"max": 3})
            + request_text("GET", "/nowhere")
            + request_text("POST", publish, {"nope": 1})
            + request_text("GET", queue_path(queue))
        )
        answers = [wire.answer() for _ in range(7)]
    assert [one.status for one in answers] == [201, 200, 201, 200, 404, 400, 200]
    assert [message["payload"] for message in answers[3].json["messages"]] == [1, 2, 3]
    assert answers[6].json["stats"]["leased"] == 3


def test_hundreds_of_pipelined_requests_are_all_answered(server: RunningServer, queue: str) -> None:
    count = 500
    one = request_text("POST", queue_path(queue, "messages"), {"payload_b64": "eA=="})
    with server.wire() as wire:
        wire.send(one * count)
        ids = [wire.answer().json["id"] for _ in range(count)]
    assert ids == sorted(ids)
    assert len(set(ids)) == count


def test_a_request_may_come_byte_by_byte(server: RunningServer, queue: str) -> None:
    with server.wire() as wire:
        for byte in request_text("POST", queue_path(queue, "messages"), {"payload": "slowly"}):
            wire.send(bytes([byte]))
        assert wire.answer().status == 201


def test_chunked_bodies_are_read(server: RunningServer, queue: str) -> None:
    with server.wire() as wire:
        wire.request(
            "POST",
            queue_path(queue, "messages"),
            b'9\r\n{"payload\r\n5;x=y\r\n": 5}\r\n0\r\nX-Trailer: 1\r\n\r\n',
            "Content-Type: application/json",
            "Transfer-Encoding: chunked",
            length=False,
        )
        assert wire.answer().status == 201


def test_connection_close_is_honoured(server: RunningServer, queue: str) -> None:
    for path, body in (("/livez", None), (queue_path(queue, "messages"), {"payload": 1})):
        with server.wire() as wire:
            method = "GET" if body is None else "POST"
            wire.send(request_text(method, path, body, "Connection: close"))
            assert wire.answer().headers["connection"] == "close"
            assert wire.is_closed_by_server()


def test_http_1_0_is_answered_and_closed(server: RunningServer) -> None:
    with server.wire() as wire:
        wire.send(b"GET /livez HTTP/1.0\r\n\r\n")
        assert wire.answer().status == 200
        assert wire.is_closed_by_server()


def test_what_was_asked_before_a_bad_request_is_answered_first(
    server: RunningServer, queue: str
) -> None:
    with server.wire() as wire:
        wire.send(
            request_text("POST", queue_path(queue, "lease"), {"wait_s": 0.05})
            + request_text("GET", "/livez")
            + b"this is not HTTP\r\n\r\n"
        )
        assert [wire.answer().status for _ in range(3)] == [200, 200, 400]
        assert wire.is_closed_by_server()


@pytest.mark.parametrize("content_type", ["application/json", "application/json;charset=x"])
def test_a_client_that_goes_away_while_it_waits_loses_nothing(
    server: RunningServer, queue: str, content_type: str
) -> None:
    """The next client gets the message at its first try."""
    waiting = server.server.broker.waiting
    with server.wire() as gone:
        body = b'{"wait_s": 30}'
        gone.request("POST", queue_path(queue, "lease"), body, f"Content-Type: {content_type}")
        server.until(lambda: len(waiting) == 1)
    server.until(lambda: len(waiting) == 0)
    with server.client() as http:
        http.post(queue_path(queue, "messages"), json={"payload": 1})
        [leased] = http.post(queue_path(queue, "lease"), json={}).json()["messages"]
    assert leased["attempt"] == 1


def test_what_was_leased_for_a_closed_connection_is_given_back(
    server: RunningServer, queue: str
) -> None:
    """The client is gone before its answer is written: no attempt is spent."""
    with server.client() as http:
        http.post(queue_path(queue, "messages"), json={"payload": 1})
        original = server.server.broker.store.direct

        def direct_while_the_client_leaves(*args: object) -> object:
            for connection in list(server.server.service.connections):
                if connection.transport.get_extra_info("peername")[1] == port:
                    connection.transport.close()
            return original(*args)  # type: ignore[arg-type]

        with server.wire() as leaving:
            port = leaving.socket.getsockname()[1]
            leaving.request("GET", "/livez")
            leaving.answer()
            server.server.broker.store.direct = direct_while_the_client_leaves  # type: ignore[method-assign, assignment]
            try:
                leaving.json_request("POST", queue_path(queue, "lease"), {})
                assert leaving.is_closed_by_server()
            finally:
                server.server.broker.store.direct = original  # type: ignore[method-assign]
        answer = http.post(queue_path(queue, "lease"), json={"wait_s": 10})
    [leased] = answer.json()["messages"]
    assert leased["attempt"] == 1


def test_a_request_id_is_the_callers_or_a_new_one(server: RunningServer, queue: str) -> None:
    with server.client() as http:
        given = {"x-request-id": "mine-1"}
        for path in ("/livez", "/nowhere"):
            assert http.get(path, headers=given).headers["x-request-id"] == "mine-1"
        answer = http.post(queue_path(queue, "messages"), json={"payload": 1}, headers=given)
        assert answer.headers["x-request-id"] == "mine-1"
        new = http.get("/livez").headers["x-request-id"]
        assert new != http.get("/livez").headers["x-request-id"]
        forged = http.get("/livez", headers={"x-request-id": "a b"}).headers["x-request-id"]
        assert forged != "a b"
        problem = http.get("/nowhere")
        assert problem.json()["request_id"] == problem.headers["x-request-id"]


def test_answers_are_neither_cached_nor_sniffed(http: httpx2.Client, queue: str) -> None:
    for answer in (
        http.get("/livez"),
        http.post(queue_path(queue, "messages"), json={"payload": 1}),
        http.get("/nowhere"),
    ):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["date"].endswith("GMT")


def test_a_wire_that_says_nothing_harms_nobody(server: RunningServer) -> None:
    with Wire(server.port), Wire(server.port), server.client() as http:
        assert http.get("/livez").status_code == 200


def test_what_comes_after_the_last_request_is_not_done(server: RunningServer, queue: str) -> None:
    one = request_text("POST", queue_path(queue, "messages"), {"payload": 1})
    last = request_text("POST", queue_path(queue, "messages"), {"payload": 2}, "Connection: close")
    with server.wire() as wire:
        wire.send(one + last + one)
        assert [wire.answer().status for _ in range(2)] == [201, 201]
        assert wire.is_closed_by_server()
    with server.client() as http:
        assert http.get(queue_path(queue)).json()["stats"]["published"] == 2


def test_a_connection_with_much_to_answer_is_not_read_from(
    server: RunningServer, queue: str
) -> None:
    """However much is sent ahead, only a bounded part of it is in memory."""
    waits = request_text("POST", queue_path(queue, "lease"), {"wait_s": 60})
    more = request_text("GET", "/livez") * 1000
    with server.wire() as wire:
        wire.send(waits)
        server.until(lambda: len(server.server.broker.waiting) == 1)
        [connection] = list(server.server.service.connections)
        wire.socket.setblocking(False)
        sent = 0
        while sent < 1 << 26:
            try:
                sent += wire.socket.send(more)
            except BlockingIOError:
                break
        server.until(lambda: connection.is_read_paused)  # type: ignore[attr-defined]
        assert sent < 1 << 26


def test_a_client_is_told_to_continue_behind_another_request(
    server: RunningServer, queue: str
) -> None:
    path, body = queue_path(queue, "messages"), b'{"payload": 1}'
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    head += f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    waits = request_text("POST", queue_path(queue, "lease"), {"wait_s": 0.01})
    for first in (request_text("GET", "/livez"), waits):
        with server.wire() as wire:
            wire.send(first + head.encode())
            assert [wire.answer().status, wire.answer().status] == [200, 100]
            wire.send(body)
            assert wire.answer().status == 201


def test_head_is_answered_with_the_head_of_get(server: RunningServer) -> None:
    with server.wire() as wire:
        wire.send(request_text("HEAD", "/openapi.json") + request_text("GET", "/livez"))
        received = b""
        while b'{"status":"live"}' not in received:
            received += wire.socket.recv(1 << 16)
        head, behind = received.split(b"\r\n\r\n", 1)
        assert b"HTTP/1.1 200" in head
        assert int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) > 1000
        assert behind.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("bad", ["Host: t\r\nHost: t", "X: t", "Host : t", "Content-Length: 1x"])
def test_a_refused_head_request_gets_no_body(server: RunningServer, bad: str) -> None:
    with server.wire() as wire:
        wire.send(f"HEAD /livez HTTP/1.1\r\n{bad}\r\n\r\n".encode())
        received = wire.socket.makefile("rb").read()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.endswith(b"\r\n\r\n")


def test_bad_bytes_behind_a_head_request_are_refused_with_a_body(server: RunningServer) -> None:
    with server.wire() as wire:
        wire.send(request_text("HEAD", "/livez") + b"this is not HTTP\r\n\r\n")
        received = wire.socket.makefile("rb").read()
    assert received.endswith(b"}")


def test_a_websocket_may_begin_behind_a_request(server: RunningServer, queue: str) -> None:
    handshake = (
        f"GET {queue_path(queue, 'stream')} HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n"
    )
    with server.wire() as wire:
        wire.send(request_text("GET", "/livez") + handshake.encode())
        assert [wire.answer().status, wire.answer().status] == [200, 101]


def test_a_remembered_path_forgets_nothing_of_its_query(server: RunningServer, queue: str) -> None:
    path = queue_path(queue, "messages")
    with server.client() as http:
        for _ in range(2):
            assert http.post(path, json={"payload": 1}).status_code == 201
            assert http.get(path).status_code == 200
            assert len(http.get(f"{path}?limit=1").json()["messages"]) == 1
            assert http.get(f"{path}?nope=1").status_code == 400
            assert http.put(path).status_code == 405
            assert http.get(f"{path}#fragment").status_code == 200
