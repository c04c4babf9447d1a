"""A stream ends when its key is revoked, and its messages are ready for others."""

from pathlib import Path

import pytest

from penstock.broker.stores import KeyAdmin
from tests.server.running import RunningServer, queue_path
from tests.server.ws.client import opened

NATIVE = queue_path("orders", "stream")
EPOCHQUEUE = "/namespaces/default/queues/orders/ws"


@pytest.mark.parametrize("path", [NATIVE, EPOCHQUEUE])
def test_a_stream_of_a_revoked_key_is_closed_and_its_messages_are_released(
    tmp_path: Path, path: str
) -> None:
    with RunningServer(tmp_path / "data") as server:
        good, bad = server.new_key("publish", "consume", "manage"), server.new_key("consume")
        with server.client(headers={"x-api-key": good}) as http:
            http.put(queue_path("orders"))
            http.post(queue_path("orders", "messages"), json={"payload": 1})
            with opened(server, path, additional_headers={"x-api-key": bad}) as stream:
                (held,) = stream.messages(1)
                KeyAdmin(server.location).revoke(bad.split("_")[1])
                code, reason = stream.closed()
                assert (code, "revoked" in reason) == (1008, True)
                answer = http.post(queue_path("orders", "lease"), json={"wait_s": 20})
                (again,) = answer.json()["messages"]
                assert (again["id"], again["attempt"]) == (held["id"], 1)


def test_a_stream_of_another_key_stays_open(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        good, bad = server.new_key("publish", "consume"), server.new_key("consume")
        with (
            server.client(headers={"x-api-key": good}) as http,
            opened(server, NATIVE, additional_headers={"x-api-key": bad}) as closed,
            opened(server, NATIVE, additional_headers={"x-api-key": good}) as stream,
        ):
            KeyAdmin(server.location).revoke(bad.split("_")[1])
            assert closed.closed()[0] == 1008
            http.post(queue_path("orders", "messages"), json={"payload": 1})
            (message,) = stream.messages(1)
            assert stream.settle(type="ack", receipt=message["receipt"])["status"] == "done"


def test_the_first_key_closes_the_streams_without_a_key(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, opened(server, NATIVE) as stream:
        KeyAdmin(server.location).create("first", ["consume"], None)
        assert stream.closed()[0] == 1008


def test_a_stream_whose_key_lost_its_rights_is_closed(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        key = server.new_key("consume")
        with opened(server, NATIVE, additional_headers={"x-api-key": key}) as stream:
            server.rewrite_keys(lambda document: document.replace("consume", "read"))
            assert stream.closed()[0] == 1008
