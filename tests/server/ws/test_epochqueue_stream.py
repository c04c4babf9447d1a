"""EpochQueue's stream, over a real socket."""

import base64
from typing import Any

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.server.running import RunningServer, queue_path
from tests.server.ws.client import opened

Client = httpx2.Client


@pytest.fixture
def at(queue: str) -> str:
    return f"/namespaces/shop/queues/{queue}"


def publish(http: Client, at: str, body: bytes = b"x", **options: Any) -> str:
    encoded = base64.b64encode(body).decode()
    answer = http.post(f"{at}/messages", json={"body": encoded, **options})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_messages_are_pushed_and_acked(
    server: RunningServer, http: Client, at: str, queue: str
) -> None:
    with opened(server, f"{at}/ws") as stream:
        id_ = publish(http, at, b"hello")
        message = stream.next()
        receipt, published_at = message.pop("receipt_handle"), message.pop("published_at")
        assert message == {
            "type": "message",
            "id": id_,
            "body": base64.b64encode(b"hello").decode(),
            "namespace": "shop",
            "queue": queue,
        }
        assert isinstance(published_at, int)
        stream.send(type="ack", receipt_handle=receipt)
        stream.send(type="ack", receipt_handle="nonsense")
        answer = stream.next()  # nothing is said to the ack that was good
        assert (answer["type"], answer["receipt_handle"]) == ("error", "nonsense")
        stream.send(type="ack", receipt_handle=receipt)  # the second time it settles nothing
        answer = stream.next()
        assert (answer["type"], answer["receipt_handle"]) == ("error", receipt)
        stats = http.get(queue_path(queue, namespace="shop")).json()["stats"]
        assert (stats["acked"], stats["leased"], stats["ready"]) == (1, 0, 0)


def test_a_nack_brings_the_message_again_at_once_until_it_is_dead(
    server: RunningServer, http: Client, at: str
) -> None:
    id_ = publish(http, at, max_retries=3)
    with opened(server, f"{at}/ws") as stream:
        for _ in range(3):
            message = stream.next()
            assert message["id"] == id_
            stream.send(type="nack", receipt_handle=message["receipt_handle"])
        publish(http, at, b"next")
        assert stream.next()["id"] != id_
    assert [one["id"] for one in http.get(f"{at}/dlq").json()["messages"]] == [id_]


def test_what_was_held_is_ready_at_once_when_the_client_goes(
    server: RunningServer, http: Client, at: str, queue: str
) -> None:
    publish(http, at)
    with opened(server, f"{at}/ws") as stream:
        stream.next()
    path = queue_path(queue, "lease", namespace="shop")
    (again,) = http.post(path, json={"wait_s": 30}).json()["messages"]
    assert again["attempt"] == 1


@pytest.mark.parametrize("frame", ["", "{", "[]", '{"type": "sing", "receipt_handle": "x"}', "{}"])
def test_a_bad_frame_is_answered_with_an_error(server: RunningServer, at: str, frame: str) -> None:
    with opened(server, f"{at}/ws") as stream:
        stream.connection.send(frame)
        answer = stream.next()
        assert (answer["type"], bool(answer["error"])) == ("error", True)


def test_a_browsers_origin_must_be_the_same_host(server: RunningServer, at: str) -> None:
    url = f"ws://127.0.0.1:{server.port}{at}/ws"
    with pytest.raises(InvalidStatus) as error:
        connect(url, proxy=None, origin=Origin("https://evil.example.com"))
    assert error.value.response.status_code == 403
    assert b'"error"' in (error.value.response.body or b"")
    with opened(server, f"{at}/ws", origin=f"http://127.0.0.1:{server.port}"):
        pass
