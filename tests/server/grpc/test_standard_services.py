"""Health and reflection, as load balancers and grpcurl use them."""

import queue as queues
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from penstock.protobuf.descriptors import PENSTOCK, RIVETQ
from scripts.compile_protos import COMPILED, compile_protos
from tests.server.grpc.calling import Caller, address_of
from tests.server.running import RunningServer

SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3


@pytest.fixture
def channel(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(address_of(server)) as channel:
        yield channel


def test_what_is_shipped_is_what_the_proto_files_compile_to(tmp_path: Path) -> None:
    compile_protos(tmp_path / "compiled.binpb")
    compiled = (tmp_path / "compiled.binpb").read_bytes()
    assert compiled == COMPILED.read_bytes(), "run `make protos`"


def test_a_call_is_made_with_reflection_alone(channel: Any, queue: str) -> None:
    """As grpcurl does: list the services, read their descriptors, call a method."""
    database = ProtoReflectionDescriptorDatabase(channel)
    services = list(database.get_services())
    assert {PENSTOCK, RIVETQ, "grpc.health.v1.Health"} <= set(services)
    pool = DescriptorPool(database)
    method = pool.FindServiceByName(PENSTOCK).FindMethodByName("Publish")
    request = GetMessageClass(method.input_type)(queue=queue)
    request.messages.add(payload=b"x")
    call = channel.unary_unary(
        f"/{PENSTOCK}/Publish",
        request_serializer=request.__class__.SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    assert len(call(request, timeout=30).messages[0].id) == 26


def test_an_unknown_symbol_is_an_error_of_reflection(channel: Any) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such")
    (answer,) = stub.ServerReflectionInfo(iter([asked]), timeout=30)
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize("service", ["", PENSTOCK, RIVETQ])
def test_the_services_are_healthy(channel: Any, service: str) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    asked = health_pb2.HealthCheckRequest(service=service)
    assert stub.Check(asked, timeout=30).status == SERVING


def test_the_health_of_an_unknown_service(channel: Any) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    asked = health_pb2.HealthCheckRequest(service="no.such")
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(asked, timeout=30)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(asked, timeout=30)
    assert next(watch).status == UNKNOWN
    watch.cancel()


def test_health_needs_no_key_and_reflection_does(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", grpc="127.0.0.1:0") as server:
        server.new_key("read")
        with grpc.insecure_channel(address_of(server)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert stub.Check(health_pb2.HealthCheckRequest(), timeout=30).status == SERVING
            with pytest.raises(grpc.RpcError) as caught:
                asked = reflection_pb2.ServerReflectionRequest(list_services="")
                reflecting = reflection_pb2_grpc.ServerReflectionStub(channel)
                next(reflecting.ServerReflectionInfo(iter([asked]), timeout=30))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_server_that_stops_tells_its_watchers_and_ends_its_streams(tmp_path: Path) -> None:
    with (
        RunningServer(tmp_path / "data", grpc="127.0.0.1:0") as server,
        Caller(address_of(server)) as caller,
    ):
        watch = health_pb2_grpc.HealthStub(caller.channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=60
        )
        assert next(watch).status == SERVING
        open_: queues.SimpleQueue[Any] = queues.SimpleQueue()
        reflecting = reflection_pb2_grpc.ServerReflectionStub(caller.channel)
        described = reflecting.ServerReflectionInfo(iter(open_.get, None), timeout=60)
        open_.put(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert next(described).list_services_response.service
        waiting = caller.future("Lease", queue="q", wait_s=60)
        server.until(lambda: len(server.server.broker.waiting) == 1)
        server.stop()  # fails if it takes the whole of shutdown_s
        assert [one.status for one in watch] == [NOT_SERVING]
        assert list(described) == []
        assert list(waiting.result(30).messages) == []
        open_.put(None)
