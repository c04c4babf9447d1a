"""Requests with the same head, one after the other, are judged by the same rules each time."""

import dataclasses
from pathlib import Path

from penstock.broker.stores import KeyAdmin
from penstock.server.configuration import Configuration
from tests.server.running import RunningServer, queue_path
from tests.server.test_pipelining import request_text


def test_a_repeated_request_may_come_in_pieces_or_with_company(
    server: RunningServer, queue: str
) -> None:
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


def test_a_bad_body_behind_a_repeated_head_is_refused(server: RunningServer, queue: str) -> None:
    good = request_text("POST", queue_path(queue, "messages"), {"payload": 1})
    bad = good.replace(b'"payload": 1', b'"paylaod": 1')
    with server.wire() as wire:
        for request, status in ((good, 201), (bad, 400), (good, 201)):
            wire.send(request)
            assert wire.answer().status == status


def test_new_limits_hold_for_repeated_requests(tmp_path: Path) -> None:
    request = request_text("POST", queue_path("orders", "messages"), {"payload": "x" * 50})
    with RunningServer(tmp_path / "data") as server, server.wire() as wire:
        for _ in range(2):
            wire.send(request)
            assert wire.answer().status == 201
        less = dataclasses.replace(server.settings, max_body_bytes=20)
        server.call(server.server.reload(Configuration(less, server.server.broker.settings)))
        wire.send(request)
        assert wire.answer().status == 413


def test_a_revoked_key_in_a_repeated_request_is_refused(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.wire() as wire:
        token = server.new_key("publish")
        path = queue_path("orders", "messages")
        request = request_text("POST", path, {"payload": 1}, f"X-Api-Key: {token}")
        for _ in range(2):
            wire.send(request)
            assert wire.answer().status == 201
        KeyAdmin(server.location).revoke(token.split("_")[1])
        server.call(server.server.service.keys.load())
        wire.send(request)
        assert wire.answer().status == 401
