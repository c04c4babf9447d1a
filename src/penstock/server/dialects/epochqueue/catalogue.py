"""Namespaces and queues, and what a queue made by this dialect begins with.

What is made here has a name that EpochQueue takes; what was made otherwise can be used as well.
"""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from penstock.broker import Broker, Caller, QueueName, Verb, check_name
from penstock.broker.access import INSIDE
from penstock.errors import AlreadyExists, InvalidInput, NoSuchNamespace, NoSuchQueue
from penstock.names import DEAD_VIEW_PREFIX
from penstock.server.dialects.call import Call, answer, nothing, route
from penstock.server.dialects.json_bodies import Shape

NAMESPACE = "/namespaces/{namespace}"
QUEUE = f"{NAMESPACE}/queues/{{queue}}"

NEW_QUEUE: Mapping[str, Any] = {
    "backoff_base_s": 0.0,  # what fails is ready again at once
    "max_attempts": 5,
    "max_payload_bytes": 256 * 1024,
}
MOST_RETRIES = 65_535
LONGEST_LEASE_MS = 7 * 86_400_000
_MOST_MESSAGES = 1 << 60
_MOST_IN_BATCH = 100_000
_OWN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)


class NamespaceBody(Struct):
    name: str


class QueueBody(Struct):
    """A number that is not above 0 means the default."""

    visibility_timeout_ms: int = 0
    max_messages: int = 0
    max_retries: int = 0
    max_batch_size: int = 0


_namespace = Shape(NamespaceBody, closed=True)
_queue = Shape(QueueBody, closed=True)


def queue_of(call: Call) -> QueueName:
    """The queue that the path names."""
    return QueueName.checked(call.path("namespace"), call.path("queue"))


def dead_queue_of(call: Call) -> QueueName | None:
    """The queue whose dead letters the path names as `__dlq__<queue>`; None if it does not."""
    name = call.path("queue")
    if not name.startswith(DEAD_VIEW_PREFIX):
        return None
    return QueueName.checked(call.path("namespace"), name.removeprefix(DEAD_VIEW_PREFIX))


def _check_own_name(what: str, name: str) -> None:
    if not _OWN_NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a {what} name of this interface: 1 to 64 of a-z, 0-9 and -, not "
            f"starting with -"
        )


async def made_queue(broker: Broker, caller: Caller, verb: Verb, queue: QueueName) -> QueueName:
    """The queue, made with what this dialect promises if it is not there and may be made."""
    if broker.has_queue(queue):
        return queue
    broker.admit(caller, verb, queue.namespace)
    if not broker.settings.create_on_use:
        raise NoSuchQueue(f"there is no queue {queue}: create it first")
    _check_own_name("namespace", queue.namespace)
    try:
        await broker.create_queue(INSIDE, queue, NEW_QUEUE)
    except AlreadyExists:
        pass  # somebody was quicker
    return queue


async def create_namespace(call: Call) -> Response:
    body = await call.read(_namespace)
    _check_own_name("namespace", body.name)
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
    """With its queues, if they are empty: no call for a namespace takes messages with it."""
    name = check_name("namespace", call.path("namespace"))
    await call.broker.delete_empty_namespace(call.caller, name)
    return nothing()


async def create_queue(call: Call) -> Response:
    body = await call.read(_queue, QueueBody())
    for what in ("namespace", "queue"):
        _check_own_name(what, call.path(what))
    settings = dict(NEW_QUEUE)
    if body.visibility_timeout_ms > 0:
        settings["lease_s"] = min(body.visibility_timeout_ms, LONGEST_LEASE_MS) / 1000
    if body.max_messages > 0:
        settings["max_messages"] = min(body.max_messages, _MOST_MESSAGES)
    if body.max_retries > 0:
        settings["max_attempts"] = min(body.max_retries, MOST_RETRIES)
    if body.max_batch_size > 0:
        settings["max_batch"] = min(body.max_batch_size, _MOST_IN_BATCH)
    await call.broker.create_queue(call.caller, queue_of(call), settings)
    return answer({"status": "created"}, 201)


async def list_queues(call: Call) -> Response:
    """None of a namespace that is not there."""
    namespace = check_name("namespace", call.path("namespace"))
    try:
        found = call.broker.queues(call.caller, namespace)
    except NoSuchNamespace:
        found = []
    return answer({"queues": [str(one) for one in found]})


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
