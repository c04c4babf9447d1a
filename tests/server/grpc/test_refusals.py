"""Errors over gRPC: statuses, codes, when to retry, keys and their rights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from penstock.errors import PenstockError, RateLimited, TooManyRequests
from penstock.server.grpc.statuses import ONLY_HTTP, STATUSES, refusal_of
from penstock.server.problems import CODES, KINDS
from tests.server.grpc.calling import Caller, address_of
from tests.server.running import RunningServer

Code = grpc.StatusCode


def refused(work: Any, *arguments: Any, **fields: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        work(*arguments, **fields)
    return caught.value


def code_of(error: Any) -> str:
    return str(dict(error.trailing_metadata())["penstock-code"])


def test_every_code_has_a_status() -> None:
    assert set(STATUSES) | ONLY_HTTP == CODES
    assert not set(STATUSES) & ONLY_HTTP


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_retry_info_is_sent_where_http_says_when_to_retry(kind: type[PenstockError]) -> None:
    if KINDS[kind].code in ONLY_HTTP:
        return
    error = kind("later", 1.0) if kind in (RateLimited, TooManyRequests) else kind.__new__(kind)
    trailers = dict(refusal_of(error).trailers)
    assert trailers["penstock-code"] == KINDS[kind].code
    assert ("grpc-retry-pushback-ms" in trailers) == KINDS[kind].retry
    details = Status.FromString(trailers["grpc-status-details-bin"]).details
    assert any(one.Is(RetryInfo.DESCRIPTOR) for one in details) == KINDS[kind].retry


def test_an_error_says_when_to_try_again() -> None:
    trailers = dict(refusal_of(RateLimited("slower", 1.25)).trailers)
    rich = Status.FromString(trailers["grpc-status-details-bin"])
    info, retry = ErrorInfo(), RetryInfo()
    assert rich.details[0].Unpack(info) and rich.details[1].Unpack(retry)
    assert (info.reason, info.domain) == ("rate_limited", "penstock")
    assert retry.retry_delay.ToMilliseconds() == 1250
    assert trailers["grpc-retry-pushback-ms"] == "1250"
    assert (rich.code, rich.message) == (Code.RESOURCE_EXHAUSTED.value[0], "slower")


def test_what_is_not_there(grpc_client: Caller, queue: str) -> None:
    error = refused(grpc_client.call, "GetStats", queue=queue)
    assert (error.code(), code_of(error)) == (Code.NOT_FOUND, "no_such_queue")
    error = refused(grpc_client.call, "GetMessage", id="01HF7YAT00000000G0000000G1")
    assert (error.code(), code_of(error)) == (Code.NOT_FOUND, "no_such_message")
    grpc_client.publish(queue, b"x")
    error = refused(grpc_client.call, "Seek", queue=queue, to="end", group="nobody")
    assert (error.code(), code_of(error)) == (Code.NOT_FOUND, "no_such_group")


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("Publish", {"queue": "../x", "messages": [{"payload": b"x"}]}),
        ("Publish", {"queue": "a\n", "messages": [{"payload": b"x"}]}),
        ("Publish", {"queue": "q", "namespace": ".", "messages": [{"payload": b"x"}]}),
        ("Publish", {"queue": "q"}),
        ("Publish", {"queue": "q", "messages": [{"delay_s": -1.0}]}),
        ("Publish", {"queue": "q", "messages": [{"delay_s": 1e308}]}),
        ("Publish", {"queue": "q", "messages": [{"ttl_s": float("nan")}]}),
        ("Publish", {"queue": "q", "messages": [{"headers": {"a\r\n": "b"}}]}),
        ("Publish", {"queue": "q", "messages": [{"priority": 10}]}),
        ("Publish", {"queue": "q", "messages": [{"compression": "rar"}]}),
        ("Publish", {"queue": "q", "messages": [{"deliver_at_ns": -1}]}),
        ("Lease", {"queue": "q", "max": 0}),
        ("Lease", {"queue": "q", "max": 10_001}),
        ("Lease", {"queue": "q", "lease_s": -1.0}),
        ("Lease", {"queue": "q", "wait_s": -1.0}),
        ("Lease", {"queue": "q", "wait_s": float("inf")}),
        ("Lease", {"queue": "q", "wait_s": float("nan")}),
        ("Lease", {"queue": "q", "group": "no group"}),
        ("Lease", {"queue": "q", "holder": "h" * 257}),
        ("Lease", {"queue": "q", "dead": True, "wait_s": 1.0}),
        ("Settle", {}),
        ("Settle", {"nack": [{"receipt": "r", "reason": "x" * 4097}]}),
        ("Browse", {"queue": "q", "state": "lost"}),
        ("Browse", {"queue": "q", "limit": 0}),
        ("Peek", {"queue": "q", "n": 0}),
        ("Seek", {"queue": "q"}),
        ("Seek", {"queue": "q", "to": "end", "seq": 1}),
        ("Seek", {"queue": "q", "time_ns": -5}),
        ("GetMessage", {"id": "short"}),
        ("CreateQueue", {"queue": "q2", "settings": {"no_such": 1}}),
        ("CreateQueue", {"queue": "q2", "settings": {"lease_s": "long"}}),
        ("CreateQueue", {"queue": "q2", "settings": {"max_attempts": 1.5}}),
        ("SetRateLimit", {"queue": "q", "refill_per_s": -1.0}),
        ("ListQueues", {"limit": 0}),
        ("ListQueues", {"namespace": "no/name"}),
        ("Redrive", {"queue": "q", "max_rate": 0.0}),
    ],
)
def test_bad_values_are_refused(grpc_client: Caller, method: str, fields: dict[str, Any]) -> None:
    grpc_client.publish("q", b"x")
    error = refused(grpc_client.call, method, **fields)
    assert error.code() is Code.INVALID_ARGUMENT, error
    assert error.details()


def test_receipts_that_settle_nothing_have_a_result_each(grpc_client: Caller) -> None:
    forged = "AQAAAAAAAQAqAAAAAAAAAAcAAAAAAAAA"
    results = grpc_client.call("Settle", ack=[{"receipt": forged}], release=["nonsense"]).results
    assert [one.status for one in results] == [3, 4]


def test_an_unknown_method(server: RunningServer) -> None:
    with grpc.insecure_channel(address_of(server)) as channel:
        for path in ("/penstock.v1.QueueService/Fly", "/no.such.Service/Get"):
            error = refused(channel.unary_unary(path), b"", timeout=30)
            assert error.code() is Code.UNIMPLEMENTED


# -- keys ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data: Path = tmp_path_factory.mktemp("guarded") / "data"
    with RunningServer(data, grpc="127.0.0.1:0") as running:
        running.new_key("read")
        yield running


def test_a_call_without_a_key_is_refused(guarded: RunningServer) -> None:
    with Caller(address_of(guarded)) as nobody:
        error = refused(nobody.publish, "q", b"x")
        assert (error.code(), code_of(error)) == (Code.UNAUTHENTICATED, "key_refused")
    with Caller(address_of(guarded), key="psk_wrong") as stranger:
        assert refused(stranger.publish, "q", b"x").code() is Code.UNAUTHENTICATED


def test_a_key_may_only_do_what_it_allows(guarded: RunningServer) -> None:
    address = address_of(guarded)
    publisher = guarded.new_key("publish", namespaces=["shop"])
    with Caller(address, key=publisher) as caller:
        messages = [{"payload": b"x"}]
        caller.call("Publish", namespace="shop", queue="q", messages=messages)
        error = refused(caller.call, "Publish", namespace="else", queue="q", messages=messages)
        assert (error.code(), code_of(error)) == (Code.PERMISSION_DENIED, "not_allowed")
        for method in ("Lease", "GetStats", "Purge"):
            error = refused(caller.call, method, namespace="shop", queue="q")
            assert error.code() is Code.PERMISSION_DENIED


def test_a_key_may_be_a_bearer_token(guarded: RunningServer) -> None:
    key = guarded.new_key("publish", "read")
    with Caller(address_of(guarded), authorization=f"Bearer {key}") as caller:
        assert caller.publish("bearer", b"x")
    with Caller(address_of(guarded), authorization=f"Basic {key}") as caller:
        assert refused(caller.publish, "bearer", b"x").code() is Code.UNAUTHENTICATED


def test_a_revoked_key_gets_no_messages_of_a_lease_that_waits(guarded: RunningServer) -> None:
    key = guarded.new_key("consume", namespaces=["revoked"])
    publisher = guarded.new_key("publish", "read")
    broker = guarded.server.broker
    with Caller(address_of(guarded), key=key) as caller:
        waiting = caller.future("Lease", namespace="revoked", queue="q", wait_s=20)
        guarded.until(lambda: len(broker.waiting) == 1)
        guarded.rewrite_keys(lambda text: text.replace('"consume"', '"read"'))
        guarded.call(guarded.server.service.keys.load())
        with Caller(address_of(guarded), key=publisher) as other:
            other.call("Publish", namespace="revoked", queue="q", messages=[{"payload": b"x"}])
            assert waiting.exception(30).code() is Code.PERMISSION_DENIED
            guarded.until(lambda: True)
            stats = other.call("GetStats", namespace="revoked", queue="q")
            assert (stats.ready, stats.leased) == (1, 0)
