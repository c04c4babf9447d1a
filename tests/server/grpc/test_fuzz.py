"""Any bytes as requests of any method: an answer or a status, and never that of a fault."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.protobuf.descriptors import METHODS
from penstock.server.grpc import call as grpc_call
from penstock.server.grpc import queue_service, rivetq_service
from tests.server.grpc.calling import RIVETQ_METHODS
from tests.server.grpc.fake_context import Aborted, FakeContext, fake_shared
from tests.server.running import RunningServer

Consume = METHODS["Consume"].request
_EVERY = [*METHODS.values(), *RIVETQ_METHODS.values()]
_start = Consume(start={"queue": "fuzz", "lease_s": 1.0}).SerializeToString()
_words = st.one_of(st.text(max_size=20), st.just("fuzz"))


def encoded(kind: Any, **fields: Any) -> bytes:
    made: bytes = kind(**fields).SerializeToString()
    return made


# Bytes that are often requests: fields of protobuf, with any numbers and contents.
_varint = st.integers(0, 1 << 64).map(
    lambda n: bytes([(n >> s & 127) | 128 for s in range(0, 63, 7) if n >> s + 7] + [n & 127])
)
_field = st.one_of(
    st.builds(lambda number, value: bytes([number << 3]) + value, st.integers(1, 15), _varint),
    st.builds(
        lambda number, value: bytes([number << 3 | 2, len(value)]) + value,
        st.integers(1, 15),
        st.one_of(st.binary(max_size=40), st.just(b"fuzz")),
    ),
    st.builds(
        lambda number, value: bytes([number << 3 | 1]) + value,
        st.integers(1, 15),
        st.binary(min_size=8, max_size=8),
    ),
    st.binary(max_size=10),
)
RAW = st.one_of(st.binary(max_size=100), st.lists(_field, max_size=6).map(b"".join))
IN_STREAM = st.one_of(
    RAW,
    st.builds(
        lambda messages, size: encoded(Consume, credit={"messages": messages, "bytes": size}),
        st.integers(0, (1 << 31) - 1),
        st.integers(0, (1 << 63) - 1),
    ),
    st.builds(lambda one: encoded(Consume, settle={"release": one}), st.lists(_words, max_size=3)),
    st.builds(
        lambda one, delay_s: encoded(
            Consume, settle={"nack": [{"receipt": one, "delay_s": delay_s}]}
        ),
        _words,
        st.floats(),
    ),
)


def status_of(server: RunningServer, path: str, requests: list[bytes]) -> str:
    """Return the status of a call with these requests, and its details."""

    async def run() -> str:
        shared, context = fake_shared(server), FakeContext(requests, left_s=0.05)
        handlers = {**queue_service.handlers(shared), **rivetq_service.handlers(shared)}
        handler = handlers[path]
        try:
            async with asyncio.timeout(20):
                await (handler.stream_unary or handler.stream_stream)(None, context)
        except Aborted as error:
            return str(error)
        return "OK"

    return server.call(run())


fuzz = settings(
    max_examples=settings().max_examples * 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@fuzz
@given(method=st.sampled_from(_EVERY), raw=RAW)
def test_no_bytes_are_a_fault(server: RunningServer, method: Any, raw: bytes) -> None:
    assert not status_of(server, method.path, [raw]).startswith("INTERNAL")
    assert server.server.service.held.bytes == 0


@fuzz
@given(requests=st.lists(IN_STREAM, max_size=6))
def test_no_requests_of_a_stream_are_a_fault(server: RunningServer, requests: list[bytes]) -> None:
    status = status_of(server, METHODS["Consume"].path, [_start, *requests])
    assert not status.startswith("INTERNAL")
    assert server.server.service.held.bytes == 0


def test_the_fuzz_finds_a_planted_bug(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(kind: Any, raw: bytes) -> Any:
        return kind.FromString(raw)  # its errors are not ours

    monkeypatch.setattr(grpc_call, "parse", parse)
    with pytest.raises(AssertionError):
        test_no_bytes_are_a_fault(server)
