"""Requests with a head that was read before are not read again, but judged by the same rules."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import KeyFile
from penstock.server.configuration import Configuration
from tests.server.running import RunningServer, queue_path
from tests.server.test_pipelining import request_text
from tests.server.wire import Wire


def heads_read(server: RunningServer, wire: Wire) -> int:
    """How many heads of a connection went through the parser."""
    port = wire.socket.getsockname()[1]
    connections: set[Any] = server.server._state.connections
    for connection in connections:
        if connection.client == ("127.0.0.1", port):
            return int(connection._messages)
    raise AssertionError("no such connection")


def test_the_second_of_a_kind_is_not_parsed(server: RunningServer, queue: str) -> None:
    publish = queue_path(queue, "messages")
    with server.wire() as wire:
        for number in range(5):
            wire.send(request_text("POST", publish, {"payload": number}))
            assert wire.answer().status == 201
        assert heads_read(server, wire) == 1
        wire.send(request_text("POST", publish, {"payload": "another length"}))
        assert wire.answer().status == 201
        assert heads_read(server, wire) == 2
    with server.wire() as another:
        another.send(request_text("POST", publish, {"payload": 6}))
        assert another.answer().status == 201
        assert heads_read(server, another) == 0
    with server.client() as http:
        leased = http.post(queue_path(queue, "lease"), json={"max": 10}).json()["messages"]
    assert [one["payload"] for one in leased] == [0, 1, 2, 3, 4, "another length", 6]


def test_a_known_head_may_come_in_pieces_or_with_company(server: RunningServer, queue: str) -> None:
    request = request_text("POST", queue_path(queue, "messages"), {"payload": 1})
    with server.wire() as wire:
        for pieces in (
            [request],
            [request],
            [request[:10], request[10:]],
            [request[:-1], request[-1:]],
            [request + request],
            [request + request[:20], request[20:]],
            [request],
        ):
            answers = sum(len(piece) for piece in pieces) // len(request)
            for piece in pieces:
                wire.send(piece)
            assert [wire.answer().status for _ in range(answers)] == [201] * answers
    with server.client() as http:
        assert http.get(queue_path(queue)).json()["stats"]["ready"] == 9


@pytest.mark.parametrize(
    "header", ["Connection: close", "Origin: http://t", "Expect: 100-continue"]
)
def test_heads_that_ask_for_something_special_are_read_each_time(
    server: RunningServer, queue: str, header: str
) -> None:
    for _ in range(2):
        with server.wire() as wire:
            request = request_text("POST", queue_path(queue, "messages"), {"payload": 1}, header)
            wire.send(request)
            assert wire.answer().status in (100, 201)
            if header != "Connection: close":
                assert heads_read(server, wire) == 1


def test_a_bad_body_behind_a_known_head_is_refused(server: RunningServer, queue: str) -> None:
    good = request_text("POST", queue_path(queue, "messages"), {"payload": 1})
    bad = good.replace(b'"payload": 1', b'"paylaod": 1')
    with server.wire() as wire:
        for request, status in ((good, 201), (bad, 400), (good, 201)):
            wire.send(request)
            assert wire.answer().status == status


def test_new_limits_hold_for_known_heads_too(tmp_path: Path) -> None:
    request = request_text("POST", queue_path("orders", "messages"), {"payload": "x" * 50})
    with RunningServer(tmp_path / "data") as server, server.wire() as wire:
        for _ in range(2):
            wire.send(request)
            assert wire.answer().status == 201
        less = dataclasses.replace(server.settings, max_body_bytes=20)
        server.call(server.server.reload(Configuration(less, server.server.broker.settings)))
        wire.send(request)
        assert wire.answer().status == 413


def test_a_revoked_key_in_a_known_head_is_refused(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.wire() as wire:
        token = server.new_key("publish")
        path = queue_path("orders", "messages")
        request = request_text("POST", path, {"payload": 1}, f"X-Api-Key: {token}")
        for _ in range(2):
            wire.send(request)
            assert wire.answer().status == 201
        KeyFile(str(server.data)).revoke(token.split("_")[1])
        server.call(server.server.service.keys.load())
        wire.send(request)
        assert wire.answer().status == 401
