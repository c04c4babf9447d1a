"""The compiled `.proto` files: messages as classes, and the methods of services."""

from importlib.resources import files
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2
from google.protobuf.message_factory import GetMessageClass

PENSTOCK = "penstock.v1.QueueService"
RIVETQ = "rivetq.QueueService"

Proto = Any  # a message; its class is made at run time

_pool = descriptor_pool.Default()
_needed = (struct_pb2,)  # imported by penstock.proto: its import adds it to the pool


def _load() -> None:
    compiled = files("penstock.protobuf").joinpath("interfaces.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        _pool.AddSerializedFile(file.SerializeToString())


_load()


class Method(NamedTuple):
    """A method of a service."""

    path: str  # of a call: /service/method
    name: str
    request: type[Proto]
    response: type[Proto]


def message_class(name: str) -> type[Proto]:
    """Return the class of a message of `penstock.v1`."""
    found: type[Proto] = GetMessageClass(_pool.FindMessageTypeByName(f"penstock.v1.{name}"))
    return found


def methods_of(service: str) -> dict[str, Method]:
    """Return the methods of a service by their names."""
    found = _pool.FindServiceByName(service)
    return {
        one.name: Method(
            f"/{service}/{one.name}",
            one.name,
            GetMessageClass(one.input_type),
            GetMessageClass(one.output_type),
        )
        for one in found.methods
    }


METHODS = methods_of(PENSTOCK)
