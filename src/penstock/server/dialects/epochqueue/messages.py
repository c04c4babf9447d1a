"""Publishing, leasing, settling and purging."""

import binascii
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from penstock.broker import QueueName, Settlement, Verb
from penstock.broker.access import INSIDE
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage, NewMessage
from penstock.operations import Discard
from penstock.server.dialects.call import Call, answer, answer_leased, nothing, route
from penstock.server.dialects.epochqueue.catalogue import (
    LONGEST_LEASE_MS,
    MOST_RETRIES,
    QUEUE,
    dead_queue_of,
    made_queue,
    queue_of,
)
from penstock.server.dialects.json_bodies import Shape
from penstock.server.off_loop import size_of_many
from penstock.server.pieces import to_base64

MOST_KEYS, MOST_KEY_BYTES, MOST_VALUE_BYTES = 16, 64, 512  # of metadata
FARTHEST_MS = 90 * 86_400_000
MOST_LEASED = 1000


class MessageBody(Struct):
    body: str = ""
    deliver_at: int = 0
    max_retries: int = 0
    metadata: dict[str, str | None] = {}


_message = Shape(MessageBody, closed=True)


async def publish(call: Call) -> Response:
    message = _new_message(call, await call.read(_message), "$")
    queue = await made_queue(call.broker, call.caller, Verb.PUBLISH, queue_of(call))
    (published,) = await call.broker.publish(call.caller, queue, [message])
    return answer({"id": published.id}, 201)


async def publish_batch(call: Call) -> Response:
    """All of them, or none."""
    bodies = await call.read_array(_message)
    if not bodies:
        call.broker.admit(call.caller, Verb.PUBLISH, queue_of(call).namespace)
        return answer({"ids": []}, 201)
    messages = await call.service.off_loop.run_if_large(
        size_of_many(len(bodies)),
        lambda: [_new_message(call, one, f"$[{index}]") for index, one in enumerate(bodies)],
    )
    queue = await made_queue(call.broker, call.caller, Verb.PUBLISH, queue_of(call))
    published = await call.broker.publish(call.caller, queue, messages)
    return answer({"ids": [one.id for one in published]}, 201)


async def lease(call: Call) -> Response:
    """Of `__dlq__<queue>`: its dead letters."""
    visibility_ms = call.count("visibility_timeout_ms", None, LONGEST_LEASE_MS)
    lease_s = None if visibility_ms is None else visibility_ms / 1000
    n = call.count("n", 1, MOST_LEASED)
    broker, caller = call.broker, call.caller
    queue = dead_queue_of(call)
    if queue is not None:
        if not broker.has_queue(queue):
            broker.admit(caller, Verb.CONSUME, queue.namespace)
            return answer({"messages": []})
        leased = await broker.lease_dead(caller, queue, n=n, lease_s=lease_s)
    else:
        queue = await made_queue(broker, caller, Verb.CONSUME, queue_of(call))
        if n > 1:  # max_batch_size bounds what a consumer gets as well
            n = min(n, (await broker.queue_info(INSIDE, queue)).settings.max_batch)
        leased = await broker.lease(caller, queue, n=n, lease_s=lease_s)
    return await answer_leased(
        call, leased, lambda: {"messages": [delivery(queue, one) for one in leased]}
    )


async def purge(call: Call) -> Response:
    """What is ready or in flight; of `__dlq__<queue>`: its dead letters."""
    queue = dead_queue_of(call)
    if queue is not None:
        purged = await call.broker.run(call.caller, Discard(), queue)
    else:
        purged = await call.broker.cancel_deliverable(call.caller, queue_of(call))
    return answer({"purged": purged})


async def ack(call: Call) -> Response:
    await call.settle(Settlement("ack", call.path("receipt")))
    return nothing()


async def nack(call: Call) -> Response:
    """Ready again at once."""
    await call.settle(Settlement("nack", call.path("receipt"), delay_s=0.0))
    return nothing()


def delivery(queue: QueueName, leased: LeasedMessage) -> dict[str, Any]:
    """A message as it is handed out."""
    message = leased.message
    return {
        "id": message.id,
        "body": to_base64(message.payload).decode(),
        "receipt_handle": leased.receipt,
        "namespace": queue.namespace,
        "queue": queue.name,
        "attempt": leased.attempt,
        "published_at": message.published_ns // 1_000_000,
        "metadata": dict(message.headers),
    }


def _new_message(call: Call, body: MessageBody, path: str) -> NewMessage:
    metadata = {key: value or "" for key, value in body.metadata.items()}
    _check_metadata(metadata, f"{path}.metadata")
    now_ms = call.broker.clock.now_ns() // 1_000_000
    if body.deliver_at > now_ms + FARTHEST_MS:
        raise InvalidInput(
            f"deliver_at is more than 90 days ahead, or not milliseconds - at `{path}.deliver_at`"
        )
    return NewMessage(
        payload=_payload(body.body),
        deliver_at=body.deliver_at / 1000 if body.deliver_at > now_ms else None,
        max_attempts=_attempts(body.max_retries),
        headers=metadata or None,
    )


def _payload(body: str) -> bytes:
    """The bytes of standard base64, line breaks passed over; of anything else the text itself.

    Base64 for URLs, or without its padding, is text: `order_42` would be both.
    """
    try:
        return binascii.a2b_base64(body.replace("\r", "").replace("\n", ""), strict_mode=True)
    except ValueError:
        return body.encode()


def _attempts(max_retries: int) -> int | None:
    """N failed attempts make a message dead; 0: as many as the queue says; below: hardly ever."""
    if max_retries == 0:
        return None
    return MOST_RETRIES if max_retries < 0 else min(max_retries, MOST_RETRIES)


def _check_metadata(metadata: dict[str, str], path: str) -> None:
    if len(metadata) > MOST_KEYS:
        raise InvalidInput(f"there are {len(metadata)} keys; {MOST_KEYS} may be - at `{path}`")
    for key, value in metadata.items():
        if not 1 <= len(key.encode()) <= MOST_KEY_BYTES:
            raise InvalidInput(f"a key has 1 to {MOST_KEY_BYTES} bytes - at `{path}`")
        if len(value.encode()) > MOST_VALUE_BYTES:
            raise InvalidInput(f"a value has at most {MOST_VALUE_BYTES} bytes - at `{path}.{key}`")


ROUTES = (
    route("POST", f"{QUEUE}/messages", publish),
    route("POST", f"{QUEUE}/messages/batch", publish_batch),
    route("GET", f"{QUEUE}/messages", lease),
    route("DELETE", f"{QUEUE}/messages", purge),
    route("DELETE", "/messages/{receipt}", ack),
    route("POST", "/messages/{receipt}/nack", nack),
)
