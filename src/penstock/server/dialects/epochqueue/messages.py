"""Publishing, leasing and settling."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from penstock.broker import QueueName, Settlement, Verb
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage, NewMessage
from penstock.server.dialects.call import Call, answer, answer_leased, nothing, route
from penstock.server.dialects.epochqueue.catalogue import (
    QUEUE,
    MaxRetries,
    attempts_of,
    made_queue,
    queue_of,
)
from penstock.server.pieces import from_base64, to_base64

MOST_KEYS, MOST_KEY_BYTES, MOST_VALUE_BYTES = 16, 64, 512  # of metadata
FARTHEST_MS = 90 * 86_400_000
MOST_LEASED = 1000
LONGEST_LEASE_MS = 7 * 86_400_000


class MessageBody(Struct):
    body: str = ""
    deliver_at: Annotated[int, Meta(ge=0, lt=1 << 60)] | None = None
    max_retries: MaxRetries | None = None
    metadata: dict[str, str] | None = None


_one = msgspec.json.Decoder(MessageBody)
_many = msgspec.json.Decoder(list[MessageBody])


async def publish(call: Call) -> Response:
    message = _new_message(call, await call.read(_one), "$")
    queue = await made_queue(call.broker, call.caller, Verb.PUBLISH, queue_of(call))
    (published,) = await call.broker.publish(call.caller, queue, [message])
    return answer({"id": published.id}, 201)


async def publish_batch(call: Call) -> Response:
    """All of them, or none."""
    bodies = await call.read(_many)
    messages = [_new_message(call, one, f"$[{index}]") for index, one in enumerate(bodies)]
    queue = await made_queue(call.broker, call.caller, Verb.PUBLISH, queue_of(call))
    published = await call.broker.publish(call.caller, queue, messages)
    return answer({"ids": [one.id for one in published]}, 201)


async def lease(call: Call) -> Response:
    visibility_ms = call.whole("visibility_timeout_ms", 1, LONGEST_LEASE_MS)
    queue = await made_queue(call.broker, call.caller, Verb.CONSUME, queue_of(call))
    leased = await call.broker.lease(
        call.caller,
        queue,
        n=call.whole("n", 1, MOST_LEASED) or 1,
        lease_s=None if visibility_ms is None else visibility_ms / 1000,
    )
    return await answer_leased(
        call, leased, lambda: {"messages": [delivery(queue, one) for one in leased]}
    )


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
    try:
        payload = from_base64(body.body)
    except ValueError as error:
        raise InvalidInput(f"{error}; it must be base64 - at `{path}.body`") from None
    _check_metadata(body.metadata or {}, f"{path}.metadata")
    now_ms = call.broker.clock.now_ns() // 1_000_000
    if body.deliver_at is not None and body.deliver_at > now_ms + FARTHEST_MS:
        raise InvalidInput(
            f"deliver_at is more than 90 days ahead, or not milliseconds - at `{path}.deliver_at`"
        )
    is_ahead = body.deliver_at is not None and body.deliver_at > now_ms
    return NewMessage(
        payload=payload,
        deliver_at=body.deliver_at / 1000 if is_ahead and body.deliver_at else None,
        max_attempts=None if body.max_retries is None else attempts_of(body.max_retries),
        headers=body.metadata or None,
    )


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
    route("DELETE", "/messages/{receipt}", ack),
    route("POST", "/messages/{receipt}/nack", nack),
)
