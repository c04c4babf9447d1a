"""The HTTP interface of EpochQueue. Bodies are base64 or text, times are epoch milliseconds.

`max_retries` N means that N failed attempts make a message dead; 0 means the queue's default. A
failed message is ready again at once: queues that are made here have no backoff.
"""

import binascii
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from penstock.broker import Outcome, QueueName, Settlement, Verb
from penstock.broker.access import INSIDE
from penstock.broker.webhooks import Style
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage, NewMessage, Published
from penstock.operations import Discard, Redrive
from penstock.server.call import Answer, Call, encode
from penstock.server.dialects import epochqueue_catalogue
from penstock.server.dialects.call import check_settled, count, json, read, settle
from penstock.server.dialects.epochqueue_catalogue import (
    LONGEST_LEASE_MS,
    MOST_RETRIES,
    QUEUE,
    dead_queue_of,
    ensure_queue,
)
from penstock.server.dialects.json_bodies import Shape
from penstock.server.off_loop import to_base64
from penstock.server.replies import Reply
from penstock.server.routes import Route

MOST_KEYS, MOST_KEY_BYTES, MOST_VALUE_BYTES = 16, 64, 512  # of metadata
FARTHEST_MS = 90 * 86_400_000
MOST_LEASED = 1000
_SMALL_BATCH_BYTES = 4096  # a larger batch is read in a thread


class MessageBody(Struct, forbid_unknown_fields=True):
    body: str = ""
    deliver_at: int = 0
    max_retries: int = 0
    metadata: dict[str, str | None] = {}


_message = Shape(MessageBody, closed=True)


def publish(call: Call) -> Any:
    return call.with_body(_message.read, _publish)


def _publish(call: Call, body: MessageBody) -> Any:
    if body.metadata or body.deliver_at or body.max_retries:
        message: NewMessage | bytes = _new_message(call, body, "$")
    else:
        message = _payload(body.body)
    if call.broker.has_queue(call.queue):
        return _publish_now(call, message)
    return _make_and_publish(call, message)


def _publish_now(call: Call, message: NewMessage | bytes) -> Answer:
    return call.publish_one(message, _published)


async def _make_and_publish(call: Call, message: NewMessage | bytes) -> Answer:
    await ensure_queue(call.broker, call.caller, Verb.PUBLISH, call.queue)
    return _publish_now(call, message)


def _published(_: Call, published: Sequence[Published]) -> bytes:
    return b'{"id":"%s"}' % published[0].id.encode()


def publish_batch(call: Call) -> Any:
    """Publish a batch of messages: all or none."""
    read_batch = partial(_read_batch, call)
    return call.with_body(read_batch, _publish_batch, small_bytes=_SMALL_BATCH_BYTES)


def _read_batch(call: Call, body: bytes) -> list[NewMessage]:
    """Read a batch, in the loop or in a thread."""
    bodies = _message.read_array(body)
    return [_new_message(call, one, f"$[{index}]") for index, one in enumerate(bodies)]


async def _publish_batch(call: Call, messages: list[NewMessage]) -> Reply:
    if not messages:
        call.broker.admit(call.caller, Verb.PUBLISH, call.queue.namespace)
        return json({"ids": []}, 201)
    queue = await ensure_queue(call.broker, call.caller, Verb.PUBLISH, call.queue)
    published = await call.broker.publish(call.caller, queue, messages)
    return json({"ids": [one.id for one in published]}, 201)


def lease(call: Call) -> Any:
    """Lease messages, or dead letters of `__dlq__<queue>`."""
    queue = dead_queue_of(call)
    if queue is None:
        n = count(call, "n", 1, MOST_LEASED)
        if n == 1 and call.broker.has_queue(call.queue):
            return _lease(call, n)
        return _make_and_lease(call, n)
    if not call.broker.has_queue(queue):
        call.broker.admit(call.caller, Verb.CONSUME, queue.namespace)
        return json({"messages": []})
    n = count(call, "n", 1, MOST_LEASED)
    leasing = call.broker.lease_dead(call.caller, queue, n=n, lease_s=_lease_s(call))
    return call.when_leased(leasing, _dead_deliveries)


async def _make_and_lease(call: Call, n: int) -> Answer:
    queue = await ensure_queue(call.broker, call.caller, Verb.CONSUME, call.queue)
    if n > 1:  # max_batch_size bounds what a consumer gets as well
        n = min(n, (await call.broker.queue_info(INSIDE, queue)).settings.max_batch)
    return _lease(call, n)


def _lease(call: Call, n: int) -> Answer:
    leasing = call.broker.lease(call.caller, call.queue, n=n, lease_s=_lease_s(call), pending=call)
    return call.when_leased(leasing, _deliveries)


def _lease_s(call: Call) -> float | None:
    visibility_ms = count(call, "visibility_timeout_ms", None, LONGEST_LEASE_MS)
    return None if visibility_ms is None else visibility_ms / 1000


def _deliveries(call: Call, leased: Sequence[LeasedMessage]) -> bytes:
    return encode({"messages": [delivery(call.queue, one) for one in leased]})


def _dead_deliveries(call: Call, leased: Sequence[LeasedMessage]) -> bytes:
    queue = dead_queue_of(call) or call.queue
    return encode({"messages": [delivery(queue, one) for one in leased]})


async def purge(call: Call) -> Reply:
    """Purge ready and leased messages, or dead letters of `__dlq__<queue>`."""
    queue = dead_queue_of(call)
    if queue is not None:
        purged = await call.broker.run(call.caller, Discard(), queue)
    else:
        purged = await call.broker.cancel_deliverable(call.caller, call.queue)
    return json({"purged": purged})


def ack(call: Call) -> Answer:
    return settle(call, Settlement("ack", call.path("receipt")), _settled)


def nack(call: Call) -> Answer:
    """Nack a message: it is ready again at once."""
    return settle(call, Settlement("nack", call.path("receipt"), delay_s=0.0), _settled)


def _settled(_: Call, outcomes: Sequence[Outcome]) -> None:
    check_settled(outcomes)


def delivery(queue: QueueName, leased: LeasedMessage) -> dict[str, Any]:
    """Return a leased message in EpochQueue's format."""
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
    """Return the decoded bytes of standard base64, ignoring line breaks; else the text itself.

    URL-safe base64, or base64 without padding, is taken as text: `order_42` could be either.
    """
    try:
        return binascii.a2b_base64(body.replace("\r", "").replace("\n", ""), strict_mode=True)
    except ValueError:
        return body.encode()


def _attempts(max_retries: int) -> int | None:
    """Return the attempts until a message is dead. 0: the queue's setting; below: the maximum."""
    if max_retries == 0:
        return None
    return MOST_RETRIES if max_retries < 0 else min(max_retries, MOST_RETRIES)


def _check_metadata(metadata: dict[str, str], path: str) -> None:
    if len(metadata) > MOST_KEYS:
        raise InvalidInput(
            f"there are {len(metadata)} keys; the maximum is {MOST_KEYS} - at `{path}`"
        )
    for key, value in metadata.items():
        if not 1 <= len(key.encode()) <= MOST_KEY_BYTES:
            raise InvalidInput(f"a key has 1 to {MOST_KEY_BYTES} bytes - at `{path}`")
        if len(value.encode()) > MOST_VALUE_BYTES:
            raise InvalidInput(f"a value has at most {MOST_VALUE_BYTES} bytes - at `{path}.{key}`")


# -- dead letters: leased and settled as messages are, or replayed ---------------------------------

_LEASED, _REPLAYED = 10, 100  # defaults
_MOST_REPLAYED = 100_000


def lease_dead(call: Call) -> Answer:
    n = count(call, "limit", _LEASED, MOST_LEASED)
    leasing = call.broker.lease_dead(call.caller, call.queue, n=n)
    return call.when_leased(leasing, _dead_deliveries)


async def replay(call: Call) -> Reply:
    """Redrive dead letters now, with the same ids and all attempts."""
    limit = count(call, "limit", _REPLAYED, _MOST_REPLAYED)
    replayed = await call.broker.run(call.caller, Redrive(limit=limit), call.queue)
    return json({"replayed": replayed})


# -- webhooks in EpochQueue's style ----------------------------------------------------------------


class SubscriptionBody(Struct, forbid_unknown_fields=True):
    url: str
    secret: str | None = None


_body = Shape(SubscriptionBody, closed=True)


async def subscribe(call: Call) -> Reply:
    body = await read(call, _body)
    made = await call.service.webhooks.create(
        call.caller,
        await ensure_queue(call.broker, call.caller, Verb.CONSUME, call.queue),
        body.url,
        secret=body.secret or None,
        style=Style.EPOCHQUEUE,
    )
    return json({"id": made.id}, 201)


async def unsubscribe(call: Call) -> None:
    await call.service.webhooks.delete(call.caller, call.path("id"))


ROUTES = (
    *epochqueue_catalogue.ROUTES,
    Route("GET", f"{QUEUE}/dlq", lease_dead),
    Route("POST", f"{QUEUE}/dlq/replay", replay),
    Route("POST", f"{QUEUE}/messages", publish, status=201),
    Route("POST", f"{QUEUE}/messages/batch", publish_batch),
    Route("GET", f"{QUEUE}/messages", lease),
    Route("DELETE", f"{QUEUE}/messages", purge),
    Route("DELETE", "/messages/{receipt}", ack),
    Route("POST", "/messages/{receipt}/nack", nack),
    Route("POST", f"{QUEUE}/subscriptions", subscribe),
    Route("DELETE", "/subscriptions/{id}", unsubscribe),
)
