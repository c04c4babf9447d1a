"""The native stream, over a real socket: frames, credit, and what happens to what was held."""

import json
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.server.running import RunningServer, queue_path
from tests.server.ws.client import opened, stream_path

Client = httpx2.Client


def publish(http: Client, queue: str, *payloads: Any) -> list[str]:
    bodies = [{"payload": payload} for payload in payloads]
    answer = http.post(queue_path(queue, "messages"), json=bodies)
    assert answer.status_code == 201, answer.text
    return [one["id"] for one in answer.json()["messages"]]


def counts(http: Client, queue: str) -> tuple[int, int]:
    """(ready, leased)."""
    found = http.get(queue_path(queue)).json()["stats"]
    return found["ready"], found["leased"]


def lease_all(http: Client, queue: str, count: int) -> list[dict[str, Any]]:
    """So many messages, waited for."""
    leased: list[dict[str, Any]] = []
    while len(leased) < count:
        body = {"max": count - len(leased), "wait_s": 30}
        found = http.post(queue_path(queue, "lease"), json=body).json()["messages"]
        assert found, "they did not come back"
        leased += found
    return leased


def test_messages_are_pushed_and_acked(server: RunningServer, http: Client, queue: str) -> None:
    with opened(server, stream_path(queue)) as stream:
        (id_,) = publish(http, queue, {"n": 1})
        (message,) = stream.messages(1)
        assert (message["id"], message["payload"], message["attempt"]) == (id_, {"n": 1}, 1)
        assert {"receipt", "deadline", "published_at", "seq", "priority"} <= set(message)
        settled = stream.settle(type="ack", receipt=message["receipt"])
        assert settled == {"type": "settled", "receipt": message["receipt"], "status": "done"}
        assert counts(http, queue) == (0, 0)


def test_what_is_there_already_is_pushed_as_well(
    server: RunningServer, http: Client, queue: str
) -> None:
    ids = publish(http, queue, *range(5))
    with opened(server, stream_path(queue)) as stream:
        assert [one["id"] for one in stream.messages(5)] == ids


def test_bytes_travel_as_base64(server: RunningServer, http: Client, queue: str) -> None:
    http.post(queue_path(queue, "messages"), json={"payload_b64": "AP8="})
    publish(http, queue, 1)
    with opened(server, stream_path(queue, "?payload=b64")) as stream:
        assert [one["payload_b64"] for one in stream.messages(2)] == ["AP8=", "MQ=="]


def test_no_more_than_the_credit_is_ever_unsettled(
    server: RunningServer, http: Client, queue: str
) -> None:
    publish(http, queue, *range(10))
    with opened(server, stream_path(queue, "?credit=3")) as stream:
        held = stream.messages(3)
        assert counts(http, queue) == (7, 3)
        for _ in range(7):
            assert stream.settle(type="ack", receipt=held.pop(0)["receipt"])["status"] == "done"
            held += stream.messages(1)
            assert counts(http, queue)[1] == 3
    assert len(held) == 3


def test_credit_can_be_raised_and_lowered(server: RunningServer, http: Client, queue: str) -> None:
    publish(http, queue, *range(10))
    with opened(server, stream_path(queue, "?credit=0")) as stream:
        stream.send(type="credit", credit=4)
        held = stream.messages(4)
        stream.send(type="credit", credit=1)
        for one in held[:3]:
            assert stream.settle(type="ack", receipt=one["receipt"])["status"] == "done"
        assert counts(http, queue) == (6, 1)
        stream.send(type="credit", credit=2)
        stream.messages(1)
        assert counts(http, queue) == (5, 2)


def test_a_nack_brings_the_message_again_and_spends_an_attempt(
    server: RunningServer, http: Client, queue: str
) -> None:
    (id_,) = publish(http, queue, 1)
    with opened(server, stream_path(queue)) as stream:
        (first,) = stream.messages(1)
        stream.send(type="nack", receipt=first["receipt"], reason="not now", delay_s=0)
        frames = [stream.next(), stream.next()]
        (again,) = [one for one in frames if one["type"] == "message"]
        assert (again["id"], again["attempt"]) == (id_, 2)
        assert {one["type"] for one in frames} == {"message", "settled"}


def test_extend_moves_the_deadline(server: RunningServer, http: Client, queue: str) -> None:
    (id_,) = publish(http, queue, 1)
    with opened(server, stream_path(queue, "?lease_s=5")) as stream:
        (message,) = stream.messages(1)
        answer = stream.settle(type="extend", receipt=message["receipt"], lease_s=3600)
        assert answer["status"] == "done"
        why = http.get(f"/api/v1/messages/{id_}/why").json()
        assert why["code"] == "leased"
        events = http.get(f"/api/v1/messages/{id_}/history").json()["events"]
        assert [one["event"] for one in events][-2:] == ["leased", "extended"]


def test_a_group_of_its_own_gets_everything(
    server: RunningServer, http: Client, queue: str
) -> None:
    publish(http, queue, 1)
    assert http.put(queue_path(queue, "groups", "audit"), json={}).is_success
    with ExitStack() as both:
        audit = both.enter_context(opened(server, stream_path(queue, "?group=audit")))
        main = both.enter_context(opened(server, stream_path(queue)))
        assert audit.messages(1)[0]["id"] == main.messages(1)[0]["id"]


def test_settling_twice_is_answered_as_repeated_and_an_old_receipt_as_gone(
    server: RunningServer, http: Client, queue: str
) -> None:
    publish(http, queue, 1, 2)
    with opened(server, stream_path(queue)) as stream:
        first, second = stream.messages(2)
        for status in ("done", "repeated"):
            answer = stream.settle(type="ack", receipt=first["receipt"])
            assert answer["status"] == status
        stream.send(type="nack", receipt=second["receipt"], delay_s=3600)
        assert stream.next()["status"] == "done"
        answer = stream.settle(type="nack", receipt=second["receipt"])
        assert (answer["status"], bool(answer["detail"])) == ("gone", True)


BAD_FRAMES: list[str | bytes] = [
    "",
    "{",
    "[]",
    "null",
    "{}",
    '{"type": "ack"}',
    '{"type": "shout"}',
    '{"type": "ack", "receipt": 1}',
    '{"type": "ack", "receipt": "x", "more": 1}',
    '{"type": "ack", "receipt": "x", "receipt": "y"}',
    '{"type": "nack", "receipt": "x", "delay_s": -1}',
    '{"type": "nack", "receipt": "x", "delay_s": NaN}',
    '{"type": "extend", "receipt": "x", "lease_s": 0}',
    '{"type": "credit", "credit": -1}',
    '{"type": "credit", "credit": 1e9}',
    '{"type": "credit", "credit": 10001}',
    '{"type": "credit", "credit": true}',
    "[" * 100 + "]" * 100,
    b"\xff\xfe",
]


def test_a_bad_frame_is_answered_with_an_error_and_the_stream_goes_on(
    server: RunningServer, http: Client, queue: str
) -> None:
    with opened(server, stream_path(queue)) as stream:
        for frame in BAD_FRAMES:
            stream.connection.send(frame)
            answer = stream.next()
            assert (answer["type"], answer["code"]) == ("error", "invalid_input"), frame
            assert answer["detail"]
        for receipt in ("x", "AQAAAAAAAQAqAAAAAAAAAAcAAAAAAAAA"):
            answer = stream.settle(type="ack", receipt=receipt)
            assert answer["status"] in ("gone", "invalid")
        publish(http, queue, 1)
        stream.messages(1)


# -- the end ---------------------------------------------------------------------------------------


def test_what_was_held_is_ready_at_once_and_unspent_when_the_client_closes(
    server: RunningServer, http: Client, queue: str
) -> None:
    ids = publish(http, queue, 1, 2, 3)
    with opened(server, stream_path(queue)) as stream:
        one, *_ = stream.messages(3)
        stream.settle(type="ack", receipt=one["receipt"])
    again = lease_all(http, queue, 2)
    assert {(one["id"], one["attempt"]) for one in again} == {(ids[1], 1), (ids[2], 1)}


def test_what_was_held_is_ready_at_once_when_the_connection_breaks(
    server: RunningServer, http: Client, queue: str
) -> None:
    publish(http, queue, 1, 2)
    with opened(server, stream_path(queue)) as stream:
        stream.messages(2)
        stream.connection.socket.shutdown(socket.SHUT_RDWR)
        assert [one["attempt"] for one in lease_all(http, queue, 2)] == [1, 1]


def test_a_frame_that_is_too_large_ends_the_stream_and_what_was_held_is_ready(
    tmp_path: Path,
) -> None:
    server = RunningServer(tmp_path / "data", ws_max_frame_bytes=4096)
    with server, server.client() as http, opened(server, stream_path("orders")) as stream:
        publish(http, "orders", 1)
        stream.messages(1)
        stream.connection.send("x" * 4097)
        assert stream.closed()[0] == 1009
        lease_all(http, "orders", 1)


def test_who_answers_no_ping_is_dropped_and_what_it_held_is_ready(tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "data", ws_ping_s=0.2, ws_pong_s=0.2)
    with server, server.client() as http:
        publish(http, "orders", 1)
        with _deaf_client(server, stream_path("orders")):
            assert lease_all(http, "orders", 1)[0]["attempt"] == 1


def test_who_answers_no_ping_is_told_so(tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "data", ws_ping_s=0.2, ws_pong_s=0.2)
    with server, _deaf_client(server, stream_path("orders")) as client:
        received = b""
        while piece := client.recv(4096):
            received += piece
    assert received.endswith(b"\x88\x18\x03\xf3keepalive ping timeout")  # 1011


def test_a_slow_reader_is_dropped_and_what_it_held_is_ready(tmp_path: Path) -> None:
    payload = "x" * 1_000_000
    server = RunningServer(tmp_path / "data", ws_ping_s=60, ws_pong_s=0.2)
    with server, server.client() as http:
        for _ in range(20):
            publish(http, "orders", payload)
        with _deaf_client(server, stream_path("orders", "?credit=20")):
            again = lease_all(http, "orders", 20)
            assert {one["attempt"] for one in again} == {1}


def _deaf_client(server: RunningServer, path: str) -> socket.socket:
    """A client that shakes hands and then neither reads nor answers."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before it connects: else in vain
    client.connect(("127.0.0.1", server.port))
    client.sendall(
        f"GET {path} HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert client.recv(12) == b"HTTP/1.1 101"
    return client


def test_a_deleted_queue_ends_the_stream_and_is_not_made_again(
    server: RunningServer, http: Client, queue: str
) -> None:
    publish(http, queue, 1)
    with opened(server, stream_path(queue)) as stream:
        stream.messages(1)
        assert http.delete(queue_path(queue)).status_code == 204
        assert stream.closed()[0] == 4404
    assert http.get(queue_path(queue)).status_code == 404


def test_a_stop_hands_back_streams(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        publish(http, "orders", 1)
        with opened(server, stream_path("orders")) as stream:
            stream.messages(1)
            server.stop()
            assert stream.closed()[0] == 1012
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        assert lease_all(http, "orders", 1)[0]["attempt"] == 1


# -- the handshake ---------------------------------------------------------------------------------


def refused(server: RunningServer, path: str, **options: Any) -> tuple[int, str]:
    """(status, code) of a handshake that is refused."""
    with pytest.raises(InvalidStatus) as error:
        connect(f"ws://127.0.0.1:{server.port}{path}", proxy=None, **options)
    response = error.value.response
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, json.loads(response.body or b"")["code"]


@pytest.mark.parametrize(
    "query",
    [
        "?credit=x",
        "?credit=-1",
        "?credit=10001",
        "?group=-no",
        "?speed=9",
        "?credit=1&credit=2",
        "?lease_s=nan",
        "?lease_s=0",
        "?lease_s=-1",
        "?lease_s=1e12",
        "?payload=xml",
    ],
)
def test_a_bad_query_is_refused(server: RunningServer, queue: str, query: str) -> None:
    assert refused(server, stream_path(queue, query)) == (400, "invalid_input")


@pytest.mark.parametrize("name", ["a+b", "a" * 65])
def test_a_bad_name_is_refused(server: RunningServer, name: str) -> None:
    assert refused(server, stream_path(name))[0] == 400


@pytest.mark.parametrize("path", ["/nowhere", "/livez", "/api/v1/namespaces/default/queues/q"])
def test_a_path_without_a_stream_is_not_found(server: RunningServer, path: str) -> None:
    assert refused(server, path) == (404, "no_such_route")


def test_an_unknown_group_is_refused(server: RunningServer, http: Client, queue: str) -> None:
    publish(http, queue, 1)
    assert refused(server, stream_path(queue, "?group=nobody")) == (404, "no_such_group")


def test_a_queue_that_is_not_there_and_may_not_be_made_is_refused(tmp_path: Path) -> None:
    settings = {"create_on_use": False}
    with RunningServer(tmp_path / "data", broker=settings) as server, server.client() as http:
        assert refused(server, stream_path("orders")) == (404, "no_such_queue")
        epochqueue = "/namespaces/default/queues/orders"
        assert http.get(f"{epochqueue}/messages").status_code == 404
        with pytest.raises(InvalidStatus) as error:
            connect(f"ws://127.0.0.1:{server.port}{epochqueue}/ws", proxy=None)
        assert error.value.response.status_code == 404


def test_a_page_of_another_site_is_refused(server: RunningServer, http: Client, queue: str) -> None:
    publish(http, queue, 1)
    path = stream_path(queue)
    assert refused(server, path, origin="https://evil.example.com") == (403, "origin_refused")
    assert refused(server, path, origin="null") == (403, "origin_refused")
    with opened(server, path, origin=f"http://127.0.0.1:{server.port}") as stream:
        stream.messages(1)


def test_a_page_of_a_configured_origin_may_connect(tmp_path: Path) -> None:
    origin = "https://app.example.com"
    server = RunningServer(tmp_path / "data", cors_origins=(origin,))
    with (
        server,
        server.client() as http,
        opened(server, stream_path("orders"), origin=origin) as one,
    ):
        publish(http, "orders", 1)
        one.messages(1)


def test_keys_are_asked_for(tmp_path: Path) -> None:
    path = stream_path("orders")
    with RunningServer(tmp_path / "data") as server:
        consumer, publisher = server.new_key("consume"), server.new_key("publish")
        stranger = server.new_key("consume", namespaces=["elsewhere"])
        assert refused(server, path) == (401, "key_refused")
        assert refused(server, path + f"?api_key={consumer}")[0] == 400
        for key in (publisher, stranger):
            headers = {"X-Api-Key": key}
            assert refused(server, path, additional_headers=headers) == (403, "not_allowed")
        with server.client(headers={"X-Api-Key": publisher}) as http:
            publish(http, "orders", 1)
        with opened(server, path, additional_headers={"X-Api-Key": consumer}) as stream:
            (message,) = stream.messages(1)
            settled = stream.settle(type="ack", receipt=message["receipt"])
            assert settled["status"] == "done"


def test_a_plain_request_is_told_what_is_there(server: RunningServer, http: Client) -> None:
    assert http.get(stream_path("orders")).status_code in (404, 405, 426)
