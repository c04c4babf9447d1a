"""Namespaces and queues, and what a queue made by this dialect begins with."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from penstock.broker import Broker, Caller, QueueName, Verb, check_name
from penstock.broker.access import INSIDE
from penstock.errors import AlreadyExists, NoSuchQueue
from penstock.server.dialects.call import Call, answer, nothing, route

NAMESPACE = "/namespaces/{namespace}"
QUEUE = f"{NAMESPACE}/queues/{{queue}}"

NEW_QUEUE: Mapping[str, Any] = {
    "backoff_base_s": 0.0,  # what fails is ready again at once
    "max_attempts": 5,
    "max_payload_bytes": 256 * 1024,
}
MaxRetries = Annotated[int, Meta(ge=0, le=65535)]


class NamespaceBody(Struct):
    name: str


class QueueBody(Struct):
    visibility_timeout_ms: Annotated[int, Meta(ge=1, le=7 * 86_400_000)] | None = None
    max_messages: Annotated[int, Meta(ge=0, lt=1 << 60)] | None = None
    max_retries: MaxRetries | None = None
    max_batch_size: Annotated[int, Meta(ge=1, le=10_000)] | None = None


_namespace = msgspec.json.Decoder(NamespaceBody)
_queue = msgspec.json.Decoder(QueueBody)


def queue_of(call: Call) -> QueueName:
    """The queue that the path names."""
    return QueueName.checked(call.path("namespace"), call.path("queue"))


async def made_queue(broker: Broker, caller: Caller, verb: Verb, queue: QueueName) -> QueueName:
    """The queue, made with what this dialect promises if it is not there and may be made."""
    if broker.has_queue(queue):
        return queue
    broker.admit(caller, verb, queue.namespace)
    if not broker.settings.create_on_use:
        raise NoSuchQueue(f"there is no queue {queue}: create it first")
    try:
        await broker.create_queue(INSIDE, queue, NEW_QUEUE)
    except AlreadyExists:
        pass  # somebody was quicker
    return queue


def attempts_of(max_retries: int) -> int:
    """How many attempts a message has, of which the last that fails makes it dead."""
    return max(max_retries, 1)


async def create_namespace(call: Call) -> Response:
    body = await call.read(_namespace)
    check_name("namespace", body.name)
    await call.broker.create_namespace(call.caller, body.name)
    return answer({"status": "created", "name": body.name}, 201)


async def list_namespaces(call: Call) -> Response:
    found = call.broker.namespaces(call.caller)
    return answer(
        {
            "namespaces": [
                {"name": one.name, "created_at": one.created_at_ns // 1_000_000} for one in found
            ]
        }
    )


async def delete_namespace(call: Call) -> Response:
    """With its queues, as this interface always did."""
    name = check_name("namespace", call.path("namespace"))
    await call.broker.delete_namespace(call.caller, name, force=True)
    return nothing()


async def create_queue(call: Call) -> Response:
    body = await call.read(_queue, QueueBody())
    settings = dict(NEW_QUEUE)
    if body.visibility_timeout_ms is not None:
        settings["lease_s"] = body.visibility_timeout_ms / 1000
    if body.max_messages is not None:
        settings["max_messages"] = body.max_messages
    if body.max_retries is not None:
        settings["max_attempts"] = attempts_of(body.max_retries)
    if body.max_batch_size is not None:
        settings["max_batch"] = body.max_batch_size
    await call.broker.create_queue(call.caller, queue_of(call), settings)
    return answer({"status": "created"}, 201)


async def list_queues(call: Call) -> Response:
    namespace = check_name("namespace", call.path("namespace"))
    return answer({"queues": [str(one) for one in call.broker.queues(call.caller, namespace)]})


async def delete_queue(call: Call) -> Response:
    await call.broker.delete_queue(call.caller, queue_of(call))
    return nothing()


ROUTES = (
    route("POST", "/namespaces", create_namespace),
    route("GET", "/namespaces", list_namespaces),
    route("DELETE", NAMESPACE, delete_namespace),
    route("GET", f"{NAMESPACE}/queues", list_queues),
    route("POST", QUEUE, create_queue),
    route("DELETE", QUEUE, delete_queue),
)
