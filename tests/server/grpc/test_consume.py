"""Consume: credit in messages and bytes, settlements, and how a stream ends."""

import queue as queues
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from penstock.protobuf.descriptors import METHODS
from tests.server.grpc.calling import Caller, address_of, consuming
from tests.server.running import RunningServer

Request = METHODS["Consume"].request


class Stream:
    """A call of Consume."""

    def __init__(self, channel: Any, **start: Any) -> None:
        self._requests: queues.SimpleQueue[Any] = queues.SimpleQueue()
        self.send(start=start)
        self.call = consuming(channel)(iter(self._requests.get, None), timeout=60)

    def send(self, **request: Any) -> None:
        self._requests.put(Request(**request))

    def end(self) -> None:
        self._requests.put(None)

    def next(self) -> Any:
        return next(self.call)

    def messages(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            found += self.next().delivered.messages
        return found


@contextmanager
def stream(caller: Caller, **start: Any) -> Iterator[Stream]:
    opened = Stream(caller.channel, **start)
    try:
        yield opened
    finally:
        opened.end()
        opened.call.cancel()


def test_messages_are_pushed_and_settled(grpc_client: Caller, queue: str) -> None:
    with stream(grpc_client, queue=queue, holder="me") as one:
        (id_,) = grpc_client.publish(queue, b"x")
        (message,) = one.messages(1)
        assert (message.message.id, message.attempt) == (id_, 1)
        one.send(settle={"ack": [{"receipt": message.receipt}]})
        (result,) = one.next().settled.results
        assert (result.receipt, result.status) == (message.receipt, 1)
    assert grpc_client.ready(queue) == (0, 0)


def test_no_more_than_the_credit_is_unsettled(grpc_client: Caller, queue: str) -> None:
    grpc_client.publish(queue, *[b"x"] * 7)
    with stream(grpc_client, queue=queue, credit={"messages": 2}) as one:
        held = one.messages(2)
        assert grpc_client.ready(queue) == (5, 2)
        one.send(settle={"ack": [{"receipt": held[0].receipt}]})
        assert one.next().HasField("settled")
        one.messages(1)
        assert grpc_client.ready(queue) == (4, 2)
        one.send(credit={"messages": 6})
        one.messages(4)
        assert grpc_client.ready(queue) == (0, 6)


def test_credit_in_bytes(grpc_client: Caller, queue: str) -> None:
    grpc_client.publish(queue, *[b"x" * 1000] * 5)
    with stream(grpc_client, queue=queue, credit={"messages": 10, "bytes": 2500}) as one:
        held = one.messages(2)
        assert grpc_client.ready(queue) == (3, 2)
        one.send(credit={"messages": 10, "bytes": 1})
        one.send(settle={"release": [held[0].receipt]})
        assert one.next().settled.results[0].status == 1
        one.send(settle={"ack": [{"receipt": held[1].receipt}]})
        assert one.next().settled.results[0].status == 1
        one.messages(1)  # one message is always allowed
        assert grpc_client.ready(queue)[1] == 1


def test_large_messages_are_sent_in_several_responses(grpc_client: Caller, queue: str) -> None:
    grpc_client.call("CreateQueue", queue=queue)
    for _ in range(4):
        grpc_client.publish(queue, b"x" * 1_500_000)
    with stream(grpc_client, queue=queue, credit={"messages": 10}) as one:
        assert len(one.messages(4)) == 4


def test_what_was_not_settled_comes_back_when_the_stream_ends(
    grpc_client: Caller, queue: str
) -> None:
    grpc_client.publish(queue, b"a", b"b")
    with stream(grpc_client, queue=queue) as one:
        (first, _) = one.messages(2)
        one.send(settle={"ack": [{"receipt": first.receipt}]})
        one.end()
        assert [response.WhichOneof("response") for response in one.call] == ["settled"]
        assert one.call.code() is grpc.StatusCode.OK
    (again,) = grpc_client.lease(queue, wait_s=20)
    assert (again.message.payload, again.attempt) == (b"b", 1)


def test_what_a_client_held_comes_back_when_it_is_gone(server: RunningServer, queue: str) -> None:
    with Caller(address_of(server)) as gone:
        gone.publish(queue, b"x")
        with stream(gone, queue=queue) as one:
            one.messages(1)
            gone.channel.close()
    with Caller(address_of(server)) as other:
        (leased,) = other.lease(queue, wait_s=20)
        assert leased.attempt == 1


@pytest.mark.parametrize(
    ("start", "code"),
    [
        ({"queue": "../x"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"queue": "q", "group": "nobody"}, grpc.StatusCode.NOT_FOUND),
        ({"queue": "q", "credit": {"messages": 10_001}}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"queue": "q", "lease_s": -1.0}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"queue": "q", "lease_s": float("nan")}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_bad_start_is_refused(
    grpc_client: Caller, start: dict[str, Any], code: grpc.StatusCode
) -> None:
    grpc_client.publish("q", b"x")
    with stream(grpc_client, **start) as one, pytest.raises(grpc.RpcError) as caught:
        one.next()
    assert caught.value.code() is code


def test_a_bad_request_ends_the_stream_and_releases(grpc_client: Caller, queue: str) -> None:
    bads: list[dict[str, Any]] = [
        {"start": {"queue": queue}},
        {"settle": {}},
        {"credit": {"messages": 1 << 20}},
    ]
    for bad in bads:
        grpc_client.publish(queue, b"x")
        with stream(grpc_client, queue=queue) as one:
            one.messages(1)
            one.send(**bad)
            with pytest.raises(grpc.RpcError) as caught:
                one.next()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        (leased,) = grpc_client.lease(queue, wait_s=20)
        grpc_client.call("Settle", ack=[{"receipt": leased.receipt}])


def test_a_stream_begins_with_start(grpc_client: Caller) -> None:
    requests = [Request(credit={"messages": 1})]
    with pytest.raises(grpc.RpcError) as caught:
        next(consuming(grpc_client.channel)(iter(requests), timeout=30))
    assert "must be `start`" in caught.value.details()


def test_a_deleted_queue_ends_its_streams(grpc_client: Caller, queue: str) -> None:
    grpc_client.publish(queue, b"x")
    with stream(grpc_client, queue=queue) as one:
        one.messages(1)
        grpc_client.call("DeleteQueue", queue=queue)
        with pytest.raises(grpc.RpcError) as caught:
            one.next()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_revoked_key_ends_its_streams(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("revoked") / "data"
    with RunningServer(data, grpc="127.0.0.1:0") as server:
        key = server.new_key("consume", "publish", "read")
        with Caller(address_of(server)) as caller:
            requests: queues.SimpleQueue[Any] = queues.SimpleQueue()
            requests.put(Request(start={"queue": "q"}))
            call = consuming(caller.channel)(
                iter(requests.get, None), timeout=60, metadata=[("x-api-key", key)]
            )
            server.until(lambda: len(server.server.broker.waiting) == 1)
            server.rewrite_keys(lambda text: text.replace('"consume"', '"manage"'))
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            requests.put(None)
